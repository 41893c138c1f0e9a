"""The interface of codecs of distributions, their input and output, and the teacher's last layer that one needs.

Shapes: P positions, V vocabulary, H hidden size, E kept entries of all positions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from pipeline.errors import DataError, IntegrityError
from pipeline.sets.record_parts import MAX_VOCABULARY, Part

if TYPE_CHECKING:
    import torch

DECODER_FILE = "decoder.safetensors"


@dataclass(frozen=True)
class Decoder:
    """The last layer of a masked LM: logits_PV = hidden_PH @ weight_VH.T + bias_V, float32."""

    weight_VH: torch.Tensor
    bias_V: torch.Tensor

    def __call__(self, hidden_PH: torch.Tensor) -> torch.Tensor:
        """Returns logits_PV."""
        from torch.nn.functional import linear

        return linear(hidden_PH, self.weight_VH, self.bias_V)


def write_decoder(root: Path, decoder: Decoder) -> None:
    """Writes a decoder into a set's folder."""
    from pipeline.training.checkpoint import write_tensors

    tensors = {"weight": decoder.weight_VH.cpu().contiguous(), "bias": decoder.bias_V.cpu().contiguous()}
    write_tensors(root / DECODER_FILE, tensors)


def read_decoder(path: Path, vocabulary_size: int, hidden_size: int) -> Decoder:
    """Reads a ``decoder.safetensors``.

    Raises:
        IntegrityError: if it is missing or damaged, or of another size.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        decoder = Decoder(tensors["weight"], tensors["bias"])
    except (OSError, SafetensorError, KeyError) as error:
        raise IntegrityError(f"{path}: not a decoder: {error}") from error
    kinds = {decoder.weight_VH.dtype, decoder.bias_V.dtype}
    shapes = (tuple(decoder.weight_VH.shape), tuple(decoder.bias_V.shape))
    if shapes != ((vocabulary_size, hidden_size), (vocabulary_size,)) or kinds != {torch.float32}:
        raise IntegrityError(f"{path}: not a decoder from {hidden_size} numbers to {vocabulary_size} tokens: {shapes}")
    # The file may come from another team, and a single NaN would turn every distribution of the set into NaN.
    if not (decoder.weight_VH.isfinite().all() and decoder.bias_V.isfinite().all()):
        raise IntegrityError(f"{path}: a number of the decoder is NaN or Inf")
    return decoder


Columns = Mapping[str, pa.Array]  # one entry per position
MOST_IN_HALF = 65_504.0  # the greatest number of float16


class BeyondHalfError(DataError):
    """A number that float16 cannot hold, at a position that the error stores."""

    def __init__(self, number: float, position: int) -> None:
        super().__init__(
            f"{number:,.0f} is more than float16 can hold, {MOST_IN_HALF:,.0f}. Use --codec sampled, which "
            f"stores no such numbers"
        )
        self.position = position


@dataclass(frozen=True)
class Predictions:
    """A teacher's predictions at some positions, before they are stored.

    Attributes:
        logits_PV: float32.
        hidden_PH: float32, the input of its decoder.
        random_P: float64 in (0, 1), a random number per position for sampling.
    """

    logits_PV: torch.Tensor
    hidden_PH: torch.Tensor
    random_P: torch.Tensor

    @cached_property
    def log_z_P(self) -> torch.Tensor:
        """Log of the sum of exp(logit), float32. Cached, because a pass over all logits is expensive."""
        return self.logits_PV.logsumexp(dim=1)


@dataclass(frozen=True)
class Dense:
    """Distributions in full: probability_PV, float32."""

    probability_PV: torch.Tensor

    def part(self, start: int, stop: int) -> Dense:
        """The distributions of the positions ``start`` to ``stop`` (exclusive)."""
        return Dense(self.probability_PV[start:stop])

    def to(self, device: torch.device) -> Dense:
        return Dense(self.probability_PV.to(device))


@dataclass(frozen=True)
class Sparse:
    """Distributions with only some of their entries.

    Attributes:
        position_E: int64, the position of each entry, ascending.
        token_E: int64, its id.
        probability_E: float32.
        rest_P: float32, the total probability of all other tokens.
    """

    position_E: torch.Tensor
    token_E: torch.Tensor
    probability_E: torch.Tensor
    rest_P: torch.Tensor

    def part(self, start: int, stop: int) -> Sparse:
        import torch

        low, high = torch.searchsorted(self.position_E, self.position_E.new_tensor([start, stop])).tolist()
        position_E, token_E, probability_E = (
            part[low:high] for part in (self.position_E, self.token_E, self.probability_E)
        )
        return Sparse(position_E - start, token_E, probability_E, self.rest_P[start:stop])

    def to(self, device: torch.device) -> Sparse:
        parts = (self.position_E, self.token_E, self.probability_E, self.rest_P)
        return Sparse(*(part.to(device) for part in parts))


Distribution = Dense | Sparse


def lists(values: np.ndarray[Any, Any], counts_P: np.ndarray[Any, Any], kind: pa.DataType) -> pa.ListArray:
    """A list per position from all values end to end, with ``counts_P`` of them each."""
    offsets = np.concatenate([[0], np.cumsum(counts_P)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values).cast(kind))


def rectangle(column: pa.Array, dtype: Any) -> np.ndarray[Any, Any]:
    """A column of lists of the same length as an array [P, W]."""
    flat: np.ndarray[Any, Any] = column.flatten().to_numpy(zero_copy_only=False)
    return flat.astype(dtype, copy=False).reshape(len(column), -1)


def half_bits(values_PK: torch.Tensor) -> np.ndarray[Any, Any]:
    """Returns float16 numbers as uint16 bits, because DuckDB cannot read float16 with BYTE_STREAM_SPLIT encoding.

    Raises:
        BeyondHalfError: if a number is too large for it.
    """
    low, high = values_PK.aminmax()
    if not -MOST_IN_HALF <= low <= high <= MOST_IN_HALF:
        # The negated comparison also finds NaN, for which every comparison is false.
        position, place = (~(values_PK.abs() <= MOST_IN_HALF)).nonzero()[0].tolist()
        raise BeyondHalfError(float(values_PK[position, place]), position)
    return values_PK.half().cpu().contiguous().numpy().view(np.uint16)


def from_half_bits(column: pa.Array) -> torch.Tensor:
    """Returns a column of the output of `half_bits` as float32, [P, W]."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(rectangle(column, np.uint16)).view(np.float16).astype(np.float32))


