"""What a bag of words reaches on a set's dev rows: a teacher that is not better has nothing to teach."""

import re

import numpy as np

from distill.apps.results.baselines import BASELINES
from distill.apps.results.rows import Rows, read_rows
from pipeline.sets.reader import ExampleSet
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.task import TRAIN

WORD = re.compile(r"\w\w")  # as scikit-learn counts them: single letters are none
MAX_CHARACTERS = 10_000_000  # of training rows; so many take some seconds


def bag_of_words_scores(logit_set: ExampleSet) -> dict[str, dict[str, float]]:
    """The task's metrics of TF-IDF with a regression, fitted on a set's training rows with gold, by dev split.

    Empty if scikit-learn is not installed, there are no such rows or all have the same gold, or so many that it would
    take longer than seconds.
    """
    record, baseline = logit_set.record, BASELINES["TF-IDF"]
    if baseline.missing or TRAIN not in logit_set.splits or not record.has_text:
        return {}
    train = read_rows(logit_set, TRAIN)
    if not _is_enough(train) or sum(map(len, [*train.texts1, *(train.texts2 or ())])) > MAX_CHARACTERS:
        return {}
    system = baseline.fit(train, record.target, logit_set.root)
    scores = {}
    for split in logit_set.splits:
        rows = read_rows(logit_set, split)
        if split != TRAIN and len(rows):
            logits_NC = system.logits(rows.texts1, rows.texts2)
            scores[split] = score_logits(record.metrics, system.target, logits_NC, rows.label_N, rows.score_N)
    return scores


def _is_enough(train: Rows) -> bool:
    """Whether there is something to tell apart."""
    if not any(map(WORD.search, [*train.texts1, *(train.texts2 or ())])):
        return False
    return len(np.unique(train.label_N, axis=0)) > 1 or len(np.unique(train.score_N)) > 1
