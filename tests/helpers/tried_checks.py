"""The checks of `make gpu` and `make hosts`: each is run once, and its result is printed as it comes."""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol


class Found(Protocol):
    """What a check found, a named tuple."""

    @property
    def is_good(self) -> bool:
        """Whether the check passes."""

    def _asdict(self) -> dict[str, Any]: ...


def tried(name: str, check: Callable[[], Found]) -> dict[str, Any]:
    """The result of a check as a row of the table. What a check that raised did not find is None."""
    start = time.monotonic()
    row: dict[str, Any] = defaultdict(lambda: None, check=name, problem="")
    try:
        found = check()
        row |= found._asdict() | {"result": "passed" if found.is_good else "failed"}
    except Exception as error:  # noqa: BLE001  (one failure must not hide the other checks)
        row |= {"result": "failed", "problem": f"{type(error).__name__}: {error}"}
    row["seconds"] = time.monotonic() - start
    # At once: a crash of the process must not hide what was found before it.
    sys.stderr.write(json.dumps(row) + "\n")
    return row
