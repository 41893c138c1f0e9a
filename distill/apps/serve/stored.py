"""A teacher's stored answers to the texts that a served student was trained on. Shapes: R rows of the set, C logits."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from distill.apps.serve.requests import Texts
from pipeline import console
from pipeline.arrays import Floats
from pipeline.environment import store_folder
from pipeline.errors import DistillError
from pipeline.file_names import RUN_RECORD
from pipeline.query.mixture import open_sets
from pipeline.record_file import read_work_record
from pipeline.sets.kinds.examples import ExampleSet, text_hash
from pipeline.sets.signals.rows import logits_of
from pipeline.tasks.target import Target
from student.trained_sets import trained_sets


class Stored:
    """A teacher's answers, found by text.

    Args:
        logit_set: its set.
    """

    def __init__(self, logit_set: ExampleSet) -> None:
        tables = [logit_set.read(split, ("text_hash", "logits"), "variant = 0") for split in logit_set.splits]
        # Hashes instead of texts find a stored row, so text-free sets work as well.
        hashes = [hash_ for table in tables for hash_ in table.column("text_hash").to_pylist()]
        logits = [logits_of(table, logit_set.record.target.num_logits) for table in tables]
        order_R = np.argsort(np.array(hashes, dtype="S16"), kind="stable")
        self._hash_R = np.array(hashes, dtype="S16")[order_R]
        self._logits_RC = np.concatenate(logits)[order_R]
        self._tokenizer_sha256 = logit_set.record.tokenizer.sha256

    def find(self, texts: Texts) -> list[Floats | None]:
        """The teacher's logits [C] for each input, or None if the set does not contain it."""
        seconds: Sequence[str | None] = texts.second or [None] * len(texts)
        pairs = zip(texts.first, seconds, strict=True)
        wanted_N = np.array([text_hash(self._tokenizer_sha256, *pair) for pair in pairs], dtype="S16")
        place_N = np.searchsorted(self._hash_R, wanted_N).clip(max=len(self._hash_R) - 1)
        is_there_N = self._hash_R[place_N] == wanted_N
        return [self._logits_RC[place] if there else None for place, there in zip(place_N, is_there_N, strict=True)]


def stored_answers(run: Path, target: Target) -> Stored | None:
    """Returns the answers that a run was trained on, mixed in the same way.

    If its sets cannot be read, prints a note and returns None.

    Returns None without a note if they mean something else than the target.
    """
    try:
        record = read_work_record(run / RUN_RECORD)
        paths = trained_sets(record, store_folder())
        logit_set = open_sets(paths, record["settings"].get("mix"), needs_text=False)
        return Stored(logit_set) if logit_set.record.target == target else None
    except (DistillError, KeyError) as error:
        console.note(f"{run}: served without its teacher's answers: {error}")
        return None
