"""Finds the sets that a run was trained on."""

from pathlib import Path

from pipeline.errors import DataError, FingerprintMismatchError, IntegrityError, short
from pipeline.record_file import Record
from pipeline.sets.open import find_set
from pipeline.sets.record import read_set_record


def trained_sets(record: Record, store: Path) -> list[Path]:
    """Returns the paths of the sets that a run was trained on: the recorded ones, or those in the store.

    Raises:
        DataError: if a set no longer exists.
        FingerprintMismatchError: if another set replaced it.
        IntegrityError: if the set is damaged.
    """
    settings = record["settings"]
    # Pretraining uses one set and records it under another key than training, which may mix several.
    if "logit_set" in record:
        places, fingerprints = [record["logit_set"]], [settings["logit_set_fingerprint"]]
    else:
        places, fingerprints = record["logit_sets"], settings["logit_set_fingerprints"]
    return [_lies_at(place, known, store) for place, known in zip(places, fingerprints, strict=True)]


def evaluated_sets(record: Record, logits: str | None, store: Path) -> list[Path]:
    """Returns the paths of the sets for measuring a run: the named one, or those it was trained on.

    Raises:
        DataError: if a set does not exist.
        FingerprintMismatchError: see `trained_sets`.
    """
    return trained_sets(record, store) if logits is None else [find_set(logits, store)]


def _lies_at(place: str, fingerprint: str, store: Path) -> Path:
    others, damaged = {}, None
    # The recorded path comes first. On another machine the store holds the set under the same name.
    for where in (place, Path(place).name):
        try:
            path = find_set(where, store)
            others[path] = read_set_record(path).fingerprint
        except DataError:
            continue
        # A damaged set here must not hide an intact copy in the other place.
        except IntegrityError as error:
            damaged = damaged or error
            continue
        # A set of the same name may contain other logits, so only the fingerprint decides.
        if others[path] == fingerprint:
            return path
    if damaged is not None:
        raise damaged
    if not others:
        raise DataError(
            f"the logit set that this was trained on is neither in {place} nor in the store {store}. Give its "
            "current store with --store or DISTILL_STORE."
        )
    path, other = next(iter(others.items()))
    raise FingerprintMismatchError(
        f"{path}: has the fingerprint {short(other)}, but this was trained on {short(fingerprint)}. Restore "
        "that set. If the set was extended since, train again on the new version, into another folder."
    )
