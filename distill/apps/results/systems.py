"""The compared systems: a student, its teacher or a baseline, as a function from texts to logits.

Baselines are models that a user would choose instead of a student. They are fitted on the same rows without a teacher.
Shapes: N rows, C classes, F features, V vocabulary.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from scipy import sparse

from pipeline.arrays import Floats, Ints
from pipeline.sets.reader import ExampleSet
from pipeline.sets.signals.logits import logits_of
from pipeline.sources import sentences
from pipeline.tasks.target import Target, gold_arrays
from pipeline.tasks.task import Task

Predict = Callable[[Sequence[str], Sequence[str] | None], Floats]
SCORE = Target(kind="score", names=("score",))
STORED_FILES = ("config.json", "model.safetensors", "model-*.safetensors", "tokenizer.json")
COLUMNS = ("source_row", "sentence1", "sentence2", "label", "score", "logits")
CHOSEN = "variant = 0 and (label is not null or score is not null)"


@dataclass(frozen=True)
class System:
    """A model that labels or scores sentences or pairs.

    Attributes:
        target: what its logits mean.
        logits: float32 logits [N, C] of first sentences, and of second ones if the task has pairs.
        num_parameters: the number of its parameters.
        num_bytes: the size on disk of everything that it needs: weights, vocabulary, settings.
    """

    target: Target
    logits: Predict
    num_parameters: int
    num_bytes: int


def student_system(run: Path) -> System:
    """The student of a finished run, on the CPU."""
    from student.model.model import num_parameters
    from student.predict import Predictor

    predictor = Predictor(run)
    student = predictor.student.to("cpu")
    return System(student.config.target, predictor.logits, num_parameters(student), bytes_of(run))


def teacher_system(task: Task, folder: Path, logit_set: ExampleSet) -> System:
    """The teacher of a set, on the CPU, in float32."""
    from teacher.models.batches import tokens_per_batch
    from teacher.models.classifier import load_teacher
    from teacher.models.logits import teacher_logits

    record = logit_set.record
    labels = record.teacher.labels if record.target.has_labels else ()
    teacher = load_teacher(task, str(folder), None, labels, record.max_seq_length, record.windows)
    max_tokens = tokens_per_batch(torch.device("cpu"))

    def logits(texts1: Sequence[str], texts2: Sequence[str] | None) -> Floats:
        inputs = teacher.reader.tokenize(texts1, texts2, record.max_seq_length)
        with torch.inference_mode():
            return teacher_logits(teacher, inputs, max_tokens)

    return System(record.target, logits, teacher.num_parameters, bytes_of(folder))


def bytes_of(folder: Path) -> int:
    """Returns the size of the files that a model needs: settings, weights, tokenizer."""
    return sum(path.stat().st_size for name in STORED_FILES for path in folder.glob(name))


@dataclass(frozen=True)
class Rows:
    """A split's texts, gold, and the teacher's logits.

    Attributes:
        texts1: the (first) sentences, N of them.
        texts2: the second sentences, or None for single ones.
        label_N: int64 gold classes, ``NO_LABEL`` for a task with scores.
        score_N: float32 gold scores, NaN for a task with labels.
        teacher_NC: float32 logits.
    """

    texts1: list[str]
    texts2: list[str] | None
    label_N: Ints
    score_N: Floats
    teacher_NC: Floats

    def __len__(self) -> int:
        return len(self.texts1)


def read_rows(logit_set: ExampleSet, split: str, among: Ints | None = None) -> Rows:
    """Returns the rows of a split with gold, without variants, either all or those with these numbers."""
    table = logit_set.read(split, COLUMNS, CHOSEN)
    if among is not None:
        table = table.filter(
            pc.is_in(table.column("source_row"), pa.array(among, table.schema.field("source_row").type))
        )
    logits_NC = logits_of(table, logit_set.record.target.num_logits)
    return Rows(*sentences(table), *gold_arrays(logit_set.record.target, table), logits_NC)


Features = Any  # numpy's array or a sparse matrix [N, F]
# Logit of a label without training rows. A label that all training rows have gets -LEAST.
LEAST = -30.0


def pair_features(u_NF: Features, w_NF: Features) -> Features:
    """Returns |u - w|, u * w and the scalar product of two sentences, [N, 2 F + 1], dense or sparse like the inputs."""
    # Sparse matrices have no broadcasting, and dense ones of TF-IDF's width would not fit into memory.
    if sparse.issparse(u_NF):
        product_NF = u_NF.multiply(w_NF)
        return sparse.hstack([abs(u_NF - w_NF), product_NF, product_NF.sum(axis=1)]).tocsr()
    product_NF = u_NF * w_NF
    return np.hstack([abs(u_NF - w_NF), product_NF, product_NF.sum(axis=1, keepdims=True)])


def input_features(vectors: Callable[[Any], Features], texts1: Any, texts2: Any) -> Features:
    """Returns features [N, F] of texts, or of pairs by comparing their sentences.

    ``vectors`` makes the features of one text.
    """
    return vectors(texts1) if texts2 is None else pair_features(vectors(texts1), vectors(texts2))


def fit_regression(
    train: Rows,
    target: Target,
    vectors: Callable[[Any], Features],
    num_bytes: int,
    num_parameters: int = 0,
    classifier: Callable[[], Any] | None = None,
) -> System:
    """A regression on vectors of sentences: logistic for labels, ridge for scores.

    Args:
        train: rows with gold.
        target: what the logits mean.
        vectors: makes features [N, F] of texts.
        num_bytes: the size of the model that makes the vectors.
        num_parameters: the number of parameters of the model that makes the vectors.
        classifier: makes a logistic regression. Default: scikit-learn's, fitted by L-BFGS.
    """
    from sklearn.linear_model import LogisticRegression, Ridge  # only the extra `results` installs scikit-learn

    features = partial(input_features, vectors)
    classifier = classifier or partial(LogisticRegression, C=10, max_iter=1000)
    x_NP = features(train.texts1, train.texts2)
    if target.has_label_lists:
        model: Any = each_label(classifier, x_NP, train.label_N)
    elif target.has_classes:
        model = classifier().fit(x_NP, train.label_N)
    else:
        model = Ridge().fit(x_NP, train.score_N)
    own = num_weights(model)
    return System(target, predictor(model, target, features), num_parameters + own, num_bytes + 4 * own)


def num_weights(model: Any) -> int:
    """Returns the number of coefficients and intercepts of a linear model, or of the models of `each_label`."""
    models = model if isinstance(model, list) else [model]
    return sum(one.coef_.size + np.size(one.intercept_) for one in models if not isinstance(one, bool))


def vocabulary_size(vectorizer: Any) -> tuple[int, int]:
    """Returns how many terms a fitted TF-IDF vectorizer has, and the bytes of their texts and weights."""
    terms = vectorizer.vocabulary_
    return len(terms), len("\n".join(terms).encode()) + 4 * len(terms)


def each_label(make: Callable[[], Any], x_NP: Features, label_NC: Ints) -> list[Any]:
    """Fits a binary model per label. For a label that holds for all rows or for no row, stores only that constant."""
    return [make().fit(x_NP, gold_N) if len(np.unique(gold_N)) > 1 else bool(gold_N[0]) for gold_N in label_NC.T]


def predictor(model: Any, target: Target, features: Callable[[Any, Any], Features]) -> Predict:
    """Returns a function from texts to logits [N, C].

    Args:
        model: a fitted classifier or regression of scikit-learn, or the models of `each_label`.
        target: what the logits mean.
        features: makes features [N, F] of texts.
    """

    def logits(texts1: Any, texts2: Any) -> Floats:
        x_NF = features(texts1, texts2)
        if not target.has_labels:
            return np.asarray(model.predict(x_NF), np.float32)[:, None]
        logits_NC = np.full((len(texts1), target.num_logits), LEAST, dtype=np.float32)
        if target.has_label_lists:
            for k, one in enumerate(model):
                is_constant = isinstance(one, bool)
                logits_NC[:, k] = (-LEAST if one else LEAST) if is_constant else one.decision_function(x_NF)
            return logits_NC
        # scikit-learn outputs only classes that occur in its training rows. The others keep the lowest logit.
        logits_NC[:, model.classes_] = _class_logits(model, x_NF)
        return logits_NC

    return logits


def _class_logits(model: Any, x_NF: Features) -> Floats:
    """Returns log probabilities, or distances from the boundaries for a model without probabilities."""
    if hasattr(model, "predict_log_proba"):
        return np.asarray(model.predict_log_proba(x_NF))
    decision = np.asarray(model.decision_function(x_NF))
    # scikit-learn outputs one column for two classes.
    return np.stack([-decision, decision], axis=1) if decision.ndim == 1 else decision


MODEL2VEC = ("sklearn", "model2vec", "skeletoken", "transformers")
BUCKETS = 2**18
SGD = {"loss": "log_loss", "alpha": 1e-5, "average": True, "random_state": 0}


@dataclass(frozen=True)
class Baseline:
    """A baseline and its requirements.

    Attributes:
        make: fits it to training rows, with their target and the folder of model2vec's vectors.
        about: its description for the legend of the table.
        libraries: the libraries that it needs.
        needs_vectors: whether it needs model2vec's vectors.
        only_single: whether it only supports single sentences with one label.
    """

    make: Callable[[Rows, Target, Path], System]
    about: str
    libraries: tuple[str, ...] = ("sklearn",)
    needs_vectors: bool = False
    only_single: bool = False

    @property
    def missing(self) -> list[str]:
        """The libraries that are not installed."""
        return [name for name in self.libraries if importlib.util.find_spec(name) is None]

    def fit(self, train: Rows, target: Target, vectors: Path) -> System:
        """Fits it to training rows. If the target has bins, fits it to their scores."""
        return self.make(train, target if target.has_labels else SCORE, vectors)


def majority(train: Rows, target: Target, _: Path) -> System:
    """Returns a system that predicts the most frequent label, all labels of most rows, or the mean score."""
    answer_C = np.zeros(target.num_logits, dtype=np.float32)
    if target.has_classes:
        answer_C[np.bincount(train.label_N).argmax()] = 1
    elif target.has_label_lists:
        # For several labels, the best constant prediction contains the labels of more than half of the rows.
        answer_C[:] = np.where(train.label_N.mean(axis=0) > 0.5, 1, -1)
    else:
        answer_C[0] = train.score_N.mean()

    def logits(texts1: Sequence[str], texts2: Sequence[str] | None) -> Floats:
        return np.tile(answer_C, (len(texts1), 1))

    return System(target, logits, 0, 0)


def tfidf(train: Rows, target: Target, _: Path = Path()) -> System:
    """Fits a regression on TF-IDF of words and pairs of words. The vocabulary is that of the training rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(ngram_range=(1, 2)).fit([*train.texts1, *(train.texts2 or ())])
    num_terms, num_bytes = vocabulary_size(vectorizer)
    return fit_regression(train, target, vectorizer.transform, num_bytes, num_terms)


