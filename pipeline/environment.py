"""The one place that reads environment variables."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import ConfigError

DEFAULT_STORE = "logits"
MIXED_PRECISION = "ACCELERATE_MIXED_PRECISION"
# Accelerate reads the variables of its own launcher, of torchrun and of MPI, the first ones first.
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
LOCAL_RANKS = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK")
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
LAUNCHED = (*SIZES, *RANKS, *LOCAL_RANKS, *LOCAL_SIZES, "MASTER_PORT")


def data_folder() -> Path | None:
    """Folder with local task data, from ``DISTILL_DATA``."""
    value = os.environ.get("DISTILL_DATA")
    return Path(value) if value else None


def store_folder() -> Path:
    """Folder of logit sets, from ``DISTILL_STORE``. Default: ``./logits``."""
    return Path(os.environ.get("DISTILL_STORE") or DEFAULT_STORE)


def history_file() -> Path:
    """Path of the history of the ``distill sql`` prompt, in ``XDG_STATE_HOME`` or ``~/.local/state``."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "distill" / "history"


def numbers(names: Iterable[str]) -> dict[str, int]:
    """Returns the values of those variables that are set.

    Raises:
        ConfigError: if a value is not a whole number.
    """
    values = {name: os.environ[name] for name in names if os.environ.get(name)}
    # int() alone would accept "-1", " 1 " and "1_0", which no launcher sets.
    wrong = next((name for name, value in values.items() if not value.isdecimal()), None)
    if wrong is not None:
        raise ConfigError(f"{wrong}={values[wrong]}: should be a whole number")
    return {name: int(value) for name, value in values.items()}


def is_main_process() -> bool:
    """Whether this process reports to the user (rank 0 under ``accelerate launch`` or ``torchrun``)."""
    return (os.environ.get("RANK") or "0") == "0"


def num_processes() -> int:
    """Number of processes that ``accelerate launch`` or ``torchrun`` started together. 1 without them."""
    value = os.environ.get("WORLD_SIZE", "")
    return int(value) if value.isdigit() else 1


def check_launched() -> str | None:
    """Checks the variables that accelerate and torch read, which may be left over from another launch.

    Empty ones, and ``-1`` for a process that was not launched, are removed.

    Returns:
        The variable with the number of processes and its value, if there are several processes.

    Raises:
        ConfigError: if a value is not a whole number, or others are missing.
    """
    for name in list(os.environ):
        is_read = name in LAUNCHED or name.startswith("ACCELERATE_") or name in ("MASTER_ADDR", "OMP_NUM_THREADS")
        if is_read and os.environ[name] in ("", "-1"):
            del os.environ[name]
    # OpenMP takes a number for each level of nested loops, but accelerate reads one.
    if "," in (threads := os.environ.get("OMP_NUM_THREADS", "")):
        os.environ["OMP_NUM_THREADS"] = threads.split(",")[0].strip()
    numbers(["OMP_NUM_THREADS"])
    values = numbers(LAUNCHED)
    size, rank = (next((name for name in names if name in values), None) for names in (SIZES, RANKS))
    found = size if size is not None and values[size] != 1 else "LOCAL_RANK" if "LOCAL_RANK" in values else None
    if found is None:
        return None
    named = f"{found}={values[found]}"
    missing = [names[0] for names, name in ((SIZES, size), (RANKS, rank)) if name is None]
    missing += ["MASTER_ADDR"] if "MASTER_ADDR" not in os.environ else []
    if missing:
        remedy = f"Start the command with `accelerate launch` or `torchrun`, or unset {found}."
        raise ConfigError(f"{named}: {' and '.join(missing)} must be set, too. {remedy}")
    assert size is not None, "it is not missing"
    assert rank is not None, "it is not missing"
    if values[rank] >= values[size]:
        raise ConfigError(f"{rank}={values[rank]}: should be below {size}={values[size]}")
    return named if values[size] > 1 else None


def mixed_precision() -> str:
    """The precision that ``accelerate launch --mixed_precision`` requests, in small letters, or ``no``."""
    return (os.environ.get(MIXED_PRECISION) or "no").lower()


def progress_disabled() -> bool:
    """Whether the user switched progress bars off, by Hugging Face's variable."""
    return os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS", "").upper() in {"1", "ON", "YES", "TRUE"}


@contextmanager
def tokenizers_in_parallel(parallel: bool) -> Iterator[None]:
    """Makes the `tokenizers` library use one thread or all, by a variable that it reads at each call."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = str(parallel).lower()
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
