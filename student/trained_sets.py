"""Finding the sets again that a run was trained on."""

from contextlib import suppress
from pathlib import Path

from pipeline.errors import DataError
from pipeline.logit_set.reader import find_set
from pipeline.logit_set.record import read_set_record
from pipeline.training.run_record import RunRecord


def trained_sets(record: RunRecord, store: Path) -> list[Path]:
    """Where the sets that a run was trained on lie now: those with their fingerprints, and no others.

    Raises:
        DataError: naming those that are gone.
    """
    places, fingerprints = record["logit_sets"], record["settings"]["logit_set_fingerprints"]
    paths = [_lies_at(store, place, known) for place, known in zip(places, fingerprints, strict=True)]
    existing = [path for path in paths if path is not None]
    if len(existing) < len(paths):
        gone = ", ".join(place for place, path in zip(places, paths, strict=True) if path is None)
        raise DataError(f"the logit set that this was trained on is neither in {gone} nor in the store {store}")
    return existing


def _lies_at(store: Path, place: str, fingerprint: str) -> Path | None:
    """Where a set lies now: where it lay, or by its name in the store."""
    for where in (place, Path(place).name):
        with suppress(DataError):
            path = find_set(where, store)
            if read_set_record(path).fingerprint == fingerprint:
                return path
    return None
