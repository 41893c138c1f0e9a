"""A student of texts from the folder of its run, by torch. Few inputs do not use torch's modules.

Those would take several times as long as the arithmetic. The encoder is the same compiled kernel on the same tables,
the head is numpy's, but for products of several rows. Shapes: N and B inputs, F features, C logits.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial, reduce
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pipeline.arrays import Floats, Floats64, Ints, Ragged, stacked
from pipeline.errors import ConfigError
from pipeline.files import sha256
from pipeline.sets.record import TOKENIZER_FILE
from pipeline.tasks.drift import text_signals
from pipeline.text.reader import TextReader
from pipeline.text.tokenizer import load_tokenizer
from pipeline.training.run_record import text_columns
from student.answers.certificate import certified_threshold, model_hashes
from student.answers.multi_task import Opened, SharedLogits
from student.answers.thresholds import label_bias
from student.kernels import compiled
from student.model.architecture import sequences
from student.model.embeddings import MatrixEncoder
from student.model.heads import HEADS, PAIRINGS, is_equal, logits_of_heads, share_hidden_layers
from student.model.model import Student, TaskStudent, default_device
from student.model.products import backend
from student.model.weights import encoder_checksum
from student.predict import BATCH_SIZE, Predictor, StudentInfo
from student.texts import listed

FEW = 64  # number of inputs above which the arithmetic takes the time, and torch is as fast

Forward = Callable[[Sequence[Ragged]], Floats]
Layer = Callable[[Floats], Floats]


def numpy_forward(student: Student, heads: Sequence[nn.Module] = ()) -> Forward | None:
    """What gives the logits [B, C] of the sequences of a few inputs, as `Student.logits` does.

    None if that takes torch: on a GPU, without compiled kernels, with windows, int8 tables or a head of other layers.

    Args:
        student: reads the sequences.
        heads: whose logits are put side by side. Default: the student's own.
    """
    encoder = student.encoder
    # The device comes first: numpy refuses a GPU's tensors, also those of a head that it could multiply.
    if student.device.type != "cpu" or not isinstance(encoder, MatrixEncoder) or encoder.window_size is not None:
        return None
    parts_of_heads = [_parts(head) for head in heads or (student.head,)]
    vectors, forward, backward = (None if table is None else table.detach() for table in encoder.weights())
    tables, bigrams = (vectors, forward, backward), encoder.bigrams
    known = [parts for parts in parts_of_heads if parts is not None]
    if len(known) < len(parts_of_heads) or backend(tables, torch.empty(0)) is not compiled:
        return None
    layers = {part: LAYERS[type(part)](part) for parts in known for part in parts}
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
        inputs: Floats = (compare(*features.chunk(2)) if compare else features).numpy()
        hidden: dict[nn.Module, Floats] = {}  # what heads share is computed once
        logits = []
        for first, *others in known:
            if first not in hidden:
                hidden[first] = layers[first](inputs)
            logits.append(reduce(lambda values, part: layers[part](values), others, hidden[first]))
        return logits[0] if len(logits) == 1 else np.concatenate(logits, axis=1)

    return ask


def _parts(head: nn.Module) -> list[nn.Module] | None:
    """Returns the layers of a head, if numpy has all of them. Dropout is off in predictions."""
    if not isinstance(head, nn.Sequential):
        return None
    parts = [part for part in head if not isinstance(part, nn.Dropout)]
    return None if any(type(part) not in LAYERS for part in parts) else parts


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


MADE_OF_THE_STUDENT = {"student", "is_quick", "_numpy_forward"}  # attributes of a predictor
Ask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class TorchPredictor(Predictor):
    """A student from the folder of its run. See `Predictor` for arguments and errors.

    Attributes:
        student: the torch module.
        reader: of its texts.
    """

    student_type: ClassVar[type[TaskStudent]] = Student

    def _open(self, run: str | Path, abstain: bool, costs: Mapping[str, float], task: str | None) -> None:
        if abstain and costs:
            raise ConfigError(
                "costs: a certificate is about the most probable label. Remove the costs, or do not abstain"
            )
        self.folder = folder = Path(run) / (task or "")
        student = self.student_type.load(folder)
        self.info = StudentInfo.of(student.config)
        self.threshold = self.certified_threshold() if abstain else None
        self.bias_C = label_bias(folder, student.config.target, costs)
        tokenizer = load_tokenizer(folder / TOKENIZER_FILE, student.config.tokenizer_sha256)
        self.reader = TextReader.of(tokenizer)
        self._answer_with(student)

    def _answer_with(self, student: TaskStudent) -> None:
        _one_thread_after_forks()
        self.student: Any = student.to(default_device())
        student.encoder.lay_out()
        self._numpy_forward = numpy_forward(student) if isinstance(student, Student) else None
        self.is_quick = self._numpy_forward is not None

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again of the student's weights, wherever its folder is: tables that lie side by side do not travel."""
        weights = {name: weight.cpu().clone() for name, weight in self.student.state_dict().items()}
        student = type(self.student), self.student.config, weights, self.student.companions
        others = {name: value for name, value in vars(self).items() if name not in MADE_OF_THE_STUDENT}
        return _revived, (type(self), student, others)

    def logits(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> Floats:
        """See `Predictor`."""
        texts, config = self._texts(sentences1, sentences2), self.student.config
        parts = sequences(config, *self.reader.read(*texts, config.max_seq_length))
        if self._numpy_forward is not None and len(parts[0]) <= FEW:
            return self._numpy_forward(parts)
        return in_batches(self.student.logits, parts, config.target.num_logits, self.student.device)

    def encode(self, sentences: Iterable[str]) -> Floats:
        """See `Predictor`."""
        student = self.student
        parts = sequences(student.config, *self.reader.read(listed(sentences), None, student.config.max_seq_length))
        return in_batches(student.encoder.reduce, parts, student.encoder.size, student.device)

    def num_tokens(self, sentences1: Sequence[str], sentences2: Sequence[str] | None = None) -> Ints:
        """See `Predictor`."""
        parts = self.reader.read(sentences1, sentences2, None)
        special = self.reader.tokenizer.num_special_tokens_to_add(sentences2 is not None)
        return np.asarray(special + np.sum([part.lengths for part in parts], axis=0))

    def text_signals(self, sentences1: Sequence[Any], sentences2: Sequence[str] | None = None) -> dict[str, Floats64]:
        """See `Predictor`."""
        assert self.info.profile is not None, "there is nothing to compare with"
        parts = self.reader.read(sentences1, sentences2, self.info.max_seq_length)
        return text_signals(parts, self.info.profile.is_seen_V)

    def text_columns(self) -> list[tuple[str, ...]] | None:
        """See `Predictor`."""
        return text_columns(self.folder)

    def certified_threshold(self) -> float:
        """See `Predictor`."""
        return certified_threshold(self.folder)

    def hashes(self) -> dict[str, str]:
        """See `Predictor`."""
        return model_hashes(self.folder) | {TOKENIZER_FILE: sha256(self.folder / TOKENIZER_FILE)}

    def set_threads(self, count: int) -> None:
        """See `Predictor`."""
        torch.set_num_threads(count)


@cache
def _one_thread_after_forks() -> None:
    """Makes forked children of this process compute by one thread, once a predictor is there.

    A fork copies no threads of OpenMP. torch would wait for those of its parent for ever, as in
    `datasets.map(num_proc=2)`. A child may set another number before it computes.
    """
    if hasattr(os, "register_at_fork"):  # Windows has no forks
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


def _revived(
    kind: type[TorchPredictor],
    student: tuple[type[TaskStudent], Any, dict[str, torch.Tensor], dict[str, bytes]],
    others: dict[str, Any],
) -> TorchPredictor:
    """The predictor that was pickled or copied, on this machine's device and with its kernels."""
    model, config, weights, companions = student
    made = model(config)
    made.load_state_dict(weights)
    made.companions = companions
    predictor: TorchPredictor = object.__new__(kind)
    vars(predictor).update(others)
    predictor._answer_with(made.eval())
    return predictor


def open_several(path: Path, tasks: Sequence[str], abstain: bool) -> Opened:
    """Opens the students of some tasks of a run's folder. See `MultiTaskPredictor`."""
    predictors = {task: Predictor(path, abstain, task=task) for task in tasks}
    opened = {task: one for task, one in predictors.items() if isinstance(one, TorchPredictor)}
    _share_weights(list(opened.values()))
    groups: dict[Any, list[str]] = {}
    for task, one in opened.items():
        groups.setdefault(_way_of_reading(one.student), []).append(task)
    return predictors, [(names, _shared_logits({name: opened[name] for name in names})) for names in groups.values()]


def _share_weights(predictors: Sequence[TorchPredictor]) -> None:
    """Makes students with the same encoder, or the same hidden layer, use one, so that memory holds them once."""
    share_hidden_layers([one.student.head for one in predictors], is_equal)
    encoders: dict[str, nn.Module] = {}
    for one in predictors:
        checksum = encoder_checksum(one.folder)
        if checksum is None:
            continue
        one.student.encoder = encoders.setdefault(checksum, one.student.encoder)
        one._answer_with(one.student)


def _way_of_reading(student: TaskStudent) -> tuple[Any, ...]:
    """What heads have in common that take the same inputs."""
    config = student.config
    pairing = config.pairing if isinstance(student, Student) and config.is_pair else None
    return type(student), id(student.encoder), pairing, HEADS[config.head].reads_tokens


def _shared_logits(predictors: Mapping[str, TorchPredictor]) -> SharedLogits | None:
    """What gives the logits of students for texts, each of which is read once. None for students of labelled words."""
    first = next(iter(predictors.values()))
    student, config = first.student, first.student.config
    if not isinstance(student, Student):
        return None
    heads = [one.student.head for one in predictors.values()]
    ends = list(accumulate(one.student.config.target.num_logits for one in predictors.values()))
    forward = numpy_forward(student, heads)

    def ask(ids_T: torch.Tensor, starts_S: torch.Tensor) -> torch.Tensor:
        inputs = student.head_inputs(ids_T, starts_S)
        return logits_of_heads(heads, *inputs)

    def logits(sentences1: Sequence[str], sentences2: Sequence[str] | None) -> dict[str, Floats]:
        parts = sequences(config, *first.reader.read(sentences1, sentences2, config.max_seq_length))
        if forward is not None and len(parts[0]) <= FEW:
            logits_NC = forward(parts)
        else:
            logits_NC = in_batches(ask, parts, ends[-1], student.device)
        return dict(zip(predictors, np.split(logits_NC, ends[:-1], axis=1), strict=True))

    return logits


def in_batches(ask: Ask, parts: Sequence[Ragged], width: int, device: torch.device) -> Floats:
    """The outputs of a part of a student for inputs, computed in batches.

    Args:
        ask: a function of ids_T and starts_S. See `Student.logits`.
        parts: the inputs' N sequences, of two per input the second ones apart.
        width: the number of outputs per input.
        device: the student's.

    Returns:
        float32 [N, width].
    """
    numbers_NC = np.empty((len(parts[0]), width), dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, len(numbers_NC), BATCH_SIZE):
            stop = min(start + BATCH_SIZE, len(numbers_NC))
            taken = stacked([part.between(start, stop) for part in parts])
            ids_T, starts_S = (torch.from_numpy(part).to(device) for part in (taken.flat, taken.offsets))
            numbers_NC[start:stop] = ask(ids_T, starts_S).cpu().numpy()
    return numbers_NC
