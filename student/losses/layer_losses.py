"""The loss between a student's layers and its teacher's stored ones, aligned with the student's tokens.

Shapes: N training rows or their sequences, B rows of a batch, S starts, T tokens that the student reads end to end, F
features of a row, H the teacher's width, A heads, L tokens of the longest row.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.arrays import Floats, Ints
from pipeline.sets.record_parts import LayersName
from student.encoders.bert import BertEncoder, LayerOutputs
from student.encoders.products import SparseGrads
from student.losses.layers import DIM, LayerDistance, LayerTargets, contrast_error, negatives, relations
from student.losses.ted_filters import Filters
from student.model.student import Student


class Contrast(nn.Module):
    """The contrastive loss with its two maps, which are trained with the student and then discarded.

    Args:
        target: the teacher's states of the first token.
        layers: whose.
        own: the width of the student's states, over all layers.
        kind_N: numbers that are equal for rows with the same label. See `kinds`.
    """

    def __init__(self, target: LayerTargets, layers: Sequence[int], own: int, kind_N: Ints) -> None:
        super().__init__()
        self._target, self._layers, self._kind_N = target, tuple(layers), kind_N
        # Student and teacher differ in width, so both are mapped to a common space, as in CRD (Tian et al. 2020).
        self.student_map = nn.Linear(own, DIM)
        self.teacher_map = nn.Linear(len(self._layers) * target.width, DIM)

    def forward(self, states_BF: Tensor, rows: Ints) -> Tensor:
        """Returns the loss of each row, float32 [B]. Torch's CPU generator draws the negatives.

        Args:
            states_BF: the student's.
            rows: numbers of the training rows, which all have states.
        """
        # The positive row comes first, which is the position that `contrast_error` reads.
        compared_BJ = np.concatenate([rows[:, None], negatives(self._kind_N, self._target.is_known_N, rows)], axis=1)
        # With 100 negatives a row, batches repeat rows, and each stored state is decoded and mapped only once.
        distinct_X, place_BJ = np.unique(compared_BJ, return_inverse=True)
        stored = [self._target.first(layer, distinct_X) for layer in self._layers]
        teacher_XD = functional.normalize(self.teacher_map(torch.cat(stored, dim=1).to(states_BF.device)))
        student_BD = functional.normalize(self.student_map(states_BF))
        places = torch.from_numpy(place_BJ.reshape(compared_BJ.shape)).to(states_BF.device)
        return contrast_error(student_BD @ teacher_XD.mT, places)


class LayerLoss(nn.Module):
    """The sum of distances over layers. Its maps are trained with the student and then discarded.

    The student's last layers learn from the same number of the teacher's layers. A student without layers has a single
    one: the features of each token, and for a row the input of its head.

    Args:
        distances: the distances, each with its signal.
        layers: the teacher's layers, ascending. 0 is the input of its first layer.
        student: the student, which is not stored.
        targets: the teacher's stored layers, by signal.
        weight_N: float32, multiplies each training row's loss.
        filters: the filters of the states of all tokens. Default: the states are compared unfiltered.
        kind_N: the kinds of rows for `Contrast`, or None without it.

    Attributes:
        is_known_N: which training rows have all signals.
    """

    def __init__(
        self,
        distances: Sequence[tuple[LayerDistance, LayersName]],
        layers: Sequence[int],
        student: Student,
        targets: Mapping[LayersName, LayerTargets],
        weight_N: Floats,
        filters: Filters | None = None,
        kind_N: Ints | None = None,
    ) -> None:
        super().__init__()
        self._weight_N = torch.from_numpy(weight_N)
        self._distances, self._layers, self._targets = tuple(distances), tuple(layers), targets
        # A row takes part only if every signal has it, so that all distances average over the same rows.
        self.is_known_N = np.logical_and.reduce([target.is_known_N for target in targets.values()])
        self._reads_tokens = any(distance.signal == "states" for distance, _ in distances)
        self._is_bert = isinstance(student.encoder, BertEncoder)
        self.filters = filters
        self.maps = nn.ModuleDict(
            {
                f"{distance.signal}-{layer}": made
                for distance, signal in distances
                for layer in layers
                if distance.error is not None
                if (made := self._map(distance.signal, layer, student, targets[signal].width)) is not None
            }
        )
        self.contrast = None
        if kind_N is not None:
            # The published code contrasts the first tokens' states of all layers concatenated, not layer by layer.
            own = len(layers) * self._width_of_first(student)
            first = next(signal for distance, signal in distances if distance.error is None)
            self.contrast = Contrast(targets[first], layers, own, kind_N)

    def read(
        self, student: Student, ids_T: Tensor, starts_S: Tensor, sparse_grads: SparseGrads | None = None
    ) -> tuple[Tensor, LayerOutputs]:
        """Returns features_BF, the input of the student's head, and the layer outputs to compare."""
        encoder = student.encoder
        if isinstance(encoder, BertEncoder):
            layers = encoder.layers(ids_T, starts_S, sparse_grads)
            # One forward pass serves both the head and the layer loss, because a BERT's layers dominate the cost.
            return encoder.pooled([states_TH[starts_S[:-1]] for states_TH in layers.states[1:]]), layers
        # The scan runs only if a distance reads tokens, because it costs more than the pooled product.
        states = [encoder.scan(ids_T, starts_S, sparse_grads)] if self._reads_tokens else []
        # A matrix student has no attention, so the mask has no columns and the lists of scores are empty.
        nowhere_NL = torch.zeros(len(starts_S) - 1, 0, dtype=torch.bool, device=starts_S.device)
        return student.features(ids_T, starts_S, sparse_grads), LayerOutputs(nowhere_NL, states)

    def _map(self, signal: LayersName, layer: int, student: Student, width: int) -> nn.Linear | None:
        """Returns the map from a student's state to the teacher's width, or None if no map is needed."""
        if signal not in ("states", "cls"):
            return None
        own = self._width_of_first(student) if signal == "cls" else student.encoder.token_size
        if signal == "states" and self.filters is not None:
            filter_ = self.filters.map_of(layer)
            made = nn.Linear(own, filter_.out_features)
            # TED starts a student's filters as copies of the teacher's if the widths agree.
            if made.weight.shape == filter_.weight.shape:
                made.load_state_dict(filter_.state_dict())
            return made
        # The published losses use a map only between different widths.
        return None if self._is_bert and own == width else nn.Linear(own, width)

    def _width_of_first(self, student: Student) -> int:
        return student.encoder.token_size if self._is_bert else student.num_features

    def forward(self, features_BF: Tensor, layers: LayerOutputs, starts_S: Tensor, rows: Ints) -> Tensor:
        """Returns the weighted mean over the rows whose teacher layers are stored, a scalar, or 0 without such rows.

        Args:
            features_BF: the input of the student's head.
            layers: the outputs of its layers.
            starts_S: the starts of its sequences.
            rows: numbers of the training rows.
        """
        is_known_B = self.is_known_N[rows]
        if not is_known_B.any():
            # A plain 0 would have no graph, and the backward pass would raise an error.
            return features_BF.sum() * 0
        is_chosen_B = torch.from_numpy(is_known_B).to(starts_S.device)
        chosen = _ChosenOutputs(features_BF[is_chosen_B], *_chosen(layers, starts_S, is_chosen_B), rows[is_known_B])
        weight_B = self._weight_N[chosen.rows].to(starts_S.device)
        # A matrix student reads a pair as two sequences, so its losses have two numbers for each row.
        losses = [(weight_B.repeat(len(loss_N) // len(weight_B)) * loss_N).mean() for loss_N in self._losses(chosen)]
        return torch.stack(losses).sum()

    def _losses(self, chosen: "_ChosenOutputs") -> Iterator[Tensor]:
        """Returns each distance of each row, or of its two sequences, layer by layer."""
        # Negative indices compare the student's last layers with the chosen teacher layers, whatever the student's
        # depth.
        places = range(-len(self._layers), 0)
        for distance, signal in self._distances:
            if distance.error is not None:
                for place, layer in zip(places, self._layers, strict=True):
                    yield self._error(distance, signal, layer, place, chosen)
        if self.contrast is not None:
            yield self.contrast(torch.cat([chosen.first(place) for place in places], dim=1), chosen.rows)

    def _error(
        self, distance: LayerDistance, signal: LayersName, layer: int, place: int, chosen: "_ChosenOutputs"
    ) -> Tensor:
        """Returns a distance of each row, for one layer of the teacher and the student's layer at ``place``."""
        assert distance.error is not None, "a contrast uses all layers"
        target, layers, device = self._targets[signal], chosen.layers, chosen.starts_S.device
        name = f"{distance.signal}-{layer}"
        bring = self.maps[name] if name in self.maps else nn.Identity()
        if distance.signal == "states":
            states = target.states(layer, chosen.rows).to(device)
            # The teacher's filters are frozen in TED's second stage. Only the student's maps learn.
            states = states if self.filters is None else self.filters(layer, states)
            return distance.error(bring(layers.states[place]), states, chosen.starts_S)
        if distance.signal == "cls":
            first = chosen.first(place)
            # Each state counts as a sequence of one token, so Hid-CLS reuses the error of Hid-Seq.
            alone_S = torch.arange(len(first) + 1, device=device)
            return distance.error(bring(first), target.first(layer, chosen.rows).to(device), alone_S)
        squares = layers.scores[place] if distance.signal == "attention" else relations(layers.values[place])
        stored = target.squares(layer, chosen.rows, squares.shape[-1]).to(device)
        return distance.error(squares, stored, layers.is_token_NL)


class _ChosenOutputs(NamedTuple):
    """A student's outputs for the rows with stored layers of the teacher."""

    features_BF: Tensor
    layers: LayerOutputs
    starts_S: Tensor
    rows: Ints

    def first(self, place: int) -> Tensor:
        """Returns a layer's states of the rows' first tokens, or for a student without layers the input of its head."""
        return self.layers.states[place][self.starts_S[:-1]] if self.layers.scores else self.features_BF


def _chosen(layers: LayerOutputs, starts_S: Tensor, is_chosen_B: Tensor) -> tuple[LayerOutputs, Tensor]:
    """Returns the layer outputs and starts of only the chosen rows. For a pair, both sequences are chosen."""
    # Usually every row has stored layers, and then the copies below would be wasted.
    if is_chosen_B.all():
        return layers, starts_S
    lengths_N = starts_S.diff()
    is_chosen_N = is_chosen_B.repeat(len(lengths_N) // len(is_chosen_B))
    is_chosen_T = is_chosen_N.repeat_interleave(lengths_N)
    starts_S = functional.pad(lengths_N[is_chosen_N].cumsum(0), (1, 0))
    squares = ([part[is_chosen_N] for part in parts] for parts in (layers.scores, layers.values))
    return LayerOutputs(layers.is_token_NL[is_chosen_N], [s[is_chosen_T] for s in layers.states], *squares), starts_S
