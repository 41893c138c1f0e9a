"""The base classes of signals: of rows or the vocabulary, and of a teacher's layers.

Signals of layers are too heavy for the files of the rows, so each has a folder of its own. A file there stands for the
same source rows as one of ``examples``, and has a row for each of these rows that the signal is of, by the same keys.
Numbers are of the tokens that the teacher read, special ones included, without padding.

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
from pipeline.sets.record_parts import LayerRows, LayersName, Part, Shard
from pipeline.sets.vector_codecs import Basis


class Signal(Part):
    """A kind of teacher output for rows or for its vocabulary, and how it is stored, as part of a set's record.

    Attributes:
        title: what a set with it holds.
        task_category: the hub's name for models with such outputs.
        is_in_rows: whether it is in the files of the rows; what has its own comes last, and a set may get it later.
    """

    title: ClassVar[str]
    task_category: ClassVar[str]
    is_in_rows: ClassVar[bool] = True

    @abstractmethod
    def __str__(self) -> str:
        """Its settings in a few words."""

    def columns(self) -> list[pa.Field]:
        """Its columns in the files of the rows, after those of the rows."""
        return []

    def card_lines(self) -> str:
        """These columns, as rows of the card's table."""
        return ""

    def card_section(self) -> str:
        """Another section of the card about it."""
        return ""

    def configs(self) -> list[dict[str, Any]]:
        """What `datasets.load_dataset` can read of it besides the rows, for the card's front matter."""
        return []

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """The facts about it that a page shows, by name."""

    def problem(self, rows: pa.Table) -> str | None:
        """Returns what is wrong with the signal's columns of some rows, or None if nothing is."""
        return None

    def files(self) -> dict[str, int]:
        """Its files beside the shards, with the most bytes that each may have."""
        return {}

    def hashes(self) -> dict[str, str]:
        """The SHA-256 of its files that the record lists."""
        return {}

    def check_files(self, root: Path) -> None:
        """Raises IntegrityError unless these files, in the set's folder, are those that belong to it."""

    def measured(self, root: Path) -> Self:
        """The signal with the hashes of these files, once they are written."""
        return self


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
        name: of the signal, its folder, and what the names of its columns begin with.
        layers: whose; 0 is the output of the embeddings.
        of: of the task's own rows alone, or of variants and unlabelled rows, too.
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
        """The types of the numbers in the columns of a layer, by the endings of their names."""

    @abstractmethod
    def sizes(self, length_R: Ints) -> dict[str, Ints]:
        """How many numbers each of these columns has in rows of so many tokens."""

    @abstractmethod
    def encode(self, outputs: Sequence[Floats], basis: Basis | None = None) -> Stored:
        """What is stored of one layer of some rows; ``outputs`` has an array for each."""

    @abstractmethod
    def decode(self, stored: Stored, length_R: Ints, basis: Basis | None = None) -> list[Floats]:
        """An array of float32 for each of some rows, from what is stored of a layer."""

    @abstractmethod
    def numbers_problem(self, stored: Stored) -> str | None:
        """What is wrong with stored numbers, or None if nothing is."""

    @abstractmethod
    def num_bytes(self, length_R: Ints) -> float:
        """About how many bytes a layer of rows of so many tokens takes on disk."""

    def num_floats(self, length_R: Ints) -> Ints:
        """The number of a layer's outputs for rows of these lengths in tokens."""
        return self.sizes(length_R)[""]

    def num_cut_off(self, rows: pa.Table) -> int:
        """How many numbers of some rows of a file were too far from the others to be stored as they are."""
        return 0

    def file_schema(self) -> pa.Schema:
        """The columns of its files."""
        types = {
            f"{self.name}_{layer}{end}": kind for layer in self.layers for end, kind in self.column_types().items()
        }
        return pa.schema(
            [*KEY_FIELDS, *(pa.field(name, pa.list_(kind), nullable=False) for name, kind in types.items())]
        )

    def stored_as(self) -> dict[str, Any]:
        """Returns everything besides the fingerprint that decides the content of its files; stored in each footer."""
        # Shards and lost variance are results of writing the files, not settings that the files depend on.
        return self.model_dump(mode="json", exclude={"shards", "variance_lost"}, exclude_none=True)

    def choices(self) -> dict[str, Any]:
        """What of that is the user's to choose: a basis comes out as it does."""
        return {name: value for name, value in self.stored_as().items() if name != "basis_sha256"}

    def is_stored_as(self, other: "LayerSignal") -> bool:
        """Whether the user has chosen the same for another signal of its kind."""
        return self.choices() == other.choices()

    def stored_bytes(self, length_R: Ints) -> Ints:
        """Bytes of what is stored of a layer of rows of so many tokens, before compression [R]."""
        kinds = self.column_types()
        return sum((size_R * (kinds[end].bit_width // 8) for end, size_R in self.sizes(length_R).items()), 0 * length_R)

    def read_bases(self, root: Path) -> Mapping[int, Basis]:
        """The basis of each layer, from the set in ``root``; none where its codec needs none.

        Raises:
            IntegrityError: if the file is missing or was changed, or is no basis.
        """
        return {}

    def table(
        self, keys: pa.Table, length_R: Ints, outputs: Mapping[int, Sequence[Floats]], bases: Mapping[int, Basis]
    ) -> pa.Table:
        """The rows of a file.

        Args:
            keys: their ``split``, ``source_row`` and ``variant``.
            length_R: how many tokens they have.
            outputs: by layer, an array of each row.
            bases: by layer, for a codec that needs them.
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
        """What some rows of a file hold of a layer."""
        return {end: _flat(rows.column(f"{self.name}_{layer}{end}")) for end in self.column_types()}

    def rows_problem(self, rows: pa.Table) -> str | None:
        """What is wrong with some rows of its files, but for their keys, or None if nothing is."""
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
                    return f"{name} does not have as many numbers as rows of such lengths have"
            problem = self.numbers_problem(self.stored_in(rows, layer))
            if problem:
                return f"layer {layer}: {problem}"
        return None

    def files(self) -> dict[str, int]:
        """Its files, with their sizes."""
        return {shard.path: shard.bytes or 0 for shard in self.shards}

    def hashes(self) -> dict[str, str]:
        """See `Signal`."""
        return {shard.path: shard.sha256 or "" for shard in self.shards}

    def configs(self) -> list[dict[str, Any]]:
        """See `Signal`."""
        splits = dict.fromkeys(shard.split for shard in self.shards)
        files = [{"split": split, "path": f"{self.name}/{split}-*.parquet"} for split in splits]
        return [{"config_name": self.name, "data_files": files}]

    def facts(self) -> dict[str, Any]:
        """See `Signal`."""
        size = sum(shard.bytes or 0 for shard in self.shards)
        return {self.name: f"{self}, {sum(shard.rows or 0 for shard in self.shards):,} rows, {size:,} bytes"}

    def card_section(self) -> str:
        """See `Signal`."""
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
        """Its layers, in a few words."""
        return f"layer{'s' if len(self.layers) > 1 else ''} {', '.join(map(str, self.layers))}"


_WHICH = {"originals": "the task's own rows", "all": "all rows"}


def _flat(column: pa.ChunkedArray) -> Numbers:
    numbers: Numbers = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return numbers
