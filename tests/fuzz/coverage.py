"""How much of a reader's code its fuzzing has come to: the lines of its functions that the kept inputs run.

python -m tests.fuzz.coverage READER…
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from distill.apps.serve.requests import RefusedError
from pipeline.errors import DistillError


def lines_of(code: CodeType, is_function: bool = False) -> Iterator[int]:
    """The lines inside the functions of a module."""
    if is_function:
        yield from {line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno}
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from lines_of(part, is_function or bool(part.co_flags & 2))  # 2: has variables of its own


def coverage(reader: Any, inputs: list[bytes]) -> dict[str, float]:
    """The share of lines that inputs run, by module."""
    paths = {module: str(import_module(module).__file__) for module in reader.COVERS}
    seen: dict[str, set[int]] = {path: set() for path in paths.values()}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        lines = seen.get(frame.f_code.co_filename)
        if lines is None:
            return None
        lines.add(frame.f_lineno)
        return trace

    sys.settrace(trace)
    for data in inputs:
        try:
            reader.read(data)
        except (DistillError, RefusedError):
            continue
    sys.settrace(None)
    shares = {}
    for module, path in paths.items():
        all_lines = set(lines_of(compile(Path(path).read_text(encoding="utf-8"), path, "exec")))
        shares[module] = len(all_lines & seen[path]) / max(1, len(all_lines))
    return shares


if __name__ == "__main__":
    for name in sys.argv[1:]:
        kept = [path.read_bytes() for path in sorted((Path("build") / "fuzz" / name).iterdir())]
        for module, share in coverage(import_module(f"tests.fuzz.readers.{name}"), kept).items():
            sys.stdout.write(f"{name}: {module}: {share:.0%} of {len(kept):,} inputs\n")
