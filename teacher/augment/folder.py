"""A task's variants on disk: ``augment.json`` and ``rows/``, in the store's folder ``augmented/``.

While they are made, ``generated/`` holds them with all repetitions.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import parse_model
from pipeline.errors import ConfigError, FingerprintMismatchError, IntegrityError, setting_changes, short
from pipeline.files import make_folder, remove_temporaries, sha256, write_atomically
from pipeline.sets.fingerprint import fingerprint
from pipeline.sets.record_parts import AugmentationRecord, Setting
from pipeline.sets.shard_file import parquet_writer
from pipeline.tasks.task import TRAIN
from pipeline.training.run_record import RunRecord, finish_run, read_run_record, write_run_record
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

    @classmethod
    def of(cls, root: Path, settings: dict[str, Setting], num_rows: int, num_variants: int) -> "Folder":
        """The folder for so many variants of each of so many rows."""
        run, size = fingerprint(settings), max(1, VARIANTS_PER_PART // num_variants)
        prefix = str(settings.get("split", TRAIN))
        made, kept = (Parts(root / name, run, num_rows, size, prefix) for name in ("generated", "rows"))
        return cls(root, made, kept)

    def finish(self, record: AugmentationRecord) -> None:
        """Says that all rows are written, and forgets what they were made from."""
        files = {path.name: sha256(path) for path in self.rows.paths}
        finish_run(self.root / AUGMENT_FILE, {"augmentation": record.model_dump(mode="json"), "sha256": files})
        shutil.rmtree(self.generated.folder)


@dataclass(frozen=True)
class Variants:
    """Finished variants: where they are, and what came of making them."""

    folder: Folder
    record: AugmentationRecord

    def read(self, start: int, stop: int) -> pa.Table:
        """The variants of the source rows ``start`` to ``stop`` (exclusive).

        Raises:
            IntegrityError: if a file is damaged or gone.
        """
        rows = self.folder.rows
        parts = [part for part in range(rows.count) if _overlap(rows.bounds(part), (start, stop))]
        condition = (pc.field("source_row") >= start) & (pc.field("source_row") < stop)
        try:
            tables = [pq.read_table(rows.paths[part], partitioning=None, filters=condition) for part in parts]
        except (OSError, pa.ArrowException) as error:
            raise IntegrityError(f"{self.folder.root}: cannot be read: {error}; repeat the command") from error
        return pa.concat_tables([SCHEMA.empty_table(), *(table.cast(SCHEMA) for table in tables)])


def start_folder(folder: Folder, settings: dict[str, Setting], command: str) -> None:
    """Creates a folder for variants, or goes on with the one that was begun with the same settings.

    What killed processes left half written goes: call it only when no other process writes there.

    Args:
        folder: the folder.
        settings: all that decides the rows.
        command: the command line, for the record.

    Raises:
        FingerprintMismatchError: if variants made with other settings would be lost.
        IntegrityError: if its record is damaged.
    """
    make_folder(folder.generated.folder)
    make_folder(folder.rows.folder)
    for place in (folder.root, folder.generated.folder, folder.rows.folder):
        remove_temporaries(place)
    path = folder.root / AUGMENT_FILE
    if path.exists() and any(folder.root.glob("*/*.parquet")):
        check_settings(folder.root, read_run_record(path)["settings"], settings)
    else:
        write_run_record(path, {"state": "running", "command": command, "settings": settings})


def open_variants(root: Path) -> Variants | None:
    """The variants in a folder, None unless they are finished and their files are those that were written.

    Raises:
        IntegrityError: if their record is damaged.
    """
    path = root / AUGMENT_FILE
    if not path.exists():
        return None
    record = read_run_record(path)
    if record["state"] != "finished":
        return None
    files, augmentation = _result(path, record)
    folder = Folder.of(
        root, augmentation.settings, augmentation.source_rows, augmentation.tried // augmentation.source_rows
    )
    if any(not path.is_file() or sha256(path) != files.get(path.name) for path in folder.rows.paths):
        return None
    shutil.rmtree(folder.generated.folder, ignore_errors=True)  # left by a kill in the last moment
    return Variants(folder, augmentation)


def check_settings(root: Path, stored: dict[str, Setting], wanted: dict[str, Setting]) -> None:
    """Raises FingerprintMismatchError if variants were made with other settings, naming each that differs."""
    changes = setting_changes(stored, wanted, short)
    if changes:
        raise FingerprintMismatchError(
            f"{root} holds variants made with other settings:\n{changes}\n"
            "Give the new ones another name (augment --name, teacher-dump --variants), "
            "or remove the folder if the old ones are not needed"
        )


def write_part(parts: Parts, part: int, variants: pa.Table) -> None:
    """Writes a part whole or not at all."""

    def write(path: Path) -> None:
        with parquet_writer(path, SCHEMA, parts.footer(part)) as writer:
            writer.write_table(variants)

    write_atomically(parts.paths[part], write)


def _result(path: Path, record: RunRecord) -> tuple[dict[str, Any], AugmentationRecord]:
    try:
        result = record["result"]
        return dict(result["sha256"]), parse_model(AugmentationRecord, result["augmentation"], str(path))
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path}: damaged: {error}; remove the folder and repeat the command") from error


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]