def wrong_width(column: pa.Array, width: int) -> str | None:
    """Returns a problem if a position's list has another length."""
    wrong = pc.any(pc.not_equal(pc.list_value_length(column), width)).as_py()
    return f"a position has not {width} numbers" if wrong else None


def not_finite(columns: Columns, *names: str) -> str | None:
    """Returns a problem if a column contains NaN or Inf, in float16 bits or in float32."""
    for name in names:
        column = columns[name]
        numbers = column.flatten() if pa.types.is_list(column.type) else column
        values = numbers.to_numpy(zero_copy_only=False)
        if not np.isfinite(values.view(np.float16) if values.dtype == np.uint16 else values).all():
            return f"{name} is NaN or Inf somewhere"
    return None


def unknown_id(vocabulary_size: int, candidates: pa.Array) -> str | None:
    """Returns a problem if an id is not in the vocabulary."""
    top = pc.max(candidates.flatten()).as_py()
    return f"candidate {top} is beyond the vocabulary" if top >= vocabulary_size else None


class Codec(Part):
    """A way to store distributions over the vocabulary, with its settings, as part of a set's record.

    Attributes:
        card_line: its columns, as a row of the card's table.
        is_lossless: whether other codecs can be made from its columns.
        needs_decoder: whether it stores the input of the teacher's last layer, which is then needed for reading.
        name: of the codec.
        vocabulary_size: V.
    """

    card_line: ClassVar[str]
    is_lossless: ClassVar[bool] = False
    needs_decoder: ClassVar[bool] = False

    name: str
    # Bounded, because the record may be hostile and readers allocate arrays of this size.
    vocabulary_size: int = Field(ge=2, le=MAX_VOCABULARY)

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def fields(self) -> dict[str, pa.DataType]:
        """The columns' names, with the type of one position's entry."""

    def columns(self) -> list[pa.Field]:
        """The columns of a file, with a list entry per masked position of a row."""
        return [pa.field(name, pa.list_(kind), nullable=False) for name, kind in self.fields().items()]

    @abstractmethod
    def encode(self, predictions: Predictions) -> tuple[dict[str, pa.Array], torch.Tensor]:
        """Returns the columns, one entry per position, and mass_P, the teacher's probability of the kept tokens.

        Raises:
            BeyondHalfError: if a number that is stored as float16 is too large for it.
        """

    @abstractmethod
    def decode(self, columns: Columns, temperature: float, decoder: Decoder | None = None) -> Distribution:
        """The distributions at a temperature that the codec honours."""

    @abstractmethod
    def problem(self, columns: Columns) -> str | None:
        """Returns the problem with stored columns, or None."""

    @property
    def stored_temperature(self) -> float:
        """Returns a temperature at which the distribution can be decoded."""
        return 1.0

    def honours(self, temperature: float) -> bool:
        """Whether the distribution at this temperature can be decoded."""
        # A codec that drops tokens cannot rescale: the normalizer at another temperature needs the dropped logits.
        return self.is_lossless or temperature == self.stored_temperature

    @abstractmethod
    def num_bytes(self) -> float:
        """Returns the approximate bytes of a position on disk, measured on a small BERT's predictions on Wikipedia."""

    @abstractmethod
    def candidates_sql(self) -> tuple[str, str]:
        """SQL for the kept ids of a position and their probabilities, as two lists."""

    def predictions(self, columns: Columns, decoder: Decoder | None, random_P: torch.Tensor) -> Predictions:
        """Returns the teacher's predictions from the columns of a lossless codec. ``random_P`` is used for sampling."""
        raise AssertionError(f"codec {self} is not lossless. Callers check `is_lossless` first")
