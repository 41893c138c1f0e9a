"""The strong, cheap baseline of teachers, `quickstart` and `evaluate --baseline`: n-grams with a tuned linear model.

Shapes: N rows, F features, C logits.
"""

import importlib.util
import re
import warnings
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from distill.apps.linear import each_label, input_features, num_weights, predictor, vocabulary_size
from distill.apps.score_advice import SKEWED
from distill.apps.systems import SCORE, Predict, Rows, System, read_rows
from pipeline import console
from pipeline.arrays import Floats, Ints
from pipeline.errors import ConfigError
from pipeline.file_names import RUN_RECORD
from pipeline.query.mixture import open_sets
from pipeline.record_file import Record, read_work_record
from pipeline.sets.kinds import open_set
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.kinds.token_labels import TokenLabelSet
from pipeline.sources import sentences
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import NO_LABEL, Target, gold_arrays, has_gold, predicted_scores, probabilities
from pipeline.tasks.task import TRAIN, Metric
from pipeline.training.run_record import STUDENTS
from student.run_settings import EvaluateSettings
from student.trained_sets import evaluated_sets, trained_sets

# regularisation of the linear model, chosen by cross-validation on the training rows
STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0)
PENALTIES = (0.3, 1.0, 3.0, 10.0)  # regularisation of the ridge regression for scores
USUAL_STRENGTH = 0.3
FOLDS = 3
LEAST_ROWS = 2 * FOLDS  # for cross-validation
MOST_FEATURES = 200_000
LEAST_PROBABILITY = 1e-6
NAME = "words and characters, TF-IDF"
WORD = re.compile(r"\w\w")  # scikit-learn's definition of a word, which excludes single letters
TUNED_CHARACTERS = 1_000_000  # of training rows, for which the strength is chosen within half a minute
MAX_CHARACTERS = 10_000_000  # of training rows, which are fitted once within half a minute


def add_baseline(
    config: EvaluateSettings, evaluation: dict[str, Any], rows: pa.Table | None, is_fast: bool = False
) -> None:
    """Fits the baseline on the gold of a run's training rows, and scores it on the rows that the run was scored on.

    Args:
        config: names the run, and what it is evaluated on.
        evaluation: of the run. Gets the `judged_metrics` of each split, and the bytes of the model with its n-grams.
        rows: of ``--data``, None for the dev splits of a set.
        is_fast: whether a fit that takes more than half a minute, or is not possible, is left out.

    Raises:
        ConfigError: if the baseline does not suit the run's task.
        DataError: if the set of the training rows is gone.
    """
    record = read_work_record(config.run / RUN_RECORD)
    if STUDENTS in record:
        raise ConfigError(f"--baseline: {config.run} has a student for each of several tasks. Give the folder of one.")
    paths = trained_sets(record, config.store)
    first = open_set(paths[0], config.allow_unverified)
    metrics = tuple(dict.fromkeys(name for parts in evaluation.values() for name in parts["gold"]))
    if isinstance(first, TokenLabelSet):
        scores, num_bytes = _of_words(config, record, first, metrics, rows)
    else:
        logit_set = open_sets(paths, record["settings"].get("mix"), config.allow_unverified)
        train = _training_rows(logit_set, record["settings"]["query"])
        if is_fast and not is_quick(train):
            return
        console.note(f"--baseline: fitting n-grams of words and characters on {len(train):,} rows")
        target = logit_set.record.target
        system = quick_baseline(train, target) if is_fast else fit_baseline(train, target)
        if system is None:
            return
        num_bytes = system.num_bytes
        if config.data is not None and rows is not None:
            splits = {config.data.name: labelled_rows(target, rows)}
        else:
            tested = open_sets(evaluated_sets(record, config.set, config.store), None, config.allow_unverified)
            splits = {split: read_rows(tested, split) for split in tested.splits if split != TRAIN}
        scores = {split: scores_of(system, one, metrics) for split, one in splits.items() if len(one)}
    for split, values in scores.items():
        evaluation[split]["baseline"] = {"scores": values, "bytes": num_bytes}


