"""How far inputs differ from those that a student learned from, by the distributions of a few numbers.

The measure is the population stability index, the symmetric Kullback-Leibler divergence of two histograms: 0 for equal
ones, and by convention more than 0.2 for a change that needs attention. Of few inputs it is above 0 by chance, too, so
a limit takes their number into account.

Shapes: N inputs or answers, C logits, B bins.
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pipeline.arrays import Bools, Floats, Floats64, Ints, Ragged
from pipeline.tasks.target import Target, margins, predicted_scores, probabilities

NOTICEABLE = 0.2
CONFIDENCE = 0.999  # that equal distributions stay below the limit
NUM_BINS = 10
UNKNOWN_EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
TEXT_SIGNALS = ("tokens", "unknown")
MOST_LABELS = 20  # that have a bin of their own. All others share one
MOST_BYTES = 2**20  # of one bit for each token
FEWEST = 100  # inputs: fewer show nothing
Signals = Mapping[str, Floats64]
Count = Annotated[int, Field(ge=0)]


class Histogram(BaseModel):
    """The distribution of a number.

    Attributes:
        edges: upper ends of the bins but the last one, each belonging to its bin.
        counts: numbers in each bin.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    edges: tuple[float, ...] = Field(max_length=100)
    counts: tuple[Count, ...] = Field(max_length=101)

    @model_validator(mode="after")
    def _fits(self) -> "Histogram":
        if len(self.counts) != len(self.edges) + 1 or list(self.edges) != sorted(set(self.edges)):
            raise ValueError("edges and counts of a histogram do not fit")
        return self


