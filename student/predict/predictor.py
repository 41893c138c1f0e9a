"""From text to labels, by a trained student and its tokenizer alone.

Shapes: N inputs, F features, C logits.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from pipeline.arrays import Floats, Floats64, Ints
from pipeline.errors import ConfigError
from pipeline.tasks.target import Target, predicted_scores, probabilities
from pipeline.tasks.temperature import Calibration, calibrated, interval
from pipeline.tasks.text_drift import InputProfile, answer_signals
from student.predict.labels import answer_columns, chosen_names
from student.texts import listed, unzipped
from student.word_effects import effects, without_each_word

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_SIZE = 1024  # inputs that are read at once
Prediction = dict[str, Any]


class StudentInfo(BaseModel):
    """What a caller needs to know of a student.

    Attributes:
        task: what it was trained for.
        target: what its logits mean.
        is_pair: whether it takes two texts per input.
        max_seq_length: maximum tokens of an input, including special ones. Longer inputs are truncated.
        table_dtype: how its tables are stored.
        calibration: what makes probabilities of its logits.
        profile: what inputs were like that it was not trained on.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    task: str
    target: Target
    is_pair: bool
    max_seq_length: int
    table_dtype: str
    calibration: Calibration | None = None
    profile: InputProfile | None = None

    @classmethod
    def of(cls, config: Any, **more: Any) -> Self:
        """The info of a student with a config, and what a subclass adds."""
        return cls(
            task=config.task,
            target=config.target,
            is_pair=getattr(config, "is_pair", False),  # a student of labelled words reads one text
            max_seq_length=config.max_seq_length,
            table_dtype=config.table_dtype,
            calibration=config.calibration,
            profile=config.profile,
            **more,
        )


