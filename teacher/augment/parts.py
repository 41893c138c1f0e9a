"""Long work in parts: Parquet files for ranges of a list, written by several processes, done when they are there."""

from dataclasses import dataclass
from pathlib import Path

from accelerate import PartialState

from pipeline.errors import IntegrityError
from pipeline.sets.shard_file import Footer, read_footer


@dataclass(frozen=True)
class Parts:
    """The parts of a list.

    Attributes:
        folder: where their files are.
        fingerprint: of the settings that decide what is in them.
        total: length of the list.
        size: most items a part.
        prefix: how the files' names begin.
    """

    folder: Path
    fingerprint: str
    total: int
    size: int
    prefix: str = "train"

    @property
    def count(self) -> int:
        """The number of parts, at least one."""
        return max(1, -(-self.total // self.size))

    @property
    def paths(self) -> list[Path]:
        """The parts' files, in order."""
        return [self.folder / f"{self.prefix}-{k:05d}-of-{self.count:05d}.parquet" for k in range(self.count)]

    def bounds(self, part: int) -> tuple[int, int]:
        """The items of a part: start and stop (exclusive)."""
        return part * self.total // self.count, (part + 1) * self.total // self.count

    def footer(self, part: int) -> Footer:
        """What the footer of a part's file says."""
        start, stop = self.bounds(part)
        return {"fingerprint": self.fingerprint, "start": start, "stop": stop}

    def missing(self) -> list[int]:
        """The numbers of the parts that are still to be written."""
        return [part for part in range(self.count) if not self._is_done(part)]

    def my_missing(self, state: PartialState) -> list[int]:
        """The numbers of the missing parts that this process is to write."""
        state.wait_for_everyone()
        missing = self.missing()
        state.wait_for_everyone()  # nobody writes before everybody has looked, or the shares would differ
        return missing[state.process_index :: state.num_processes]

    def _is_done(self, part: int) -> bool:
        try:
            return read_footer(self.paths[part]) == self.footer(part)
        except IntegrityError:
            return False
