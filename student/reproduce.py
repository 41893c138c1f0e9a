"""``distill verify RUN``: checks whether a run would select the same rows today."""

from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.file_names import RUN_RECORD
from pipeline.record_file import read_work_record
from pipeline.sets.open import find_set
from pipeline.sets.token_vectors import read_token_vectors
from pipeline.tasks.task import TRAIN
from pipeline.training.run_record import STUDENTS
from student.initial_weights.pretrained import read_pretrained
from student.lessons import kind_of_set
from student.source_settings import Query


def reproduce(run: Path, store: Path | None, allow_unverified: bool) -> dict[str, dict[str, Any]]:
    """Opens the sets of a run at their current location and runs its recorded query again.

    Args:
        run: the folder of the run.
        store: a folder in which its sets are found by their names. None: at their recorded places.
        allow_unverified: also accept sets that are complete but not verified.

    Returns: The recorded facts (``then``) and the current ones (``now``): the fingerprint of each set, the number of
        selected rows, the hashes of their keys and of their logits and weights, and of the initial vectors.

    Raises:
        ConfigError: if the run is one of pretraining.
        DataError: if a set does not exist.
        QueryError: if its query fails today.
    """
    record = read_work_record(run / RUN_RECORD)
    # Only pretraining runs record a single set. Runs of tasks record a list.
    if "logit_set" in record:
        raise ConfigError(f"{run}: a pretraining run has no query and uses every row of its set")
    if STUDENTS in record:
        parts = {name: reproduce(run / name, store, allow_unverified) for name in record[STUDENTS]}
        return {f"{name}: {what}": values for name, part in parts.items() for what, values in part.items()}
    settings = record["settings"]
    # With a store, sets are found by name, because recorded paths belong to the machine that trained.
    paths = [find_set(Path(place).name if store else place, store) for place in record["logit_sets"]]
    kind = kind_of_set(paths[0])
    logit_set = kind.open_sets(paths, settings["mix"], allow_unverified)
    rows = kind.read(logit_set, TRAIN, Query(query=settings["query"]) if settings["query"] else None)
    # Fingerprints are compared first: if one differs, the differing row hashes need no further explanation.
    then = settings["logit_set_fingerprints"]
    compared = {
        f"fingerprint of {one.name}": {"then": recorded, "now": one.record.fingerprint}
        for one, recorded in zip(logit_set.sets, then, strict=True)
    }
    now: dict[str, Any] = {"rows": len(rows)} | kind.row_hashes(logit_set, rows)
    if settings.get("token_vectors_sha256"):
        first = logit_set.sets[0]
        vectors = read_token_vectors(first.root, first.record)
        now |= {"token_vectors_sha256": vectors.sha256 if vectors else "none"}
    if settings.get("pretrained_vectors_sha256"):
        now |= {"pretrained_vectors_sha256": read_pretrained().sha256}
    return compared | {name: {"then": settings[name], "now": value} for name, value in now.items()}