def hashed(train: Rows, target: Target, _: Path) -> System:
    """Fits a logistic regression by averaged SGD, or a ridge regression, on hashed words and pairs of words.

    The model has no vocabulary. It resembles fastText, but without its vectors.
    """
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import SGDClassifier

    # Hashing needs no vocabulary, so the model's size does not grow with the training rows.
    vectors = HashingVectorizer(ngram_range=(1, 2), n_features=BUCKETS).transform
    return fit_regression(train, target, vectors, num_bytes=0, classifier=partial(SGDClassifier, **SGD))


def static(train: Rows, target: Target, folder: Path) -> System:
    """Fits a regression on model2vec's vectors in a folder."""
    from distill.apps.results.static_vectors import fit_frozen

    return fit_frozen(train, target, folder)


def tuned(train: Rows, target: Target, folder: Path) -> System:
    """Trains model2vec's vectors in a folder and a classifier on them."""
    from distill.apps.results.static_vectors import fit_tuned

    return fit_tuned(train, target, folder)


BASELINES = {
    "majority": Baseline(
        majority,
        "always the most frequent label of the training rows, the labels of more than half of them, or their "
        "mean score",
        (),
    ),
    "TF-IDF": Baseline(tfidf, "words and pairs of words by TF-IDF, logistic or ridge regression"),
    "hashed bigrams": Baseline(
        hashed,
        "words and pairs of words hashed into 2^18 numbers, logistic regression by averaged SGD or ridge "
        "regression. It resembles fastText, but is not fastText",
    ),
    "model2vec": Baseline(static, "model2vec of the encoder, frozen, logistic or ridge regression", MODEL2VEC, True),
    "model2vec, tuned": Baseline(
        tuned,
        "model2vec of the encoder with model2vec's own classifier, which also trains the vectors and only "
        "supports single sentences",
        (*MODEL2VEC, "datasets"),
        True,
        True,
    ),
}
