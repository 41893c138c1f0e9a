"""The strong, cheap baseline of ``quickstart`` and ``evaluate --baseline``: n-grams with a tuned linear model.

Shapes: N rows, F features, C logits.
"""

import importlib.util
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from distill.apps.results.systems import SCORE, Rows, System, input_features, read_rows
from pipeline import console
from pipeline.arrays import Floats
from pipeline.errors import ConfigError
from pipeline.query.mixture import open_sets
from pipeline.sets.reader import ExampleSet, open_set
from pipeline.sources import sentences
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import Target, gold_arrays, has_gold
from pipeline.tasks.task import TRAIN, Metric
from pipeline.training.run_record import RUN_RECORD, STUDENTS, read_run_record
from student.run_config import EvaluateConfig
from student.trained_sets import evaluated_sets, trained_sets

# regularisation of the linear model, chosen by cross-validation on the training rows
STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0)
PENALTIES = (0.3, 1.0, 3.0, 10.0)  # regularisation of the ridge regression for scores
FOLDS = 3
MOST_FEATURES = 200_000
NAME = "words and characters, TF-IDF"


def has_baseline() -> bool:
    """Whether scikit-learn is installed, which only some extras bring."""
    return importlib.util.find_spec("sklearn") is not None


def baseline_scores(
    config: EvaluateConfig, metrics: tuple[Metric, ...], rows: pa.Table | None
) -> tuple[dict[str, dict[str, float]], int]:
    """Fits the baseline on the gold of a run's training rows, and scores it on the rows that the run is scored on.

    Args:
        config: names the run, and what it is evaluated on.
        metrics: those of the run.
        rows: of ``--data``, None for the dev splits of a set.

    Returns:
        The metrics by split, and the bytes of the fitted model.

    Raises:
        ConfigError: if the baseline does not suit the run's task.
        DataError: if the set of the training rows is gone.
    """
    record = read_run_record(config.run / RUN_RECORD)
    if STUDENTS in record:
        raise ConfigError(f"--baseline: {config.run} has a student for each of several tasks. Give the folder of one.")
    paths = trained_sets(record, config.store)
    if not isinstance(open_set(paths[0], config.allow_unverified), ExampleSet):
        raise ConfigError("--baseline: a bag of words does not label words. Remove the flag.")
    logit_set = open_sets(paths, record["settings"].get("mix"), config.allow_unverified)
    train = _training_rows(logit_set, record["settings"]["query"])
    console.note(f"--baseline: fitting n-grams of words and characters on {len(train):,} rows")
    target = logit_set.record.target
    system = fit_baseline(train, target)
    if config.data is not None and rows is not None:
        return {config.data.name: scores_of(system, _labelled(target, rows), metrics)}, system.num_bytes
    tested = open_sets(evaluated_sets(record, config.set, config.store), None, config.allow_unverified)
    splits = {split: read_rows(tested, split) for split in tested.splits if split != TRAIN}
    return {split: scores_of(system, one, metrics) for split, one in splits.items() if len(one)}, system.num_bytes


def _training_rows(logit_set: ExampleSet, query: str) -> Rows:
    """The rows with gold that a run was trained on, without variants."""
    from student.data import load_chosen

    return read_rows(logit_set, TRAIN, load_chosen(logit_set, query).key_N2[:, 0])


def _labelled(target: Target, rows: pa.Table) -> Rows:
    """The rows of a file that have gold."""
    rows = rows.filter(pa.array(has_gold(target, *gold_arrays(target, rows))))
    nothing = np.empty((rows.num_rows, 0), dtype=np.float32)
    return Rows(*sentences(rows), *gold_arrays(target, rows), nothing)


def scores_of(system: System, rows: Rows, metrics: tuple[Metric, ...]) -> dict[str, float]:
    """Returns the metrics of a baseline on rows with gold."""
    logits_NC = system.logits(rows.texts1, rows.texts2)
    return score_logits(metrics, system.target, logits_NC, rows.label_N, rows.score_N)


def fit_baseline(train: Rows, target: Target) -> System:
    """Fits the baseline on gold.

    Args:
        train: rows with gold. Cross-validation on them chooses the strength of the regularisation.
        target: what the logits of the task mean. Scores are predicted as they are, also for a target of bins.
    """
    features = _features()
    features.fit([*train.texts1, *(train.texts2 or ())])
    vectors = partial(input_features, features.transform)
    x_NF = vectors(train.texts1, train.texts2)
    target = target if target.has_labels else SCORE
    model = (_fit_labels if target.has_labels else _fit_scores)(x_NF, train)

    def logits(texts1: Any, texts2: Any) -> Floats:
        tested_NF = vectors(texts1, texts2)
        if not target.has_labels:
            return np.asarray(model.predict(tested_NF), dtype=np.float32)[:, None]
        return _all_classes(model, model.decision_function(tested_NF), target)

    size = x_NF.shape[1] * target.num_logits
    return System(target, logits, size, 4 * (x_NF.shape[1] + size))


def _fit_scores(x_NF: Any, train: Rows) -> Any:
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV

    return GridSearchCV(Ridge(), {"alpha": PENALTIES}, cv=FOLDS).fit(x_NF, train.score_N)


def _fit_labels(x_NF: Any, train: Rows) -> Any:
    from sklearn.model_selection import GridSearchCV
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC

    gold = train.label_N
    # Balanced: otherwise rare classes are never predicted, and the macro F1 to beat would be too low.
    one = LinearSVC(class_weight="balanced")
    rare = min(np.bincount(gold)[np.unique(gold)]) if gold.ndim == 1 else FOLDS
    grid = {"C": STRENGTHS} if gold.ndim == 1 else {"estimator__C": STRENGTHS}
    search = GridSearchCV(one if gold.ndim == 1 else OneVsRestClassifier(one), grid, cv=max(2, min(FOLDS, rare)))
    return search.fit(x_NF, gold)


def _features() -> Any:
    """Returns features of words, pairs of words, and characters of words.

    The latter cover inflections and misspellings.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=MOST_FEATURES)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, max_features=MOST_FEATURES)
    return make_union(words, characters)


def _all_classes(model: Any, decision: Floats, target: Target) -> Floats:
    """Returns decisions as logits [N, C]."""
    # scikit-learn outputs one column for two classes, and no column for a class without a row.
    if decision.ndim == 1:
        decision = np.stack([-decision, decision], axis=1)
    if target.kind == "labels":
        return decision.astype(np.float32)
    logits_NC = np.full((len(decision), target.num_logits), -1e9, dtype=np.float32)
    logits_NC[:, model.classes_] = decision
    return logits_NC