class Predictor:
    """A trained student that reads text: from the folder of its run, or from its file without torch.

    This makes one of its subclasses, `EnginePredictor`, `FolderPredictor`, `RunPredictor` or `CascadePredictor`. For a
    student that labels words, it is also a `WordPredictor`.

    Args:
        run: folder of a finished run, a file of ``distill export --file``, or the folder of a cascade.
        task: of a run of several tasks the one to answer for, the name of its folder in ``run``.
        abstain: answer ``abstain`` where the student is less sure than its certificate (``distill certify``) demands.
        costs: what it costs to miss a label, by its name, where missing any other costs 1.

    Attributes:
        info: what it answers, and for which inputs.
        student: from a folder the torch module.
        reader: from a folder what makes ids of its texts, a `TextReader`.
        threshold: the margin below which it abstains, or None if it never does.
        bias_C: added to the logits before labels are chosen, from thresholds of a multi-label student and costs, or
            None.

    Raises:
        IntegrityError: if the folder holds no student, or the file is not one's.
        ConfigError: if it must abstain but the run has no certificate, or if a cost has an unknown label.
    """

    answer_names: ClassVar[Set[str]] = {"label", "probabilities", "margin", "score", "interval"}  # columns of `columns`

    info: StudentInfo
    student: Any
    reader: Any
    threshold: float | None
    bias_C: Floats | None

    def __new__(cls, run: str | Path, *_: Any, task: str | None = None, **__: Any) -> "Predictor":
        """Makes the predictor for a file, or for the kind of the student in a folder."""
        if cls is not Predictor:
            return super().__new__(cls)
        from student.predict.engine_predictor import predictor_type

        # Without it torch is needed, which takes seconds to import.
        by_engine = predictor_type(Path(run), task)
        if by_engine is not None:
            return super().__new__(by_engine)
        from student.cascade.cascade_file import CASCADE_FILE

        if (Path(run) / CASCADE_FILE).is_file():
            from student.cascade.cascade_predictor import CascadePredictor

            return super().__new__(CascadePredictor)
        from student.model.config_file import labels_words

        if labels_words(Path(run) / (task or "")):
            from student.predict.run_words import TokenLabelPredictor

            return super().__new__(TokenLabelPredictor)
        from student.predict.run_predictor import RunPredictor

        return super().__new__(RunPredictor)

    def __init__(
        self,
        run: str | Path,
        abstain: bool = False,
        costs: Mapping[str, float] | None = None,
        task: str | None = None,
    ) -> None:
        self._open(run, abstain, costs or {}, task)

    def _open(self, run: str | Path, abstain: bool, costs: Mapping[str, float], task: str | None) -> None:
        """Sets the attributes."""
        raise NotImplementedError

    def __call__(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> list[Prediction]:
        """Predicts labels, or scores for a task with scores.

        Args:
            sentences1: the (first) sentences, or pairs of texts, as a list, an array, a column or an iterator.
            sentences2: the second sentences, for a pair task.

        Returns:
            One dict per input: ``label`` (of a multi-label task the list of labels that hold) and calibrated
            ``probabilities`` by label name, or ``score`` and the ``interval`` that contains gold in 9 of 10 cases.

        Raises:
            ConfigError: if the student takes pairs and gets single sentences, or the other way round.
        """
        return self.predictions(self.logits(sentences1, sentences2))

    def predictions(self, raw_logits_NC: Floats) -> list[Prediction]:
        """Returns what a call returns, for the inputs that have these logits."""
        target, logits_NC = self.info.target, calibrated(raw_logits_NC, self.info.calibration)
        if not target.has_labels:
            return [_scored(score, self.info.calibration) for score in predicted_scores(target, logits_NC).tolist()]
        labels = chosen_names(target, logits_NC, self.threshold, self.bias_C)
        return [
            {"label": label, "probabilities": dict(zip(target.names, row, strict=True))}
            for label, row in zip(labels, probabilities(target, logits_NC).tolist(), strict=True)
        ]

    def logits(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> Floats:
        """The student's logits as an array, which for many sentences is several times as fast as dicts.

        Args:
            sentences1: the (first) sentences, or pairs of texts, as of a call.
            sentences2: the second sentences, for a pair task.

        Returns:
            float32 logits [N, C] before softmax, in the order of the labels of ``info.target``.

        Raises:
            ConfigError: if the student takes pairs and gets single sentences, or the other way round.
        """
        raise NotImplementedError

    def calibrated_logits(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> Floats:
        """The logits [N, C] of which softmax, or sigmoid of labels apart, makes calibrated probabilities."""
        return calibrated(self.logits(sentences1, sentences2), self.info.calibration)

    def columns(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> "dict[str, pa.Array]":
        """The answers as columns: what `predict --file` writes of each input, see `answer_columns`."""
        return self.columns_of(self.logits(sentences1, sentences2))

    def columns_of(self, raw_logits_NC: Floats) -> "dict[str, pa.Array]":
        """Returns the answers as columns, for the inputs that have these logits."""
        info = self.info
        logits_NC = calibrated(raw_logits_NC, info.calibration)
        return answer_columns(info.target, logits_NC, self.threshold, self.bias_C, info.calibration)

    @property
    def is_quick(self) -> bool:
        """Whether some dozens of sentences take it a millisecond or two."""
        return False

    @property
    def is_pair(self) -> bool:
        """Whether an input has two texts."""
        return self.info.is_pair

    def accepted_columns(self) -> list[tuple[str, ...]]:
        """What the columns of inputs may be called, whatever their task calls them."""
        return [(name,) for name in ("sentence1", "sentence2")[: 1 + self.info.is_pair]]

    def input_problem(self, value: object) -> str | None:
        """What is wrong with an input, or None if nothing is."""
        return None if isinstance(value, str) else "not text"

    def check_column(self, table: "pa.Table", path: str, name: str, problems: list[str], first_row: int) -> None:
        """Adds what is wrong with a column of inputs of a table that begins with that row of its file."""
        from pipeline.sources.columns import checked_text

        checked_text(table, path, name, problems, first_row)

    def explain(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> list[Prediction]:
        """Predicts, and computes the effect of each word by leaving it out, which takes one more sequence per word.

        Args:
            sentences1: the (first) sentences.
            sentences2: the second sentences, for a pair task.

        Returns:
            What calling gives, with the list ``words``: a dict for each word, see `student.word_effects.effects`.

        Raises:
            ConfigError: if the student takes pairs and gets single sentences, or the other way round.
        """
        texts = self._texts(sentences1, sentences2)
        answers, logits_NC = self(*texts), self.calibrated_logits(*texts)
        words, logits_WC = without_each_word(self.calibrated_logits, *texts)
        told = effects(self.info.target, logits_NC, words, logits_WC)
        return [answer | {"words": row} for answer, row in zip(answers, told, strict=True)]

    def encode(self, sentences: Iterable[str]) -> Floats:
        """What the student makes of each sentence before it compares or judges: its vector.

        Args:
            sentences: also of a student of pairs, each alone.

        Returns:
            float32 [N, F], not normalised.
        """
        raise NotImplementedError

    def num_tokens(self, sentences1: Sequence[str], sentences2: Sequence[str] | None = None) -> Ints:
        """Returns the tokens of each input [N], special ones included, before it is truncated."""
        raise NotImplementedError

    def text_signals(self, sentences1: Sequence[Any], sentences2: Sequence[str] | None = None) -> dict[str, Floats64]:
        """Returns what `pipeline.tasks.text_drift.text_signals` measures of texts."""
        raise NotImplementedError

    def signals(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> dict[str, Floats64]:
        """Returns the numbers by which inputs are compared with ``info.profile``. Arguments as of a call."""
        texts = self._texts(sentences1, sentences2)
        return self.text_signals(*texts) | answer_signals(self.info.target, self.calibrated_logits(*texts))

    def text_columns(self) -> list[tuple[str, ...]] | None:
        """Returns what its task calls the columns of texts, or None if that is not known."""
        raise NotImplementedError

    def certified_threshold(self) -> float:
        """Returns the margin below which it is to abstain.

        Raises:
            ConfigError: if there is no certificate.
        """
        raise NotImplementedError

    def hashes(self) -> dict[str, str]:
        """Returns the SHA-256 of all that decides the answers, by file."""
        raise NotImplementedError

    def set_threads(self, count: int) -> None:
        """Limits the threads that read many inputs."""
        raise NotImplementedError

    def collect(self, folder: Path, has_text: bool = True) -> None:
        """Makes a cascade append the inputs that it hands on to files in a folder, see `pipeline.sources.collected`.

        Args:
            folder: of the files.
            has_text: whether their texts are written, or only the hashes of them.

        Raises:
            ConfigError: if it is no cascade.
        """
        raise ConfigError(f"--collect {folder}: only a cascade hands inputs on. See `distill cascade --help`")

    def _texts(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None) -> tuple[list[str], list[str] | None]:
        """The first sentences, and of a student of pairs the second ones."""
        info, first, second = self.info, listed(sentences1), None
        if sentences2 is not None:
            second = listed(sentences2)
        elif info.is_pair and not (first and isinstance(first[0], str)):  # no rows at all are no pairs, either
            first, second = unzipped(first)
        if info.is_pair != (second is not None):
            raise ConfigError(f"this student of {info.task!r} takes {'pairs' if info.is_pair else 'one sentence'}")
        if second is not None and len(first) != len(second):
            raise ConfigError(f"{len(first)} first sentences, but {len(second)} second ones")
        return first, second


def _scored(score: float, calibration: Calibration | None) -> Prediction:
    limits = interval(score, calibration)
    return {"score": score} if limits is None else {"score": score, "interval": limits}
