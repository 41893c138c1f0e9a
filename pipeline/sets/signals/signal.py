"""The base classes of signals: of rows or the vocabulary, and of a teacher's layers.

Signals of layers are too large for the files of the rows, so each has a folder of its own. A file there covers the same
source rows as one of ``examples``, and has a row with the same key for each row with the signal. The numbers belong to
the tokens that the teacher read, including special ones, without padding.

Shapes: R rows, L tokens of a row.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field, model_validator

from pipeline.arrays import Floats, Ints
from pipeline.errors import IntegrityError
from pipeline.files import is_plain, sha256
from pipeline.sets.codecs.vectors import Basis
from pipeline.sets.record_parts import LayerRows, LayersName, Part, Shard


class Signal(Part):
    """A kind of teacher output for rows or for its vocabulary, and how it is stored, as part of a set's record.

    Attributes:
        title: the content of a set with it.
        task_category: the hub's category of models with such outputs.
        is_in_rows: whether it is in the files of the rows. Other signals come last, and can be added to a finished set.
    """

    title: ClassVar[str]
    task_category: ClassVar[str]
    is_in_rows: ClassVar[bool] = True

    @abstractmethod
    def __str__(self) -> str:
        """Returns its settings in a few words."""

    def columns(self) -> list[pa.Field]:
        """Returns its columns in the files of the rows, which follow those of the rows."""
        return []

    def card_lines(self) -> str:
        """Returns these columns, as lines of the card's table."""
        return ""

    def card_section(self) -> str:
        """Returns an additional section of the card about it."""
        return ""

    def configs(self) -> list[dict[str, Any]]:
        """Returns its configurations of `datasets.load_dataset`, for the card's front matter."""
        return []

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Returns the facts about it for a page, by name."""

    def problem(self, rows: pa.Table) -> str | None:
        """Returns the problem of the signal's columns of some rows, or None."""
        return None

    def files(self) -> dict[str, int]:
        """Returns its files besides the shards, with the maximum size of each."""
        return {}

    def hashes(self) -> dict[str, str]:
        """Returns the SHA-256 of its files in the record."""
        return {}

    def check_files(self, root: Path) -> None:
        """Raises IntegrityError unless these files in the set's folder belong to it."""

    def measured(self, root: Path) -> Self:
        """Returns the signal with the hashes of these files, once they are written."""
        return self


def own_file(root: Path, name: str, digest: str | None, title: str) -> Path:
    """Returns the path of a set's file that is not a shard, after comparing its SHA-256.

    Raises:
        IntegrityError: if it is missing or was changed.
    """
    # Resolved, because the set's own folder may be a link, but its files may not.
    path = root.resolve() / name
    if not is_plain(path) or sha256(path) != digest:
        raise IntegrityError(f"{path}: missing, or not the {title} of this set. Pull it, or repeat the set's command.")
    return path


MAX_LAYER, MAX_HEADS, MAX_LAYER_SHARDS = 999, 2**10, 2**16
KEY_FIELDS = [
    pa.field("split", pa.string(), nullable=False),
    pa.field("source_row", pa.int64(), nullable=False),
    pa.field("variant", pa.int32(), nullable=False),
    pa.field("length", pa.uint16(), nullable=False),
]
LayerNumber = Annotated[int, Field(ge=0, le=MAX_LAYER)]
Numbers = npt.NDArray[Any]
# The stored numbers of one layer of some rows, end to end, by the suffix of the column's name.
Stored = dict[str, Numbers]


