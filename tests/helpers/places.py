"""Places that sets are pushed to and pulled from: what lies there, and ways to spoil it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec

from pipeline.record_file import parse_record
from pipeline.sets.record import FILE_NAME
from pipeline.sets.set_settings import PullSettings, PushSettings
from pipeline.sharing.pull import Pulled, pull
from pipeline.sharing.push import Pushed, push


def send(root: Path, url: str, **flags: Any) -> Pushed:
    return push(PushSettings(set=str(root), url=url, **flags))


def fetch(url: str, store: Path, **flags: Any) -> Pulled:
    return pull(PullSettings(url=url, store=store, **flags))


def contents(root: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def objects(url: str) -> dict[str, bytes]:
    """Every file at a place."""
    fs, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    return {path.removeprefix(f"{root}/"): fs.cat_file(path) for path in fs.find(root)}


def replace(url: str, name: str, content: bytes) -> None:
    fs, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    fs.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
    fs.pipe_file(f"{root}/{name}", content)


def remove(url: str, name: str) -> None:
    fs, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    fs.rm_file(f"{root}/{name}")


def edit_record(url: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes values of the record at a place."""
    values = parse_record(objects(url)[FILE_NAME])
    change(values)
    replace(url, FILE_NAME, json.dumps(values).encode())
