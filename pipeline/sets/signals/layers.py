"""The signals of a teacher's layers: ``states``, ``cls``, ``attention`` and ``values``.

Hidden states are stored of every token, or of the first one. Attention and values are a square matrix of numbers for
each head, stored row by row.

Shapes: T tokens of some rows, H hidden size, R rows, L tokens of a row, A heads, K numbers of a square that are kept.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field, model_validator

from pipeline.arrays import Bools, Floats, Ints
from pipeline.files import is_plain, sha256
from pipeline.sets.codec_text import BlockCodecName
from pipeline.sets.codecs.vectors import BASIS_FILE, INT8_MAX, AnyStateCodec, Basis, read_basis
from pipeline.sets.record_parts import LayersName, Sha256
from pipeline.sets.signals.signal import MAX_HEADS, MAX_LAYER, LayerSignal, Numbers, Stored, own_file

HEADER_BYTES = 2**20
MEANINGS = {
    "float32": "numbers",
    "float16": "numbers, bits of float16",
    "int8": "integers, to be multiplied by the scale of their token",
    "pca": "integers along the layer's components in `basis.safetensors`, the largest first",
}


class States(LayerSignal):
    """A list of L·K numbers per row and layer, token after token.

    Attributes:
        codec: the codec of the states.
        basis_sha256: hash of the signal's ``basis.safetensors``, for a codec that needs one.
        variance_lost: the share of the states' variance that the basis leaves out, for each layer, measured on the
            states it was fitted to. None where it was not recorded.
    """

    name: ClassVar[LayersName] = "states"
    title: ClassVar[str] = "states of layers"
    meaning: ClassVar[str] = "The hidden states of every token, one after the other."

    codec: AnyStateCodec
    basis_sha256: Sha256 | None = None
    variance_lost: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = Field(None, max_length=MAX_LAYER)

    @model_validator(mode="after")
    def _basis_fits(self) -> Self:
        if self.basis_sha256 and not self.codec.basis_bytes:
            raise ValueError(f"basis_sha256: the codec {self.codec} has no basis")
        if self.variance_lost is not None and (not self.basis_sha256 or len(self.variance_lost) != len(self.layers)):
            raise ValueError("variance_lost: is required for each layer if states have a basis")
        return self

    def __str__(self) -> str:
        return f"{self.name} of {self.layers_text()}, codec {str(self.codec)!r}"

    @property
    def how(self) -> str:
        return str(self.codec)

    @property
    def basis_path(self) -> str:
        return f"{self.name}/{BASIS_FILE}"

    def tokens(self, length_R: Ints) -> Ints:
        """Returns the number of tokens with the signal in rows of these lengths."""
        return length_R

    def column_types(self) -> dict[str, pa.DataType]:
        types = {column.name: column.type for column in self.codec.columns()}
        scale = {"_scale": types["scale"]} if "scale" in types else {}
        return {"": types["vector"].value_type, **scale}

    def sizes(self, length_R: Ints) -> dict[str, Ints]:
        token_R = self.tokens(length_R)
        sizes = {"": token_R * self.codec.num_stored, "_scale": token_R}
        return {end: sizes[end] for end in self.column_types()}

    def num_floats(self, length_R: Ints) -> Ints:
        return self.tokens(length_R) * self.codec.width

    def encode(self, outputs: Sequence[Floats], basis: Basis | None = None) -> Stored:
        """Arrays are [L, H] for each row."""
        states_TH = np.concatenate([np.empty((0, self.codec.width), dtype=np.float32), *outputs])
        columns = self.codec.encode(states_TH, basis)
        stored = {"": columns["vector"].flatten().to_numpy(zero_copy_only=False)}
        return stored | ({"_scale": columns["scale"].to_numpy(zero_copy_only=False)} if "scale" in columns else {})

    def decode(self, stored: Stored, length_R: Ints, basis: Basis | None = None) -> list[Floats]:
        """Arrays are [L, H] for each row."""
        states_TH = self.codec.decode(self._columns(stored), basis)
        return np.split(states_TH, np.cumsum(self.tokens(length_R))[:-1]) if len(length_R) else []

    def num_cut_off(self, rows: pa.Table) -> int:
        """Numbers exactly at the end of the range are also counted."""
        if self.codec.name != "pca":
            return 0
        numbers = (self.stored_in(rows, layer)[""] for layer in self.layers)
        return int(sum((np.abs(part.astype(np.int16)) == INT8_MAX).sum() for part in numbers))

    def numbers_problem(self, stored: Stored) -> str | None:
        return self.codec.problem(self._columns(stored))

    def num_bytes(self, length_R: Ints) -> float:
        return float(self.tokens(length_R).sum() * self.codec.num_bytes())

    def files(self) -> dict[str, int]:
        # The limit of a download: a hostile place must not send more than the codec can need.
        most = len(self.layers) * self.codec.basis_bytes + HEADER_BYTES
        return super().files() | ({self.basis_path: most} if self.codec.basis_bytes else {})

    def hashes(self) -> dict[str, str]:
        return super().hashes() | ({self.basis_path: self.basis_sha256} if self.basis_sha256 else {})

    def check_files(self, root: Path) -> None:
        self.read_bases(root)

    def read_bases(self, root: Path) -> Mapping[int, Basis]:
        if not self.codec.basis_bytes:
            return {}
        return self.bases_in(own_file(root, self.basis_path, self.basis_sha256, "basis"))

    def with_basis(self, path: Path) -> Self:
        """Returns the signal with a record's entries of its existing basis.

        Raises:
            IntegrityError: if it is missing or damaged, or has other bases.
        """
        lost = tuple(round(basis.variance_lost, 6) for basis in self.bases_in(path).values())
        return self.model_copy(update={"basis_sha256": sha256(path), "variance_lost": lost})

    def without_basis(self) -> Self:
        # Files that were written with the old basis have to be written again, too.
        unmeasured = tuple(shard.unmeasured() for shard in self.shards)
        return self.model_copy(update={"basis_sha256": None, "variance_lost": None, "shards": unmeasured})

    def has_basis(self, path: Path) -> bool:
        """Whether the file of a basis exists and matches the record, if there is an entry."""
        # Before the first file is recorded, any basis is acceptable. Afterwards, only the recorded one is.
        return is_plain(path) and self.basis_sha256 in (None, sha256(path))

    def bases_in(self, path: Path) -> dict[int, Basis]:
        """Returns the basis of each layer from an untrusted file.

        Raises:
            IntegrityError: if it is missing or damaged, or has other bases.
        """
        stored, width = self.codec.num_stored, self.codec.width
        return {layer: read_basis(path, stored, width, f"{layer}.") for layer in self.layers}

    def column_meanings(self) -> dict[str, str]:
        text = f"{self.codec.num_stored} {MEANINGS[self.codec.name]}, a token"
        if self.variance_lost is not None:
            shares = ", ".join(f"{share:.1%}" for share in self.variance_lost)
            text += f". Left out of the variance of each layer: {shares}"
        return {"": text} | ({"_scale": "a number a token"} if "_scale" in self.column_types() else {})

    def _columns(self, stored: Stored) -> pa.Table:
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(stored[""]), self.codec.num_stored)
        scale = {"scale": pa.array(stored["_scale"])} if "_scale" in stored else {}
        return pa.table({"vector": vectors, **scale})


class Cls(States):
    """The hidden states of only the first token, ``[CLS]``: K numbers per row and layer."""

    name: ClassVar[LayersName] = "cls"
    title: ClassVar[str] = "states of [CLS]"
    meaning: ClassVar[str] = "The hidden state of the first token, `[CLS]`."

    def tokens(self, length_R: Ints) -> Ints:
        return np.ones_like(length_R)


ENDS = ("", "_low", "_high")
U8_TYPES = (pa.uint8(), pa.uint16(), pa.uint16())
MOST = 255  # largest stored number (uint8)
DISK_SHARE = 0.95  # measured: quantized numbers hardly compress


class Blocks(LayerSignal):
    """A list of A·K numbers per row and layer, head after head.

    Attributes:
        numbers: their name in the card.
        is_symmetric: whether only the numbers from the diagonal on are stored.
        heads: A.
        codec: ``float32`` or ``u8``, which stores integers between the minimum (``_low``) and the maximum (``_high``)
            of a head and token.
    """

    numbers: ClassVar[str]
    is_symmetric: ClassVar[bool] = False

    heads: int = Field(ge=1, le=MAX_HEADS)
    codec: BlockCodecName = "u8"

    def __str__(self) -> str:
        return f"{self.name} of {self.layers_text()}, {self.heads} heads, codec {self.codec!r}"

    @property
    def how(self) -> str:
        return self.codec

    def kept(self, length: int) -> Bools:
        """Returns which numbers of a square are stored [L, L]: all, or those from the diagonal on."""
        every_LL = np.ones((length, length), dtype=bool)
        return np.triu(every_LL) if self.is_symmetric else every_LL

    def column_types(self) -> dict[str, pa.DataType]:
        return {"": pa.float32()} if self.codec == "float32" else dict(zip(ENDS, U8_TYPES, strict=True))

    def sizes(self, length_R: Ints) -> dict[str, Ints]:
        kept_R = length_R * (length_R + 1) // 2 if self.is_symmetric else length_R**2
        sizes = {"": self.heads * kept_R, **dict.fromkeys(ENDS[1:], self.heads * length_R)}
        return {end: sizes[end] for end in self.column_types()}

    def num_floats(self, length_R: Ints) -> Ints:
        return self.heads * length_R**2

    def num_bytes(self, length_R: Ints) -> float:
        return DISK_SHARE * float(self.stored_bytes(length_R).sum())

    def encode(self, outputs: Sequence[Floats], basis: Basis | None = None) -> Stored:
        """Arrays are [A, L, L] for each row."""
        kept = [self.kept(block_ALL.shape[1]) for block_ALL in outputs]
        if self.codec == "float32":
            return {"": _joined([block[:, mask] for block, mask in zip(outputs, kept, strict=True)], np.float32)}
        parts = [_quantised(block, mask) for block, mask in zip(outputs, kept, strict=True)]
        number, low, high = (
            _joined([part[k] for part in parts], (np.uint8, np.float16, np.float16)[k]) for k in range(3)
        )
        return {"": number, "_low": low.view(np.uint16), "_high": high.view(np.uint16)}

    def decode(self, stored: Stored, length_R: Ints, basis: Basis | None = None) -> list[Floats]:
        """Arrays are [A, L, L] for each row."""
        sizes = self.sizes(length_R)
        parts = {end: np.split(stored[end], np.cumsum(sizes[end])[:-1]) for end in sizes}
        blocks = []
        for row, length in enumerate(length_R.tolist()):
            mask_LL = self.kept(length)
            block_ALL = np.zeros((self.heads, length, length), dtype=np.float32)
            block_ALL[:, mask_LL] = parts[""][row].reshape(self.heads, -1)
            if self.codec == "u8":
                low_AL, high_AL = (_halves(parts[end][row]).reshape(self.heads, length) for end in ENDS[1:])
                block_ALL = low_AL[..., None] + block_ALL * ((high_AL - low_AL) / MOST)[..., None]
                block_ALL[:, ~mask_LL] = 0
            blocks.append(block_ALL + np.triu(block_ALL, 1).swapaxes(1, 2) if self.is_symmetric else block_ALL)
        return blocks

    def numbers_problem(self, stored: Stored) -> str | None:
        if self.codec == "float32":
            return None if np.isfinite(stored[""]).all() else "a number is NaN or Inf"
        low, high = (_halves(stored[end]) for end in ENDS[1:])
        is_sound = np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()
        return None if is_sound else "the range of a token's numbers is NaN or Inf, or ends below its beginning"

    def column_meanings(self) -> dict[str, str]:
        if self.codec == "float32":
            return {"": self.numbers}
        return {
            "": f"{self.numbers}, each q of them `low + q / 255 * (high - low)`",
            "_low": "the minimum of each head and token, bits of float16",
            "_high": "the greatest",
        }


def _quantised(block_ALL: Floats, mask_LL: Bools) -> tuple[npt.NDArray[np.uint8], Floats, Floats]:
    """Returns integers [A, K], and minimum and maximum of each head and token, float16 [A, L]."""
    with np.errstate(over="ignore"):
        # The range is rounded to float16 before the step is computed, so that encoding and decoding use the same grid.
        low_AL = block_ALL.min(axis=2, where=mask_LL, initial=np.inf).astype(np.float16)
        high_AL = block_ALL.max(axis=2, where=mask_LL, initial=-np.inf).astype(np.float16)
    step_AL = (high_AL.astype(np.float32) - low_AL.astype(np.float32)) / MOST
    with np.errstate(invalid="ignore"):
        # A constant row has the step 0. Dividing by 1 instead gives 0, which decodes to the constant.
        number_ALL = (block_ALL - low_AL[..., None].astype(np.float32)) / np.where(step_AL > 0, step_AL, 1)[..., None]
        # Masked numbers and float16 rounding of the range can lie outside it, so the result is clipped.
        rounded_ALL = np.rint(number_ALL).clip(0, MOST).astype(np.uint8)
    return rounded_ALL[:, mask_LL], low_AL, high_AL


def _joined(parts: Sequence[Numbers], dtype: Any) -> Numbers:
    return np.concatenate([np.empty(0, dtype=dtype), *(part.ravel() for part in parts)])


def _halves(bits: Numbers) -> Floats:
    return np.ascontiguousarray(bits).view(np.float16).astype(np.float32)


class Attention(Blocks):
    """The scaled products of queries and keys of each head, before softmax and mask. Each row is a query."""

    name: ClassVar[LayersName] = "attention"
    title: ClassVar[str] = "attention of layers"
    meaning: ClassVar[str] = "Attention scores before softmax and mask, head after head, query after query."
    numbers: ClassVar[str] = "heads · length · length numbers"


class Values(Blocks):
    """The scaled products of the attention's values with each other (MiniLM): the upper half of each symmetric square.

    With 128 tokens it is as large as the values themselves. With fewer tokens it is smaller.
    """

    name: ClassVar[LayersName] = "values"
    title: ClassVar[str] = "value relations of layers"
    meaning: ClassVar[str] = (
        "Products of the attention's values before softmax, head after head, token after token: the upper half of a "
        "symmetric square, the diagonal included."
    )
    numbers: ClassVar[str] = "heads · length · (length + 1) / 2 numbers"
    is_symmetric: ClassVar[bool] = True
