"""Resumable work, written once: a folder with a record of its settings, parts that are complete or absent, a result.

    work = Workspace(root, settings, command, title="variants", advice="Give the new ones another --name")
    if work.start() != "finished":
        for part in work.missing(parts):
            work.write_table(part, make_rows(part.start, part.stop))
        work.finish({"rows": 1000})

A command that is killed at any point and repeated with the same settings has the result of an undisturbed one, if a
part only depends on the settings and its position. Work with other settings is refused as soon as there is something to
lose.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import pyarrow as pa

from pipeline import console
from pipeline.errors import FingerprintMismatchError, IntegrityError, setting_changes
from pipeline.files import make_folder, remove_temporaries, write_atomically
from pipeline.parquet import Footer, parquet_writer, read_footer
from pipeline.record_file import Record, json_sha256, read_work_record, write_record

FINISHED, RUNNING = "finished", "running"  # states of a record
Status = Literal["fresh", "resumed", "finished"]


class Part(Protocol):
    """A Parquet file of the work, complete if its footer is the expected one."""

    @property
    def path(self) -> str:
        """The file, relative to the folder of the work."""
        ...

    def footer(self) -> Footer:
        """Returns the entries of the footer besides the fingerprint of the settings.

        They may replace the fingerprint.
        """
        ...


class Processes(Protocol):
    """The processes that share the work, such as `accelerate.PartialState`."""

    @property
    def process_index(self) -> int: ...
    @property
    def num_processes(self) -> int: ...
    def wait_for_everyone(self) -> None: ...


PartT = TypeVar("PartT", bound=Part)


@dataclass(frozen=True)
class FilePart:
    """A part that is identified by its name alone."""

    path: str

    def footer(self) -> Footer:
        """Returns nothing: the fingerprint and the name are enough."""
        return {}


@dataclass(frozen=True)
class RangePart:
    """A part for a range of items, ``start`` to before ``stop``."""

    path: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """The number of items."""
        return self.stop - self.start

    def footer(self) -> Footer:
        """Returns the range: a file with another range is not this part, whatever its name."""
        return {"start": self.start, "stop": self.stop}


def ranges(total: int, size: int) -> list[tuple[int, int]]:
    """Divides ``total`` items into at least one range of nearly equal sizes, at most ``size`` each.

    The number of processes has no influence, so that any number of them can resume the work.
    """
    # Ceiling division. No items still give one range, so that an empty split has a file and counts as written.
    count = max(1, -(-total // size))
    bounds = [k * total // count for k in range(count + 1)]
    return list(itertools.pairwise(bounds))


def range_parts(prefix: str, total: int, size: int) -> list[RangePart]:
    """Returns the parts of a list of ``total`` items in order. Their file names begin with ``prefix``."""
    bounds = ranges(total, size)
    return [
        RangePart(f"{prefix}-{k:05d}-of-{len(bounds):05d}.parquet", start, stop)
        for k, (start, stop) in enumerate(bounds)
    ]


def require_same_settings(
    context: str, existing: Mapping[str, object], settings: Mapping[str, object], advice: str
) -> None:
    """Refuses other settings.

    Args:
        context: describes the existing work, such as ``logits/opinion holds variants``.
        existing: the settings on disk.
        settings: those of this command.
        advice: what to do.

    Raises:
        FingerprintMismatchError: if they differ, naming each setting that does.
    """
    changes = setting_changes(existing, settings)
    if changes:
        raise FingerprintMismatchError(f"{context} made with other settings:\n{changes}\n{advice}")


class Workspace:
    """A folder for one piece of work.

    A folder with the fingerprint in its name needs no record: `missing` and `write` work without `start`.

    Args:
        root: the folder.
        settings: everything that determines the result, as JSON values.
        command: the command line, for the record.
        title: the type of work for messages, such as ``a run``.
        advice: what to do if the folder holds work with other settings.
        record_name: file name of the record.
        context: further content of the record, such as paths. It may differ between tries.
        folders: names of the subfolders with parts. The root may also contain parts.
        progress: pattern of the names of files that would be lost if the work started again.
        redo: whether work with other settings is repeated instead of refused, because it is cheap to repeat.
    """

    def __init__(
        self,
        root: Path,
        settings: Mapping[str, Any],
        command: str = "",
        *,
        title: str = "work",
        advice: str = "Choose another folder, or remove this one if the old work is not needed",
        record_name: str = "work.json",
        context: Mapping[str, Any] | None = None,
        folders: Sequence[str] = (),
        progress: str = "*.parquet",
        redo: bool = False,
    ) -> None:
        self.root, self.settings = root, dict(settings)
        self.fingerprint = json_sha256(self.settings)
        self._command, self._context = command, dict(context or {})
        self._title, self._advice = title, advice
        self._record = root / record_name
        self._folders = [root, *(root / name for name in folders)]
        self._progress, self._redo = progress, redo

    def start(self) -> Status:
        """Starts or resumes the work, and removes incomplete files of killed processes.

        To be called by one process, before the others start, and while no other command works in the folder.

        Raises:
            DataError: if the folder cannot be written to.
            FingerprintMismatchError: if it holds work with other settings, naming each that differs.
            IntegrityError: if its record is damaged.
        """
        for folder in self._folders:
            # A read-only folder or a full disk should fail here, before the expensive work.
            make_folder(folder)
        fresh = {"state": RUNNING, "command": self._command, "settings": self.settings} | self._context
        stored = self._stored()
        has_progress = any(any(folder.glob(self._progress)) for folder in self._folders)
        # Without a finished part nothing can be lost, so a record with other settings may simply be replaced.
        if stored is None or not (has_progress or stored["state"] == FINISHED):
            if stored is not None and setting_changes(stored["settings"], self.settings):
                console.note(f"{self.root}: started with other settings, but nothing was finished. Starting again")
            record = fresh
        # Old parts stay on the disk: their footers carry the old fingerprint, so each counts as missing and is
        # overwritten.
        elif self._redo and stored["settings"] != self.settings:
            record = fresh
        else:
            self.require_own(stored)
            record = stored | self._context
        # Only now: before the settings are known to match, the temporary files may belong to another running command.
        for folder in self._folders:
            remove_temporaries(folder)
        if record != stored:
            write_record(self._record, record)
        if record["state"] == FINISHED:
            return "finished"
        return "resumed" if has_progress else "fresh"

    def require_own(self, record: Record | None = None) -> None:
        """Checks that a record (by default the one on disk) has the settings of this work.

        Raises:
            FingerprintMismatchError: if it has other settings because another command has started here meanwhile.
        """
        stored = self.record() if record is None else record
        require_same_settings(f"{self.root} holds {self._title}", stored["settings"], self.settings, self._advice)

    def has(self, part: Part) -> bool:
        """Whether a part exists, is complete, and belongs to these settings."""
        try:
            return read_footer(self.root / part.path) == self.footer(part)
        except IntegrityError:
            return False

    def missing(self, parts: Iterable[PartT]) -> list[PartT]:
        """Returns the parts that still have to be written: missing, incomplete, or of other work."""
        return [part for part in parts if not self.has(part)]

    def my_missing(self, parts: Iterable[PartT], processes: Processes) -> list[PartT]:
        """Returns this process's share of the missing parts. Every process has to call it."""
        processes.wait_for_everyone()
        # After the first barrier every process has finished its earlier writes, so that all find the same parts
        # missing.
        missing = self.missing(parts)
        # No process writes before all have looked. Otherwise they would divide different lists of missing parts.
        processes.wait_for_everyone()
        return missing[processes.process_index :: processes.num_processes]

    def footer(self, part: Part) -> Footer:
        """Returns the footer of a part's file."""
        return {"fingerprint": self.fingerprint} | part.footer()

    def write(self, part: Part, write: Callable[[Path, Footer], object], durable: bool = True) -> None:
        """Writes a part atomically.

        Args:
            part: the part.
            write: writes it to the given path, with the given footer.
            durable: whether it must survive a power cut.

        Raises:
            DataError: if the disk is full or the folder cannot be written.
        """
        footer = self.footer(part)
        # A part that exists is complete: its name appears only after its last byte.
        write_atomically(self.root / part.path, lambda path: write(path, footer), durable)

    def write_table(self, part: Part, table: pa.Table) -> None:
        """Writes a table as a part. See `write`."""

        def write(path: Path, footer: Footer) -> None:
            with parquet_writer(path, table.schema, footer) as writer:
                writer.write_table(table)

        self.write(part, write)

    def record(self) -> Record:
        """Reads the record. See `read_work_record`."""
        return read_work_record(self._record)

    def result(self) -> dict[str, Any]:
        """Reads the result of finished work.

        Raises:
            IntegrityError: if the record is damaged, or the work is not finished.
        """
        record = self.record()
        if record["state"] != FINISHED or not isinstance(record.get("result"), dict):
            raise IntegrityError(f"{self._record}: state {record['state']!r}, without a result. Repeat the command.")
        return dict(record["result"])

    def reopen(self) -> None:
        """Sets finished work that has lost parts back to running and removes its old result."""
        record = {name: value for name, value in self.record().items() if name != "result"}
        write_record(self._record, record | {"state": RUNNING})

    def finish(self, result: Mapping[str, Any]) -> Record:
        """Adds the result to the record and marks the work as finished.

        If the same command runs twice at once, the first result stays: both are equal, and the first process may have
        removed files that the second would need.

        Returns:
            The record.
        """
        record = self.record()
        # The record is read again, not remembered: another process may have finished the same work in the meantime.
        if record["state"] != FINISHED:
            record |= {"state": FINISHED, "result": dict(result)}
            write_record(self._record, record)
        return record

    def _stored(self) -> Record | None:
        """Returns the record or None. A damaged record counts as missing if the work may be repeated."""
        if not self._record.exists():
            return None
        try:
            return self.record()
        except IntegrityError:
            if self._redo:
                return None
            raise
