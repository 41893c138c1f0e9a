"""A task's variants on disk: ``augment.json`` and ``rows/``, in the store's folder ``augmented/``.

While they are made, ``generated/`` holds them with all repetitions.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import FingerprintMismatchError, IntegrityError, setting_changes
from pipeline.files import make_folder, sha256, write_atomically, write_text_once
from pipeline.logit_set.augmentation import AugmentationRecord
from pipeline.logit_set.manifest import Setting, fingerprint
from pipeline.logit_set.shard_file import parquet_writer
from pipeline.run_record import finish_run, read_record
from teacher.augment.parts import Parts
from teacher.augment.variants import SCHEMA

AUGMENT_FILE = "augment.json"
VARIANTS_PER_PART = 65_536


@dataclass(frozen=True)
class Folder:
    """The variants of one task under certain settings.

    Attributes:
        root: the folder.
        generated: parts with all variants, while they are made.
        rows: parts with those that are kept.
    """

    root: Path
    generated: Parts
    rows: Parts

    def read(self, start: int, stop: int) -> pa.Table:
        """The variants of the source rows ``start`` to ``stop`` (exclusive).

        Raises:
            IntegrityError: if a file is damaged or gone.
        """
        parts = [part for part in range(self.rows.count) if _overlap(self.rows.bounds(part), (start, stop))]
        condition = (pc.field("source_row") >= start) & (pc.field("source_row") < stop)
        try:
            tables = [pq.read_table(self.rows.paths[part], partitioning=None, filters=condition) for part in parts]
        except (OSError, pa.ArrowException) as error:
            raise IntegrityError(f"{self.root}: cannot be read: {error}; repeat the command") from error
        return pa.concat_tables([SCHEMA.empty_table(), *(table.cast(SCHEMA) for table in tables)])

    def finish(self, record: AugmentationRecord) -> None:
        """Says that all rows are written, and forgets what they were made from."""
        files = {path.name: sha256(path) for path in self.rows.paths}
        finish_run(self.root / AUGMENT_FILE, {"augmentation": record.model_dump(mode="json"), "sha256": files})
        shutil.rmtree(self.generated.folder)

    def finished(self) -> AugmentationRecord | None:
        """What the folder holds if it is finished, and its files are those that were written.

        Raises:
            IntegrityError: if its record is damaged.
        """
        record = read_record(self.root / AUGMENT_FILE)
        if record["state"] != "finished":
            return None
        files = record["result"]["sha256"]
        if any(not path.is_file() or sha256(path) != files.get(path.name) for path in self.rows.paths):
            return None
        return AugmentationRecord.model_validate(record["result"]["augmentation"])


def open_folder(root: Path, settings: dict[str, Setting], num_rows: int, num_variants: int, command: str) -> Folder:
    """Creates a folder for variants, or opens the one that is there if it was made with the same settings.

    Args:
        root: the folder.
        settings: all that decides the rows.
        num_rows: source rows.
        num_variants: variants of each.
        command: the command line, for the record.

    Raises:
        FingerprintMismatchError: if its settings are others, naming each that differs.
        IntegrityError: if it is damaged.
    """
    size = max(1, VARIANTS_PER_PART // num_variants)
    run = fingerprint(settings)
    folder = Folder(root, Parts(root / "generated", run, num_rows, size), Parts(root / "rows", run, num_rows, size))
    make_folder(folder.rows.folder)
    path = root / AUGMENT_FILE
    write_text_once(path, json.dumps({"state": "running", "command": command, "settings": settings}, indent=2) + "\n")
    changes = setting_changes(read_record(path)["settings"], settings)
    if changes:
        raise FingerprintMismatchError(
            f"{root} holds variants made with other settings:\n{changes}\n"
            "Give the new ones another --name, or remove the folder if the old ones are not needed"
        )
    return folder


def write_part(parts: Parts, part: int, variants: pa.Table) -> None:
    """Writes a part whole or not at all."""

    def write(path: Path) -> None:
        with parquet_writer(path, SCHEMA, parts.footer(part)) as writer:
            writer.write_table(variants)

    write_atomically(parts.paths[part], write)


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]
