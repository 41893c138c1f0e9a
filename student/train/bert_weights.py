"""The weights in a BERT's folder: in one file, or in several that an index names, as transformers has large models."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pipeline.errors import IntegrityError
from pipeline.files import read_small_file, sha256
from pipeline.record_file import MAX_RECORD_BYTES
from pipeline.training.checkpoint import check_tensors
from pipeline.untrusted import parse_json
from student.model.weights import WEIGHTS_FILE

INDEX_FILE = "model.safetensors.index.json"
Weights = Mapping[str, Callable[[], torch.Tensor]]  # what reads each, by its name


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files of the weights in a BERT's folder; none if there is neither one file nor an index.

    Raises:
        IntegrityError: if an index names no files of this folder.
    """
    if (folder / WEIGHTS_FILE).is_file():
        return (folder / WEIGHTS_FILE,)
    path = folder / INDEX_FILE
    if not path.is_file():
        return ()
    try:
        index: Any = parse_json(read_small_file(path, MAX_RECORD_BYTES, may_be_link=True))
        names = sorted(set(index["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"{path}: not an index of weights: {error!r}") from error
    wrong = [name for name in names if not _is_here(folder, name)]
    if wrong or not names:
        raise IntegrityError(f"{path}: names {wrong[:1] or 'nothing'}, and there is no such file of weights beside it")
    return tuple(folder / name for name in names)


@contextmanager
def open_weights(files: tuple[Path, ...]) -> Iterator[Weights]:
    """What reads the weights of some files within the block.

    Raises:
        IntegrityError: there or in the block, if a file is damaged.
    """
    try:
        with ExitStack() as stack:
            weights: dict[str, Callable[[], torch.Tensor]] = {}
            for path in files:
                check_tensors(path)
                file = stack.enter_context(safe_open(path, framework="pt"))
                weights |= {name: partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118
            yield weights
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise IntegrityError(f"{', '.join(map(str, files))}: not the weights of a BERT: {error}") from error


def files_sha256(files: tuple[Path, ...]) -> str:
    """Hash of a file, or of several files' hashes."""
    first, *others = map(sha256, files)
    return hashlib.sha256("".join([first, *others]).encode()).hexdigest() if others else first


def _is_here(folder: Path, name: object) -> bool:
    is_name = isinstance(name, str) and name == Path(name).name and name.endswith(".safetensors")
    return is_name and (folder / str(name)).is_file()
