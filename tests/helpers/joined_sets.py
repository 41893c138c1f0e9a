"""The logits of a set without text, joined with changed rows of its task."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.sets.set_settings import JoinSettings
from pipeline.sharing.join import Joined, join

Lines = list[dict[str, Any]]
Change = Callable[[Lines], Lines]


def changed_data(work: Path, folder: Path, **changes: Change) -> Path:
    """The rows of the single-sentence task, some splits of them changed."""
    shutil.copytree(work / "data" / "opinion", folder / "data" / "opinion", dirs_exist_ok=True)
    for split, change in changes.items():
        path = folder / "data" / "opinion" / f"{split}.jsonl"
        lines = change([json.loads(line) for line in path.read_text().splitlines()])
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "data"


def joined(root: Path, work: Path, rows: Path, store: Path, name: str = "joined", **flags: Any) -> Joined:
    flags = {"manifest": work / "opinion.yaml", "store": store, **flags}
    return join(JoinSettings(set=str(root), data=rows, name=name, **flags), "distill join")