class InputProfile(BaseModel):
    """What the inputs of a student were like, by rows that it was not trained on.

    Attributes:
        seen: the tokens of the training rows, see `packed`.
        labels: numbers of the labels with a bin of their own, the most frequent first.
        signals: a histogram for each signal, see `text_signals` and `answer_signals`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seen: str = Field(max_length=2**22)
    labels: tuple[Count, ...] = Field((), max_length=MOST_LABELS)
    signals: dict[str, Histogram] = Field(max_length=16)

    @field_validator("seen")
    @classmethod
    def _unpacks(cls, seen: str) -> str:
        unpacked(seen)
        return seen

    @cached_property
    def is_seen_V(self) -> Bools:
        """Which tokens training rows had [V]."""
        return unpacked(self.seen)

    def only(self, names: Sequence[str]) -> "InputProfile":
        """The profile with only these signals."""
        return self.model_copy(update={"signals": {name: self.signals[name] for name in names if name in self.signals}})

    def counts(self, signals: Signals) -> dict[str, Ints]:
        """Counts the values of inputs by bin, int64 [B] for each signal."""
        found = {}
        for name, histogram in self.signals.items():
            values = self._places(signals[name]) if name == "label" else signals[name]
            bins = np.searchsorted(np.array(histogram.edges), values, side="left")
            found[name] = np.bincount(bins, minlength=len(histogram.counts)).astype(np.int64)
        return found

    def _places(self, label_N: Floats64) -> Floats64:
        """The place of each label among the frequent ones. Others get the place after them."""
        places = np.full(int(max(label_N.max(initial=0), *self.labels, 0)) + 1, float(len(self.labels)))
        places[list(self.labels)] = np.arange(len(self.labels))
        return np.asarray(places[label_N.astype(np.int64)])


class Drift(BaseModel):
    """How far one signal of inputs differs from the profile.

    Attributes:
        signal: its name.
        psi: the population stability index.
        limit: above which it is no chance.
        num_inputs: values that were compared.
    """

    signal: str
    psi: float
    limit: float
    num_inputs: int

    @property
    def is_drifted(self) -> bool:
        """Whether the signal differs noticeably, and not by chance."""
        return self.num_inputs >= FEWEST and self.psi > self.limit


def without(part: Ragged, special_ids: Sequence[Sequence[int]] | None) -> Ragged:
    """The same rows without the special tokens that a student reads around texts."""
    is_kept_T = ~np.isin(part.flat, list(chain.from_iterable(special_ids or ())))
    kept_T = np.concatenate([[0], np.cumsum(is_kept_T)])
    return Ragged(part.flat[is_kept_T], kept_T[part.offsets])


def text_signals(parts: Sequence[Ragged], is_seen_V: Bools) -> dict[str, Floats64]:
    """The signals of texts alone: ``tokens``, their number, and ``unknown``, the share that no training row had.

    Args:
        parts: the ids of the texts without special tokens, of pairs the second ones apart.
        is_seen_V: which tokens training rows had.
    """
    tokens_N = np.sum([part.lengths for part in parts], axis=0)
    unknown_N = np.sum([_num_unseen(part, is_seen_V) for part in parts], axis=0)
    return {"tokens": tokens_N.astype(np.float64), "unknown": unknown_N / np.maximum(tokens_N, 1)}


def answer_signals(target: Target, logits_NC: Floats) -> dict[str, Floats64]:
    """The signals of a student's answers.

    Returns:
        For classes ``label`` and ``margin``, the best probability less the second. For several labels ``label``, one
        number for each that is likelier than not, and ``margin``, twice the distance of the least certain label from
        one half. For scores ``score``.
    """
    if not target.has_labels:
        return {"score": predicted_scores(target, logits_NC).astype(np.float64)}
    p_NC = probabilities(target, logits_NC)
    if target.has_label_lists:
        return {
            "label": np.nonzero(p_NC > 0.5)[1].astype(np.float64),
            "margin": 2 * np.abs(p_NC.astype(np.float64) - 0.5).min(axis=1),
        }
    return {"label": p_NC.argmax(axis=1).astype(np.float64), "margin": margins(p_NC).astype(np.float64)}


def fit_profile(signals: Signals, is_seen_V: Bools) -> InputProfile:
    """The profile of inputs with these signals, of a student whose training rows had these tokens."""
    seen, labels = packed(is_seen_V), _frequent(signals["label"]) if "label" in signals else ()
    empty = {name: _empty(name, values, labels) for name, values in signals.items()}
    counts = InputProfile(seen=seen, labels=labels, signals=empty).counts(signals)
    filled = {name: Histogram(edges=one.edges, counts=tuple(counts[name].tolist())) for name, one in empty.items()}
    return InputProfile(seen=seen, labels=labels, signals=filled)


def drifts(profile: InputProfile, counts: Mapping[str, Any]) -> list[Drift]:
    """Compares counts of inputs by bin (`InputProfile.counts`, or sums of several) with a profile."""
    return [_drift(name, histogram, np.asarray(counts[name])) for name, histogram in profile.signals.items()]


def _drift(name: str, histogram: Histogram, counts_B: Any) -> Drift:
    from scipy.special import chdtri

    both_2B = np.stack([np.array(histogram.counts, dtype=np.float64), counts_B.astype(np.float64)])
    both_2B = both_2B[:, both_2B.any(axis=0)]
    num_21 = np.maximum(both_2B.sum(axis=1, keepdims=True), 1)
    # The index is infinite if one of two bins is empty, so each gets half a count, divided among the bins as both
    # histograms together are. Equal distributions stay equal then, whatever their numbers of inputs.
    more, pooled_B = both_2B.shape[1] / 2, (both_2B / num_21).mean(axis=0)
    p_B, q_B = (both_2B + more * pooled_B) / (num_21 + more)
    psi = float(((q_B - p_B) * np.log(q_B / p_B)).sum())
    # With equal distributions, the index is approximately a chi-squared variable times this (Yurdakul 2018).
    scale = float((1 / num_21).sum())
    chance = float(chdtri(max(len(p_B) - 1, 1), 1 - CONFIDENCE)) * scale
    return Drift(signal=name, psi=psi, limit=max(NOTICEABLE, chance), num_inputs=int(counts_B.sum()))


def _empty(name: str, values: Floats64, labels: tuple[int, ...]) -> Histogram:
    edges: tuple[float, ...]
    if name == "label":
        edges = tuple(np.arange(len(labels), dtype=np.float64).tolist())
    elif name == "unknown":
        edges = UNKNOWN_EDGES
    elif not len(values):
        edges = ()
    else:
        # Bins of about equal counts. Of a number with few values, such as a length, some quantiles are the same.
        quantiles = np.unique(np.quantile(values, np.arange(1, NUM_BINS) / NUM_BINS, method="lower"))
        distinct = np.unique(values)
        place = np.searchsorted(distinct[:-1], quantiles)
        place = place[place < len(distinct) - 1]
        # Halfway to the next value: arithmetic that rounds otherwise must not move a value into another bin.
        edges = tuple(((distinct[place] + distinct[place + 1]) / 2).tolist())
    return Histogram(edges=edges, counts=(0,) * (len(edges) + 1))


def _frequent(label_N: Floats64) -> tuple[int, ...]:
    labels, counts = np.unique(label_N.astype(np.int64), return_counts=True)
    # A stable order, so that equal counts give the same profile on every machine.
    order = np.argsort(-counts, kind="stable")[:MOST_LABELS]
    return tuple(labels[order].tolist())


def _num_unseen(part: Ragged, is_seen_V: Bools) -> Ints:
    """How many ids of each row training rows did not have [N]."""
    is_unseen_T = part.flat >= len(is_seen_V)
    is_unseen_T[~is_unseen_T] = ~is_seen_V[part.flat[~is_unseen_T]]
    total_T = np.concatenate([[0], np.cumsum(is_unseen_T)])
    return np.asarray(total_T[part.offsets[1:]] - total_T[part.offsets[:-1]])


def packed(is_seen_V: Bools) -> str:
    """A text of some kilobytes that holds which tokens were seen."""
    return base64.b64encode(zlib.compress(np.packbits(is_seen_V).tobytes(), 9)).decode()


def unpacked(text: str) -> Bools:
    """Returns what `packed` was given, and up to seven tokens more.

    Raises:
        ValueError: if it is something else.
    """
    try:
        # A short text from elsewhere could otherwise fill the memory.
        data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"the seen tokens cannot be read: {error}") from error
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8)).astype(bool)
