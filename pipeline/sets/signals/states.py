"""The signals ``states`` and ``cls``: hidden states of a teacher's layers, of every token and of the first one.

Shapes: T tokens of some rows, H hidden size, R rows, L tokens of a row.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from pipeline.arrays import Floats, Ints
from pipeline.errors import IntegrityError
from pipeline.files import is_plain, sha256
from pipeline.sets.record_parts import LayersName, Sha256
from pipeline.sets.signals.signal import MAX_LAYER, LayerSignal, Stored
from pipeline.sets.vector_codecs import BASIS_FILE, INT8_MAX, AnyStateCodec, Basis, read_basis

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
        """See `LayerSignal`."""
        return str(self.codec)

    @property
    def basis_path(self) -> str:
        """The path of its basis in a set."""
        return f"{self.name}/{BASIS_FILE}"

    def tokens(self, length_R: Ints) -> Ints:
        """Returns the number of tokens with the signal in rows of these lengths."""
        return length_R

    def column_types(self) -> dict[str, pa.DataType]:
        """See `LayerSignal`."""
        types = {column.name: column.type for column in self.codec.columns()}
        scale = {"_scale": types["scale"]} if "scale" in types else {}
        return {"": types["vector"].value_type, **scale}

    def sizes(self, length_R: Ints) -> dict[str, Ints]:
        """See `LayerSignal`."""
        token_R = self.tokens(length_R)
        sizes = {"": token_R * self.codec.num_stored, "_scale": token_R}
        return {end: sizes[end] for end in self.column_types()}

    def num_floats(self, length_R: Ints) -> Ints:
        """See `LayerSignal`."""
        return self.tokens(length_R) * self.codec.width

    def encode(self, outputs: Sequence[Floats], basis: Basis | None = None) -> Stored:
        """See `LayerSignal`. Arrays are [L, H] for each row."""
        states_TH = np.concatenate([np.empty((0, self.codec.width), dtype=np.float32), *outputs])
        columns = self.codec.encode(states_TH, basis)
        stored = {"": columns["vector"].flatten().to_numpy(zero_copy_only=False)}
        return stored | ({"_scale": columns["scale"].to_numpy(zero_copy_only=False)} if "scale" in columns else {})

    def decode(self, stored: Stored, length_R: Ints, basis: Basis | None = None) -> list[Floats]:
        """See `LayerSignal`. Arrays are [L, H] for each row."""
        states_TH = self.codec.decode(self._columns(stored), basis)
        return np.split(states_TH, np.cumsum(self.tokens(length_R))[:-1]) if len(length_R) else []

    def num_cut_off(self, rows: pa.Table) -> int:
        """See `LayerSignal`. Numbers exactly at the end of the range are also counted."""
        if self.codec.name != "pca":
            return 0
        numbers = (self.stored_in(rows, layer)[""] for layer in self.layers)
        return int(sum((np.abs(part.astype(np.int16)) == INT8_MAX).sum() for part in numbers))

    def numbers_problem(self, stored: Stored) -> str | None:
        """See `LayerSignal`."""
        return self.codec.problem(self._columns(stored))

    def num_bytes(self, length_R: Ints) -> float:
        """See `LayerSignal`."""
        return float(self.tokens(length_R).sum() * self.codec.num_bytes())

    def files(self) -> dict[str, int]:
        """Its files, and the basis if the codec needs one."""
        # The limit of a download: a hostile place must not send more than the codec can need.
        most = len(self.layers) * self.codec.basis_bytes + HEADER_BYTES
        return super().files() | ({self.basis_path: most} if self.codec.basis_bytes else {})

    def hashes(self) -> dict[str, str]:
        """See `Signal`."""
        return super().hashes() | ({self.basis_path: self.basis_sha256} if self.basis_sha256 else {})

    def check_files(self, root: Path) -> None:
        """See `Signal`."""
        self.read_bases(root)

    def read_bases(self, root: Path) -> Mapping[int, Basis]:
        """See `LayerSignal`."""
        if not self.codec.basis_bytes:
            return {}
        path = root / self.basis_path
        if not is_plain(path) or sha256(path) != self.basis_sha256:
            raise IntegrityError(f"{path}: missing, or not the basis that belongs to this set")
        return self.bases_in(path)

    def with_basis(self, path: Path) -> Self:
        """Returns the signal with a record's entries of its existing basis.

        Raises:
            IntegrityError: if it is missing or damaged, or has other bases.
        """
        shares = [basis.variance_lost for basis in self.bases_in(path).values()]
        lost = None if None in shares else tuple(round(share or 0.0, 6) for share in shares)
        return self.model_copy(update={"basis_sha256": sha256(path), "variance_lost": lost})

    def without_basis(self) -> Self:
        """Returns the signal without a basis and without files."""
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
        """See `LayerSignal`."""
        text = f"{self.codec.num_stored} {MEANINGS[self.codec.name]}, a token"
        if self.variance_lost is not None:
            shares = ", ".join(f"{share:.1%}" for share in self.variance_lost)
            text += f". Left out of the variance of each layer: {shares}"
        return {"": text} | ({"_scale": "a number a token"} if "_scale" in self.column_types() else {})

    def _columns(self, stored: Stored) -> pa.Table:
        """Returns the stored numbers as the codec's columns."""
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(stored[""]), self.codec.num_stored)
        scale = {"scale": pa.array(stored["_scale"])} if "_scale" in stored else {}
        return pa.table({"vector": vectors, **scale})


class Cls(States):
    """The hidden states of only the first token, ``[CLS]``: K numbers per row and layer."""

    name: ClassVar[LayersName] = "cls"
    title: ClassVar[str] = "states of [CLS]"
    meaning: ClassVar[str] = "The hidden state of the first token, `[CLS]`."

    def tokens(self, length_R: Ints) -> Ints:
        """See `States`."""
        return np.ones_like(length_R)
