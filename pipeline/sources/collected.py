"""``--collect``: the inputs that a later stage of a cascade answered, with its answer, for the next student.

Each process appends lines of JSON to a file of its own, so that none waits for another, and begins a new file when it
is full. A killed process leaves at most one unfinished line, which `collected_lines` drops. `distill import --extend`
adds the rows to a logit set.
"""

import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline import console
from pipeline.arrays import Floats, Ints
from pipeline.errors import DataError
from pipeline.files import make_folder
from pipeline.sources.json_rows import parsed_lines

FILE_BYTES = 2**26  # after which a new file begins
PAUSE = 30.0  # seconds until writing is tried again where it failed
PATTERN = "collected-*.jsonl"

Line = dict[str, Any]


class Collector:
    """Appends the rows of a cascade that a later stage than the first answered.

    Args:
        folder: of the files.
        has_text: whether their texts are written, or only the hashes of them.

    Raises:
        DataError: if the folder cannot be made.
    """

    def __init__(self, folder: Path, has_text: bool) -> None:
        make_folder(folder)
        self._folder, self._has_text = folder, has_text
        self._file: int | None = None
        self._process, self._size, self._paused_until = os.getpid(), 0, 0.0

    def add(
        self,
        texts: tuple[Sequence[str], Sequence[str] | None],
        p_NC: Floats,
        stage_N: Ints,
        names: Sequence[str],
        sources: Sequence[str],
    ) -> None:
        """Appends those of some answered inputs that a later stage than the first answered.

        Args:
            texts: the first sentences, and the second ones of pairs.
            p_NC: probabilities.
            stage_N: numbers of the stages that gave them.
            names: of the labels.
            sources: the names of the stages.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        lines = []
        for row in (stage_N > 0).nonzero()[0].tolist():
            own = [part[row] for part in texts if part is not None]
            answer = {
                "stage": sources[stage_N[row]],
                "probabilities": dict(zip(names, p_NC[row].tolist(), strict=True)),
            }
            lines.append(json.dumps({"time": now} | self._named(own) | answer, ensure_ascii=False))
        if lines:
            self._append(("\n".join(lines) + "\n").encode())

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _named(self, texts: Sequence[str]) -> Line:
        if not self._has_text:
            return {"text_sha256": sha256_of_texts(texts)}
        return {f"sentence{number}": text for number, text in enumerate(texts, start=1)}

    def _append(self, data: bytes) -> None:
        # A full disk must not take answers from those who wait for them.
        if time.monotonic() < self._paused_until:
            return
        try:
            # A forked worker must not write into the file of its parent: lines of two processes would mix.
            if self._file is None or self._process != os.getpid() or self._size >= FILE_BYTES:
                self.close()
                self._process, self._size = os.getpid(), 0
                path = self._folder / PATTERN.replace("*", f"{time.time_ns():020d}-{self._process}")
                # O_EXCL: two processes of one number, on two hosts with one folder, must not share a file.
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            assert self._file is not None
            if os.write(self._file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += len(data)
        except OSError as error:
            self.close()  # the next line begins a file, because after half a line it could not be read
            console.warn(f"--collect {self._folder}: {error}. Rows are not collected for {PAUSE:g} seconds")
            self._paused_until = time.monotonic() + PAUSE


def sha256_of_texts(texts: Sequence[str]) -> str:
    """The hash by which a row is found again whose text was not written."""
    # As a list in JSON, because ("ab", "c") and ("a", "bc") would be the same text if they were joined.
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def collected_lines(folder: Path) -> Iterator[tuple[str, Line]]:
    """Yields the lines of a folder in the order of its files, each with its place for messages.

    Raises:
        DataError: if there is none, or one is not an object.
    """
    files = sorted(folder.glob(PATTERN))
    if not files:
        raise DataError(f"{folder}: there is no file {PATTERN}. `distill predict` and `serve` write it by --collect")
    is_empty = True
    for path in files:
        lines = path.read_bytes().split(b"\n")
        # After the last line break stands what a killed process had not finished, or nothing.
        for number, line in parsed_lines(str(path), enumerate(lines[:-1], start=1)):
            is_empty = False
            yield f"{path}, line {number}", line
    if is_empty:
        raise DataError(f"{folder}: holds no rows yet. `distill predict` and `serve` add them by --collect")