class LayerSignal(Signal):
    """Outputs of a teacher's layers for rows.

    Attributes:
        name: the name of the signal and of its folder, and the prefix of its columns.
        layers: the numbers of the layers. 0 is the output of the embeddings.
        of: the rows with the signal: only the task's own rows, or also variants and unlabelled rows.
        shards: its files, for the same source rows as those of the examples, in the same order.
    """

    task_category: ClassVar[str] = "feature-extraction"
    is_in_rows: ClassVar[bool] = False
    name: ClassVar[LayersName]
    meaning: ClassVar[str]

    layers: tuple[LayerNumber, ...] = Field(min_length=1, max_length=MAX_LAYER)
    of: LayerRows = "originals"
    # Records come from elsewhere: without fail_fast a million invalid shards would make a million messages.
    shards: tuple[Shard, ...] = Field((), max_length=MAX_LAYER_SHARDS, fail_fast=True)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if list(self.layers) != sorted(set(self.layers)):
            raise ValueError("its layers do not ascend")
        # Otherwise a record could point at files of another signal, or of the rows, and have them overwritten.
        if any(shard.folder != self.name for shard in self.shards):
            raise ValueError(f"a file does not lie in the folder {self.name!r}")
        return self

    @property
    @abstractmethod
    def how(self) -> str:
        """The name of its codec."""

    @abstractmethod
    def column_types(self) -> dict[str, pa.DataType]:
        """Returns the types of the numbers in the columns of a layer, by the suffixes of their names."""

    @abstractmethod
    def sizes(self, length_R: Ints) -> dict[str, Ints]:
        """Returns how many numbers each of these columns has in rows of so many tokens."""

    @abstractmethod
    def encode(self, outputs: Sequence[Floats], basis: Basis | None = None) -> Stored:
        """Encodes one layer of some rows. ``outputs`` has an array for each row."""

    @abstractmethod
    def decode(self, stored: Stored, length_R: Ints, basis: Basis | None = None) -> list[Floats]:
        """Decodes one layer of some rows to an array of float32 for each row."""

    @abstractmethod
    def numbers_problem(self, stored: Stored) -> str | None:
        """Returns the problem of stored numbers, or None."""

    @abstractmethod
    def num_bytes(self, length_R: Ints) -> float:
        """Returns the approximate size on disk of a layer of rows with so many tokens."""

    def num_floats(self, length_R: Ints) -> Ints:
        """Returns the number of a layer's outputs for rows of these lengths in tokens."""
        return self.sizes(length_R)[""]

    def num_cut_off(self, rows: pa.Table) -> int:
        """Returns how many numbers of some rows of a file were clipped."""
        return 0

    def file_schema(self) -> pa.Schema:
        types = {
            f"{self.name}_{layer}{end}": kind for layer in self.layers for end, kind in self.column_types().items()
        }
        return pa.schema(
            [*KEY_FIELDS, *(pa.field(name, pa.list_(kind), nullable=False) for name, kind in types.items())]
        )

    def stored_as(self) -> dict[str, Any]:
        """Returns everything besides the fingerprint that determines the content of its files.

        It is stored in each footer.
        """
        # Shards and lost variance are results of writing the files, not settings that the files depend on.
        return self.model_dump(mode="json", exclude={"shards", "variance_lost"}, exclude_none=True)

    def choices(self) -> dict[str, Any]:
        """Returns the part of these settings that the user chooses, which excludes a computed basis."""
        return {name: value for name, value in self.stored_as().items() if name != "basis_sha256"}

    def is_stored_as(self, other: "LayerSignal") -> bool:
        """Whether the user chose the same settings for another signal of its kind."""
        return self.choices() == other.choices()

    def stored_bytes(self, length_R: Ints) -> Ints:
        """Returns the stored bytes of a layer of rows with so many tokens, before compression [R]."""
        kinds = self.column_types()
        return sum((size_R * (kinds[end].bit_width // 8) for end, size_R in self.sizes(length_R).items()), 0 * length_R)

    def read_bases(self, root: Path) -> Mapping[int, Basis]:
        """Returns the basis of each layer from the set in ``root``. Empty if the codec needs no basis.

        Raises:
            IntegrityError: if the file is missing or was changed, or is not a basis.
        """
        return {}

    def table(
        self, keys: pa.Table, length_R: Ints, outputs: Mapping[int, Sequence[Floats]], bases: Mapping[int, Basis]
    ) -> pa.Table:
        """The rows of a file.

        Args:
            keys: the ``split``, ``source_row`` and ``variant`` of the rows.
            length_R: their numbers of tokens.
            outputs: an array per row, by layer.
            bases: the bases by layer, for a codec that needs them.
        """
        columns = [*keys.columns, pa.array(length_R.astype(np.uint16))]
        sizes = self.sizes(length_R)
        for layer in self.layers:
            stored = self.encode(outputs[layer], bases.get(layer))
            for end in self.column_types():
                offsets = np.concatenate([[0], np.cumsum(sizes[end])]).astype(np.int32)
                columns.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(stored[end])))
        return pa.table(columns, schema=self.file_schema())

    def stored_in(self, rows: pa.Table, layer: int) -> Stored:
        """Returns the stored numbers of a layer for some rows of a file."""
        return {end: _flat(rows.column(f"{self.name}_{layer}{end}")) for end in self.column_types()}

    def rows_problem(self, rows: pa.Table) -> str | None:
        """Returns the problem of some rows of its files apart from their keys, or None."""
        length = rows.column("length")
        if length.null_count:
            return "a length is null"
        sizes = self.sizes(length.to_numpy().astype(np.int64))
        for layer in self.layers:
            for end, size_R in sizes.items():
                name = f"{self.name}_{layer}{end}"
                lists = rows.column(name).combine_chunks()
                if lists.null_count or lists.flatten().null_count:
                    return f"{name} is null somewhere"
                if not np.array_equal(np.diff(lists.offsets.to_numpy()), size_R):
                    return f"{name} has a wrong number of entries for rows of these lengths"
            problem = self.numbers_problem(self.stored_in(rows, layer))
            if problem:
                return f"layer {layer}: {problem}"
        return None

    def files(self) -> dict[str, int]:
        return {shard.path: shard.bytes or 0 for shard in self.shards}

    def hashes(self) -> dict[str, str]:
        return {shard.path: shard.sha256 or "" for shard in self.shards}

    def configs(self) -> list[dict[str, Any]]:
        splits = dict.fromkeys(shard.split for shard in self.shards)
        files = [{"split": split, "path": f"{self.name}/{split}-*.parquet"} for split in splits]
        return [{"config_name": self.name, "data_files": files}]

    def facts(self) -> dict[str, Any]:
        size = sum(shard.bytes or 0 for shard in self.shards)
        return {self.name: f"{self}, {sum(shard.rows or 0 for shard in self.shards):,} rows, {size:,} bytes"}

    def card_section(self) -> str:
        rows = "\n".join(
            f"| `{self.name}_{self.layers[0]}{end}`, … | {text} |" for end, text in self.column_meanings().items()
        )
        return f"""
## Columns of `{self.name}/`

{self.meaning} Of layers {", ".join(map(str, self.layers))} (0: the embeddings), of {_WHICH[self.of]}; no padding.

| column | meaning |
|---|---|
| `split`, `source_row`, `variant` | the key, as in `examples/` |
| `length` | tokens that the teacher read, special ones included |
{rows}
"""

    @abstractmethod
    def column_meanings(self) -> dict[str, str]:
        """The card's description of the columns of a layer, by the endings of their names."""

    def layers_text(self) -> str:
        return f"layer{'s' if len(self.layers) > 1 else ''} {', '.join(map(str, self.layers))}"


_WHICH = {"originals": "the task's own rows", "all": "all rows"}


def _flat(column: pa.ChunkedArray) -> Numbers:
    numbers: Numbers = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return numbers