def _of_words(
    config: EvaluateSettings, record: Record, trained: TokenLabelSet, metrics: tuple[Metric, ...], rows: pa.Table | None
) -> tuple[dict[str, dict[str, float]], int]:
    from distill.apps.word_baseline import read_sentences, word_baseline_scores

    if config.data is not None and rows is not None:
        splits = {config.data.name: rows.select(["sentence1", "label"]).rename_columns(["words", "label"])}
    else:
        tested = TokenLabelSet.open(evaluated_sets(record, config.set, config.store)[0], config.allow_unverified)
        splits = {split: read_sentences(tested, split) for split in tested.splits if split != TRAIN}
    return word_baseline_scores(trained, splits, metrics)


def _training_rows(logit_set: ExampleSet, query: str) -> Rows:
    """The rows with gold that a run was trained on, without variants."""
    from student.data import load_chosen

    return read_rows(logit_set, TRAIN, load_chosen(logit_set, query).key_N2[:, 0])


def labelled_rows(target: Target, rows: pa.Table) -> Rows:
    """The rows of a file that have gold."""
    rows = rows.filter(pa.array(has_gold(target, *gold_arrays(target, rows))))
    nothing = np.empty((rows.num_rows, 0), dtype=np.float32)
    return Rows(*sentences(rows), *gold_arrays(target, rows), nothing)


def scores_of(system: System, rows: Rows, metrics: tuple[Metric, ...]) -> dict[str, float]:
    """Returns the `judged_metrics` of a baseline on rows with gold."""
    metrics = judged_metrics(metrics, system.target, rows.label_N)
    logits_NC = system.logits(rows.texts1, rows.texts2)
    return score_logits(metrics, system.target, logits_NC, rows.label_N, rows.score_N)


def judged_metrics(metrics: tuple[Metric, ...], target: Target, label_N: Ints) -> tuple[Metric, ...]:
    """Returns a task's metrics, and macro F1 for more than two classes or a class of most rows.

    There, accuracy hides the rare classes.
    """
    if not target.has_classes:
        return metrics
    known = label_N[label_N != NO_LABEL]
    is_skewed = len(known) > 0 and np.bincount(known).max() >= SKEWED * len(known)
    return tuple(dict.fromkeys((*metrics, "macro_f1"))) if is_skewed or target.num_logits > 2 else metrics


def fit_baseline(train: Rows, target: Target, is_tuned: bool = True) -> System:
    """Fits the baseline on gold.

    Args:
        train: rows with gold, on which cross-validation chooses the strength of the regularisation.
        target: what the logits of the task mean. Scores are predicted as they are, also for a target of bins.
        is_tuned: whether cross-validation chooses the strength, which takes many times as long as one fit.
    """
    features = _fitted_features(train)
    vectors = partial(input_features, features.transform)
    x_NF = vectors(train.texts1, train.texts2)
    target = target if target.has_labels else SCORE
    model = _fit_labels(x_NF, train, is_tuned) if target.has_labels else _fit_ridge(x_NF, train.score_N, is_tuned)
    return _system(target, model, predictor(model, target, vectors), features)


def fit_on_teacher(train: Rows, target: Target, is_tuned: bool) -> System:
    """Fits a ridge regression with the features of the baseline to the teacher's probabilities, or to its scores.

    Args:
        train: rows with the teacher's logits. Gold is not used.
        target: what the logits of the teacher mean.
        is_tuned: see `fit_baseline`.
    """
    features = _fitted_features(train)
    vectors = partial(input_features, features.transform)
    if target.has_labels:
        goal_NC = probabilities(target, train.teacher_NC)
    else:
        goal_NC = predicted_scores(target, train.teacher_NC)[:, None]
    model = _fit_ridge(vectors(train.texts1, train.texts2), goal_NC, is_tuned)

    def logits(texts1: Any, texts2: Any) -> Floats:
        output_NC = np.asarray(model.predict(vectors(texts1, texts2)), np.float32).reshape(len(texts1), -1)
        return _logits_of(target, output_NC) if target.has_labels else output_NC

    return _system(target if target.has_labels else SCORE, model, logits, features)


