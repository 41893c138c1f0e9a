"""How good a student of words is: against gold, and against what its teacher said. Shapes: T tokens, C logits."""

from typing import Any

import numpy as np
import torch

from pipeline.arrays import Floats, Ragged
from pipeline.errors import ConfigError, DataError, FingerprintMismatchError
from pipeline.sets.word_reader import LabelledWords, TokenLabelSet
from pipeline.tasks.metrics import fidelity
from pipeline.tasks.spans import scores_by_span, word_intervals, word_scores
from pipeline.tasks.task import OUTSIDE
from pipeline.training.run_record import RUN_RECORD, read_run_record
from student.config import EvaluateConfig
from student.data import sorted_batches
from student.model.model import default_device
from student.trained_sets import evaluated_sets
from student.words.model import Tagger

BATCH_SIZE = 256


def evaluate_words(config: EvaluateConfig) -> dict[str, dict[str, Any]]:
    """Evaluates a run on the dev splits of its set of words; what it gives is as of `student.evaluate.evaluate`.

    Raises:
        ConfigError: for flags that are for texts alone.
        DataError: if the set is gone, or has no dev split.
        FingerprintMismatchError: if another is in its place, or it is not one that the student can read.
    """
    if config.cost:
        raise ConfigError("--cost: is not for labelled words")
    record = read_run_record(config.run / RUN_RECORD)
    student = Tagger.load(config.run).to(default_device())
    words = TokenLabelSet.open(evaluated_sets(record, config.set, config.store)[0], config.allow_unverified)
    wanted = (student.config.tokenizer_sha256, student.config.target)
    if (words.record.tokenizer.sha256, words.record.target) != wanted:
        raise FingerprintMismatchError(f"{words.root}: has another tokenizer than the student, or other labels")
    splits = dev_splits(words)
    if not splits:
        raise DataError(f"{words.root}: has no dev split to evaluate on")
    return {split: evaluate_split(student, rows) for split, rows in splits.items()}


def dev_splits(words: TokenLabelSet) -> dict[str, LabelledWords]:
    """The rows of each split but ``train``."""
    return {split: words.read(split) for split in words.splits if split != "train"}


def evaluate_split(student: Tagger, rows: LabelledWords) -> dict[str, Any]:
    """All that is told of one split."""
    metrics, student_TC = student.config.metrics, logits_of_tokens(student, rows.pieces.ids)
    tallies = rows.tallies(student_TC)
    outside_TC = np.zeros_like(student_TC)
    outside_TC[:, rows.names.index(OUTSIDE)] = 1
    return {
        "gold": word_scores(metrics, tallies),
        "interval": word_intervals(metrics, tallies),
        "teacher": word_scores(metrics, rows.tallies(rows.teacher_TC)),
        "majority": word_scores(metrics, rows.tallies(outside_TC)),
        "glue": None,
        "labels": {},
        "decided": {},
        "by_label": scores_by_span(rows.names, tallies),
        "bins": {},
        "fidelity": fidelity(student.config.target, student_TC, rows.teacher_TC),
    }


def logits_of_tokens(student: Tagger, ids: Ragged) -> Floats:
    """Runs a student over sentences; float32 logits [T, C] of their tokens."""
    logits_TC = np.empty((len(ids.flat), student.config.target.num_logits), dtype=np.float32)
    student.eval()
    with torch.inference_mode():
        for rows in sorted_batches(ids.lengths, BATCH_SIZE):
            places, taken = tokens_of(ids, rows)
            inputs = (torch.from_numpy(part).to(student.device) for part in (taken.flat, taken.offsets))
            logits_TC[places] = student(*inputs).cpu().numpy()
    return logits_TC


def tokens_of(ids: Ragged, rows: Any) -> tuple[np.ndarray, Ragged]:
    """The places of the tokens of some sentences among all, and these sentences."""
    taken = ids.take(rows)
    return Ragged(np.arange(len(ids.flat)), ids.offsets).take(rows).flat, taken
