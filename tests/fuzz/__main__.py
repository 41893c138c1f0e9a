"""Coverage-guided fuzzing of a reader of foreign bytes: ``python -m tests.fuzz record -runs=1000000``.

A reader is a file in ``readers`` with SEEDS to begin with, the modules that it COVERS, and ``read``, of which nothing
but an error of ours may come. Flags are libFuzzer's. Inputs that come to new places are kept in ``build/fuzz/READER``.
"""

import resource
import sys
from importlib import import_module
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["pipeline", "student", "teacher"]):
    from distill.apps.serve.requests import RefusedError
    from pipeline.errors import DistillError

    reader = import_module(f"tests.fuzz.readers.{sys.argv[1]}")


MEMORY_BYTES = 2**29  # that an input may ask for
MIN_LENGTH = 1024  # of the longest inputs, whatever the seeds: longer ones take longer and come to no other places


def one_input(data: bytes) -> None:
    """Reads what an enemy may have written."""
    try:
        reader.read(data)
    except (DistillError, RefusedError):
        return


def bound_memory() -> None:
    """Lets an input have no more than `MEMORY_BYTES`.

    The header of a page of Parquet may say that 2 GiB follow: to fill them with zeros takes a thousand times as long as
    to read a sound file. A reader has to tell of memory that it does not get as of all else.
    """
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))


if __name__ == "__main__":
    corpus = Path("build") / "fuzz" / sys.argv[1]
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(reader.SEEDS):
        (corpus / f"seed-{number}").write_bytes(seed)
        one_input(seed)  # so that what is imported late is not taken for slow
    bound_memory()
    longest = max(MIN_LENGTH, *map(len, reader.SEEDS))
    flags = ["-rss_limit_mb=2500", "-timeout=30", f"-max_len={longest}", f"-artifact_prefix={corpus}-", *sys.argv[2:]]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one_input)
    atheris.Fuzz()
