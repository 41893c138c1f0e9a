"""Makes variants of a task's rows as tables, with any method, and stores them in the store's folder ``augmented/``.

A folder contains ``augment.json`` and ``rows/``. While variants are being made, ``generated/`` contains all of them,
including repeated ones.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import ConfigError, IntegrityError
from pipeline.files import sha256
from pipeline.parsing import parse_model
from pipeline.record_file import read_work_record
from pipeline.resumable import RangePart, Workspace, range_parts
from pipeline.sets.record_parts import AugmentationRecord, Setting
from pipeline.sources import sentences
from pipeline.tasks.task import TRAIN
from teacher.augment.editors import Edited
from teacher.augment.methods import Editor, Sides

AUGMENT_FILE = "augment.json"
VARIANTS_PER_PART = 65_536
ADVICE = (
    "Give the new ones another name (augment --name, teacher-dump --variants), "
    "or remove the folder if the old ones are not needed"
)
SCHEMA = pa.schema(
    [
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("variant", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("sentence1", pa.string(), nullable=False),
        pa.field("sentence2", pa.string()),
        pa.field("changed", pa.int32(), nullable=False),
        pa.field("words", pa.int32(), nullable=False),
    ]
)


@dataclass(frozen=True)
class VariantsFolder:
    """The folder for the variants of one task under certain settings."""

    work: Workspace
    generated: list[RangePart]
    rows: list[RangePart]

    @classmethod
    def of(
        cls, root: Path, settings: Mapping[str, Setting], num_rows: int, num_variants: int, command: str = ""
    ) -> "VariantsFolder":
        """The folder for so many variants of each of so many rows."""
        work = Workspace(
            root,
            settings,
            command,
            title="variants",
            advice=ADVICE,
            record_name=AUGMENT_FILE,
            folders=("generated", "rows"),
        )
        # Parts are ranges of source rows, so that a part with many variants per row covers fewer rows.
        size, split = max(1, VARIANTS_PER_PART // num_variants), settings.get("split", TRAIN)
        generated, rows = (range_parts(f"{name}/{split}", num_rows, size) for name in ("generated", "rows"))
        return cls(work, generated, rows)

    @property
    def temporary(self) -> Path:
        """The folder ``generated/``, which is removed at the end."""
        return self.work.root / "generated"

    def path(self, part: RangePart) -> Path:
        """The file of a part."""
        return self.work.root / part.path

    def start(self) -> None:
        """Creates the folder, or resumes one with the same settings. See `Workspace.start`."""
        # Finished work is started again only if rows were lost or damaged.
        if self.work.start() == "finished":
            self.work.reopen()

    def finish(self, record: AugmentationRecord) -> None:
        """Marks the variants as finished once all rows are written, and removes intermediate files."""
        # With the hashes in the record a damaged or replaced file is noticed before it is used.
        files = {self.path(part).name: sha256(self.path(part)) for part in self.rows}
        self.work.finish({"augmentation": record.model_dump(mode="json"), "sha256": files})
        # Removed only after the record is on the disk: a kill before that can still continue from these files.
        shutil.rmtree(self.temporary)


@dataclass(frozen=True)
class Variants:
    """Finished variants: their folder and their record."""

    folder: VariantsFolder
    record: AugmentationRecord

    def read(self, start: int, stop: int) -> pa.Table:
        """The variants of the source rows ``start`` to ``stop`` (exclusive)."""
        paths = [self.folder.path(part) for part in self.folder.rows if part.start < stop and start < part.stop]
        condition = (pc.field("source_row") >= start) & (pc.field("source_row") < stop)
        try:
            tables = [pq.read_table(path, partitioning=None, filters=condition) for path in paths]
        except (OSError, pa.ArrowException) as error:
            raise IntegrityError(f"{self.folder.work.root}: cannot be read: {error}. Repeat the command.") from error
        return pa.concat_tables([SCHEMA.empty_table(), *(table.cast(SCHEMA) for table in tables)])


def open_variants(root: Path) -> Variants | None:
    """Returns the variants in a folder, or None unless they are finished and their files are unchanged."""
    path = root / AUGMENT_FILE
    if not path.exists():
        return None
    record = read_work_record(path)
    if record["state"] != "finished":
        return None
    try:
        files = dict(record["result"]["sha256"])
        augmentation = parse_model(AugmentationRecord, record["result"]["augmentation"], str(path))
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path}: damaged: {error}. Remove the folder and repeat the command.") from error
    num_variants = augmentation.tried // augmentation.source_rows
    folder = VariantsFolder.of(root, augmentation.settings, augmentation.source_rows, num_variants)
    if any(not path.is_file() or sha256(path) != files.get(path.name) for path in map(folder.path, folder.rows)):
        return None
    # These files remain if the last command was killed at its end.
    shutil.rmtree(folder.temporary, ignore_errors=True)
    return Variants(folder, augmentation)


def make_variants(rows: pa.Table, editor: Editor, sides: Sides) -> pa.Table:
    """Makes all variants of some rows.

    Returns: The variants with the columns of ``SCHEMA``, by source row and number. Variants that the editor gives up
        are left out, but not those that equal their original.
    """
    texts = [text for text in sentences(rows) if text is not None]
    source_rows = rows.column("source_row").to_numpy()
    edited: list[dict[int, list[Edited | None]]] = []  # by side and variant, the changed side of every row
    for side, originals in enumerate(texts):
        numbers = np.array([number for number, changes in enumerate(sides, start=1) if side in changes], dtype=np.int64)
        columns = editor.edit(originals, source_rows, side, numbers)
        edited.append({variant: [row[v] for row in columns] for v, variant in enumerate(numbers.tolist())})
    made = []
    for n, row in enumerate(source_rows.tolist()):
        for variant, changes in enumerate(sides, start=1):
            parts = [edited[side][variant][n] for side in changes]
            done = [part for part in parts if part is not None]
            # The editor gave up one of the sentences, and the other one alone would be half a variant.
            if len(done) < len(parts):
                continue
            pair = [text[n] for text in texts] + [None] * (2 - len(texts))
            for side, part in zip(changes, done, strict=True):
                pair[side] = part.text
            counts = (sum(part.changed for part in done), sum(part.words for part in done))
            kinds = set[str]().union(*(part.kinds for part in done))
            origin = "-".join(sorted(kinds - {"ngram"})) or "ngram"  # ngram for only a cut
            made.append((row, variant, origin, *pair, *counts))
    values = zip(*made, strict=True) if made else ([] for _ in SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(values, SCHEMA, strict=True)], schema=SCHEMA)