def _logits_of(target: Target, probability_NC: Floats) -> Floats:
    # A regression's outputs may leave the range of probabilities.
    p_NC = np.clip(probability_NC, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    return np.log(p_NC) if target.has_classes else np.log(p_NC / (1 - p_NC))


def _system(target: Target, model: Any, logits: Predict, features: Any) -> System:
    own = num_weights(model)
    num_terms, num_bytes = map(sum, zip(*(vocabulary_size(one) for _, one in features.transformer_list), strict=True))
    return System(target, logits, num_terms + own, num_bytes + 4 * own)


def is_quick(train: Rows) -> bool:
    """Whether cross-validation on these rows takes less than half a minute."""
    return train.num_characters <= TUNED_CHARACTERS


def quick_baseline(train: Rows, target: Target) -> System | None:
    """Fits the baseline to judge a teacher.

    Returns: None if scikit-learn is not installed, if the rows have no word or all have the same gold, or if the fit
        would take more than half a minute.
    """
    # Only some extras bring scikit-learn.
    if importlib.util.find_spec("sklearn") is None or train.num_characters > MAX_CHARACTERS:
        return None
    if not any(map(WORD.search, train.texts)):
        return None
    if len(np.unique(train.label_N, axis=0)) < 2 and len(np.unique(train.score_N)) < 2:
        return None
    return fit_baseline(train, target, is_quick(train))


def _fit_ridge(x_NF: Any, goal: Floats, is_tuned: bool) -> Any:
    """Fits a regression to scores [N], or to outputs [N, C]."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV, KFold

    if not is_tuned or len(goal) < LEAST_ROWS:
        return Ridge().fit(x_NF, goal)
    # Files may be sorted by their gold.
    folds = KFold(FOLDS, shuffle=True, random_state=0)
    return GridSearchCV(Ridge(), {"alpha": PENALTIES}, cv=folds).fit(x_NF, goal).best_estimator_


def _fit_labels(x_NF: Any, train: Rows, is_tuned: bool) -> Any:
    """Returns a classifier, or the models of `each_label` for several labels per row."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC

    # Balanced: otherwise rare classes are never predicted, and the macro F1 to beat would be too low.
    make = partial(LinearSVC, class_weight="balanced")
    with warnings.catch_warnings():
        # A fit that stops early is a slightly weaker baseline.
        warnings.simplefilter("ignore", ConvergenceWarning)
        strength = best_strength(make(), x_NF, train.label_N) if is_tuned else USUAL_STRENGTH
        if train.label_N.ndim == 1:
            return make(C=strength).fit(x_NF, train.label_N)
        return each_label(partial(make, C=strength), x_NF, train.label_N)


def best_strength(one: Any, x_NF: Any, gold: Ints) -> float:
    """Returns the regularisation with the best score in cross-validation."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.multiclass import OneVsRestClassifier

    if len(gold) < LEAST_ROWS:
        return USUAL_STRENGTH
    if gold.ndim > 1:
        # A constant label has no model and no influence on the choice.
        varies_C = gold.min(axis=0) < gold.max(axis=0)
        search = GridSearchCV(OneVsRestClassifier(one), {"estimator__C": STRENGTHS}, cv=FOLDS, refit=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Label .* is present in all training examples")
            return float(search.fit(x_NF, gold[:, varies_C]).best_params_["estimator__C"])
    rare = int(np.bincount(gold)[np.unique(gold)].min())
    # A class with a single row cannot be in two folds.
    if rare < 2:
        return USUAL_STRENGTH
    search = GridSearchCV(one, {"C": STRENGTHS}, cv=min(FOLDS, rare), refit=False)
    return float(search.fit(x_NF, gold).best_params_["C"])


def _fitted_features(train: Rows) -> Any:
    """Returns features of words, pairs of words, and characters of words.

    The latter cover inflections and misspellings.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    make = partial(TfidfVectorizer, sublinear_tf=True, max_features=MOST_FEATURES, dtype=np.float32)
    words, characters = make(ngram_range=(1, 2)), make(analyzer="char_wb", ngram_range=(2, 5))
    return make_union(words, characters).fit(train.texts)
