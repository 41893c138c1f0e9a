"""The logits of a few inputs without torch's modules, which would take several times as long as the arithmetic.

The encoder is the same compiled kernel on the same tables, the head is numpy's, but for products of several rows.
Shapes: B inputs, F features, C logits.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pipeline.arrays import Floats, Ragged, stacked
from student.kernels import compiled
from student.model.embeddings import MatrixEncoder
from student.model.model import Student
from student.model.pairings import PAIRINGS
from student.model.products import backend

FEW = 64  # inputs; of more the arithmetic takes the time, and torch is as good at that

Ask = Callable[[Sequence[Ragged]], Floats]
Layer = Callable[[Floats], Floats]


def numpy_forward(student: Student) -> Ask | None:
    """What gives a student's logits [B, C] of the sequences of a few inputs, as `Student.logits` does.

    None if that takes torch: on a GPU, without compiled kernels, with windows, int8 tables or a head of other layers.
    """
    encoder, layers = student.encoder, _layers(student.head)
    if not isinstance(encoder, MatrixEncoder) or encoder.window_size is not None:
        return None
    vectors, forward, backward = (None if table is None else table.detach() for table in encoder.weights())
    tables, bigrams = (vectors, forward, backward), encoder.bigrams
    if layers is None or student.device.type != "cpu" or backend(tables, torch.empty(0)) is not compiled:
        return None
    row_V = None if encoder.rows is None else encoder.rows.row_V.numpy()
    compare = PAIRINGS[student.config.pairing].compare if student.config.num_sequences == 2 else None

    def ask(parts: Sequence[Ragged]) -> Floats:
        taken = stacked(parts)
        rows_T = taken.flat if row_V is None else row_V[taken.flat]
        starts_S = torch.from_numpy(taken.offsets)
        features = compiled.reduce(tables, torch.from_numpy(rows_T), starts_S, with_max=encoder.with_max)
        if bigrams is not None:
            with torch.no_grad():
                features = torch.cat([features, bigrams(torch.from_numpy(taken.flat), starts_S)], dim=1)
        values: Floats = (compare(*features.chunk(2)) if compare else features).numpy()
        for layer in layers:
            values = layer(values)
        return values

    return ask


def _layers(head: nn.Module) -> list[Layer] | None:
    """The layers of a head in numpy, if all of them are known here; dropout is over when answers are given."""
    if not isinstance(head, nn.Sequential):
        return None
    layers = [layer for layer in head if not isinstance(layer, nn.Dropout)]
    if any(type(layer) not in LAYERS for layer in layers):
        return None
    return [LAYERS[type(layer)](layer) for layer in layers]


def _linear(layer: nn.Linear) -> Layer:
    weight_CF, bias_C = layer.weight.detach(), layer.bias.detach()
    weight_FC, bias = weight_CF.numpy().T, bias_C.numpy()

    def product(values_BF: Floats) -> Floats:
        if len(values_BF) == 1:  # numpy is quicker for one row, and takes four times as long as torch for two
            return np.asarray(values_BF @ weight_FC + bias)
        return functional.linear(torch.from_numpy(values_BF), weight_CF, bias_C).numpy()

    return product


def _layer_norm(layer: nn.LayerNorm) -> Layer:
    weight_F, bias_F = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    share, eps = np.float32(1 / len(weight_F)), np.float32(layer.eps)

    def normalised(values_BF: Floats) -> Floats:
        centred_BF = values_BF - values_BF.sum(axis=1, keepdims=True) * share
        variance_B1 = np.square(centred_BF).sum(axis=1, keepdims=True) * share
        return np.asarray(centred_BF / np.sqrt(variance_B1 + eps) * weight_F + bias_F)

    return normalised


def _relu(_: nn.ReLU) -> Layer:
    return lambda values_BF: np.maximum(values_BF, 0)


LAYERS: dict[type[nn.Module], Callable[..., Layer]] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    nn.ReLU: _relu,
}
