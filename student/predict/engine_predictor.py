"""A student from its file, by the engine: no torch is imported.

`distill export --file` writes such a file, and `train-student` writes one into the folder of its run.

Shapes: N inputs, F features, C logits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter
from safetensors import SafetensorError, safe_open

from pipeline.arrays import Floats, Floats64, Ints, Ragged
from pipeline.errors import ConfigError, IntegrityError, MissingDependencyError, did_you_mean
from pipeline.file_names import STUDENT_FILE
from pipeline.files import sha256
from pipeline.strings import require_text
from pipeline.tasks.text_drift import text_signals
from pipeline.training.run_record import text_columns
from student.predict.certificate import CertifiedMargin, certified_margin, file_hashes
from student.predict.labels import bias_of, label_bias
from student.predict.multi_task import Opened, SharedLogits
from student.predict.predictor import Predictor, StudentInfo
from student.texts import listed

INFO = "distill"  # key of the metadata that holds a `FileInfo`


class FileInfo(StudentInfo):
    """The content of a file that the engine does not read, about one of its students.

    Attributes:
        name: of its task in the file: that of its folder if there are several.
        labels_words: whether it labels the words of an input.
        num_special_tokens: that stand around the texts of an input.
        text_columns: what the task calls the columns of its texts.
        thresholds: of a multi-label student, the probability of each label above which it is predicted.
        certificate: the margin above which it answers, if its run had a certificate.
        made_from: the SHA-256 of the run's files by name, see `file_hashes`.
    """

    name: str
    labels_words: bool = False
    num_special_tokens: int = Field(ge=0)
    text_columns: tuple[tuple[str, ...], ...] | None = None
    thresholds: dict[str, float] = Field({}, max_length=2**16)
    certificate: CertifiedMargin | None = None
    made_from: dict[str, str] = Field({}, max_length=8)


FILE_INFOS: TypeAdapter[list[FileInfo]] = TypeAdapter(Annotated[list[FileInfo], Field(min_length=1, max_length=1024)])


class EnginePredictor(Predictor):
    """A student from its file. See `Predictor` for arguments and errors.

    Attributes:
        path: the file.
    """

    info: FileInfo

    def _open(self, run: str | Path, abstain: bool, costs: Mapping[str, float], task: str | None) -> None:
        check_abstains(abstain, costs)
        self.path = Path(run)
        infos = {info.name: info for info in read_infos(self.path)}
        if task is None and len(infos) > 1:
            raise ConfigError(
                f"{run}: has several tasks. Open it with MultiTaskPredictor, or name one of {', '.join(infos)}"
            )
        if task is not None and task not in infos:
            raise ConfigError(f"{run} has no task {task!r}. {did_you_mean(task, infos)}")
        engine = opened(self.path, lambda module: module.Predictor(self.path, task=task))
        self._take(engine, infos[task or next(iter(infos))], costs)
        self.threshold = self.certified_threshold() if abstain else None

    def _take(self, engine: Any, info: FileInfo, costs: Mapping[str, float]) -> None:
        described = info.name, info.is_pair, info.labels_words, info.certificate is not None
        if (engine.task, engine.is_pair, engine.labels_words, engine.has_certificate) != described:
            raise IntegrityError(f"{self.path}: its two descriptions of the student differ. Export it again")
        self._engine, self.info, self._costs = engine, info, dict(costs)
        self.threshold = None
        self.bias_C = bias_of(info.thresholds, info.target, self._costs)

    def __getattr__(self, name: str) -> Any:
        """Raises ConfigError for what only a folder gives, so that a command that needs it fails with a remedy."""
        if name in {"student", "reader"}:
            raise ConfigError(
                f"{self.path}: is a file for the engine, but this needs torch. Give the folder of its run"
            )
        raise AttributeError(name)

    @property
    def is_quick(self) -> bool:
        """See `Predictor`."""
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again from the file, which has to be there."""
        return type(self), (self.path, self.threshold is not None, self._costs, self.info.name)

    def logits(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> Floats:
        """See `Predictor`."""
        logits_NC: Floats = logits_by(self._engine, *self._texts(sentences1, sentences2))
        return logits_NC

    def encode(self, sentences: Iterable[str]) -> Floats:
        """See `Predictor`."""
        return encoded_by(self._engine, listed(sentences))

    def num_tokens(self, sentences1: Sequence[str], sentences2: Sequence[str] | None = None) -> Ints:
        """See `Predictor`."""
        parts = [sentences1] if sentences2 is None else [sentences1, sentences2]
        counts = np.array([[len(self._engine.tokenize(text)) for text in part] for part in parts], dtype=np.int64)
        return np.asarray(self.info.num_special_tokens + counts.sum(axis=0))

    def text_signals(self, sentences1: Sequence[Any], sentences2: Sequence[str] | None = None) -> dict[str, Floats64]:
        """See `Predictor`."""
        assert self.info.profile is not None, "there is nothing to compare with"
        texts = [part for part in (sentences1, sentences2) if part is not None]
        parts = [Ragged.of([self._engine.tokenize(text) for text in part]) for part in texts]
        signals = text_signals(parts, self.info.profile.is_seen_V)
        # The engine truncates when it computes logits, after it has made tokens.
        most = self.info.max_seq_length - self.info.num_special_tokens
        return signals | {"tokens": np.minimum(signals["tokens"], most)}

    def text_columns(self) -> list[tuple[str, ...]] | None:
        """See `Predictor`."""
        return None if self.info.text_columns is None else list(self.info.text_columns)

    def certified_threshold(self) -> float:
        """See `Predictor`."""
        if self.info.certificate is None:
            raise ConfigError(
                f"{self.path}: has no certificate of {self.info.name!r}. Run `distill certify`, then `distill export`"
            )
        return self.info.certificate.threshold

    def hashes(self) -> dict[str, str]:
        """See `Predictor`."""
        return {self.path.name: sha256(self.path)}

    def set_threads(self, count: int) -> None:
        """See `Predictor`."""
        self._engine.threads = count


class FolderPredictor(EnginePredictor):
    """A student from the folder of its run, by the file in it. See `Predictor` for arguments and errors.

    Attributes:
        folder: of the run.
        student: the torch module, which like the reader is loaded when it is first used.
        reader: what makes ids of its texts.
    """

    def _open(self, run: str | Path, abstain: bool, costs: Mapping[str, float], task: str | None) -> None:
        check_abstains(abstain, costs)
        whole, name = _whole_run(Path(run), task)
        super()._open(whole / STUDENT_FILE, False, costs, name)
        self._belong_to(Path(run) / (task or ""))
        self.threshold = self.certified_threshold() if abstain else None

    def _belong_to(self, folder: Path) -> None:
        # Its certificate and its thresholds may have changed since the file was written.
        self.folder = folder
        self.bias_C = label_bias(folder, self.info.target, self._costs)

    def __getattr__(self, name: str) -> Any:
        """What needs torch is loaded when it is first used."""
        if name in {"student", "reader"}:
            return getattr(self.by_torch, name)
        raise AttributeError(name)

    @cached_property
    def by_torch(self) -> Predictor:
        """The same student with its weights in torch."""
        from student.predict.run_predictor import RunPredictor

        return RunPredictor(self.folder)

    def __reduce__(self) -> tuple[Any, ...]:
        """The predictor without its folder, which other machines do not have."""
        others = {name: value for name, value in vars(self).items() if name not in {"_engine", "by_torch"}}
        return _revived, (type(self), self.path.read_bytes(), others)

    def text_columns(self) -> list[tuple[str, ...]] | None:
        """See `Predictor`."""
        return text_columns(self.folder)

    def certified_threshold(self) -> float:
        """See `Predictor`."""
        return certified_margin(self.folder).threshold

    def hashes(self) -> dict[str, str]:
        """See `Predictor`."""
        return dict(self.info.made_from)


def _revived(kind: type[FolderPredictor], content: bytes, others: dict[str, Any]) -> FolderPredictor:
    predictor = object.__new__(kind)
    vars(predictor).update(others)
    predictor._engine = opened(predictor.path, lambda module: module.Predictor(content, task=predictor.info.name))
    return predictor


def has_file(run: Path, tasks: Sequence[str] = ()) -> bool:
    """Whether the engine can answer from the file in a run's folder: it was made from the weights that are there.

    Args:
        run: the folder, of a run or of one of its tasks.
        tasks: of a run of several tasks those to answer for.
    """
    return bool(_fitting(run, tasks))


def _fitting(run: Path, tasks: Sequence[str]) -> list[FileInfo]:
    """Returns what the file in a folder holds of the students to answer for, or nothing if it does not fit."""
    if not tasks:
        run, task = _whole_run(run, None)
        tasks = () if task is None else (task,)
    if not (run / STUDENT_FILE).is_file() or not has_engine():
        return []
    try:
        infos = {info.name: info for info in read_infos(run / STUDENT_FILE)}
    except IntegrityError:
        return []  # the weights beside it may be whole
    folders = {task: run / task for task in tasks}
    if not tasks and len(infos) == 1:
        folders = dict.fromkeys(infos, run)
    fits = all(task in infos and infos[task].made_from == file_hashes(folder) for task, folder in folders.items())
    return [infos[task] for task in folders] if fits else []


def _whole_run(run: Path, task: str | None) -> tuple[Path, str | None]:
    """Returns the folder of a run and its task. Given the folder of one task of several, the run is one level up."""
    if task is not None or (run / STUDENT_FILE).is_file():
        return run, task
    folder = run.resolve()
    return folder.parent, folder.name


def check_abstains(abstain: bool, costs: Mapping[str, float]) -> None:
    """Raises ConfigError for a student that has costs and is to abstain."""
    if abstain and costs:
        raise ConfigError("costs: a certificate is about the most probable label. Remove the costs, or do not abstain")


def open_several(run: Path, tasks: Sequence[str], abstain: bool) -> Opened:
    """Opens the students of some tasks of a file, or of a folder that has one. See `MultiTaskPredictor`."""
    is_file = run.is_file()
    path = run if is_file else run / STUDENT_FILE
    infos = {info.name: info for info in read_infos(path)}
    engine = opened(path, lambda module: module.MultiTaskPredictor(path, tasks=tasks))
    predictors: dict[str, Predictor] = {}
    for task, one in engine.predictors.items():
        made: EnginePredictor = object.__new__(_type_of(infos[task], is_file))
        made.path = path
        made._take(one, infos[task], {})
        if isinstance(made, FolderPredictor):
            made._belong_to(run / task)
        made.threshold = made.certified_threshold() if abstain else None
        predictors[task] = made
    of_words = [task for task in predictors if infos[task].labels_words]
    of_texts = {task: one for task, one in predictors.items() if task not in of_words}
    groups = ([task for task, one in of_texts.items() if one.is_pair == is_pair] for is_pair in (False, True))
    together: list[tuple[list[str], SharedLogits | None]] = [
        (names, partial(logits_by, engine)) for names in groups if names
    ]
    return predictors, together + [([task], None) for task in of_words]


def predictor_type(run: Path, task: str | None) -> type[EnginePredictor] | None:
    """Returns the class of the predictor for a file, or for a folder; None if the engine cannot answer for the folder.

    Args:
        run: the file or the folder.
        task: the name of the task, if there are several.

    Raises:
        IntegrityError: if the file is not a student's.
    """
    if not run.is_file():
        fitting = _fitting(run, [task] if task else [])
        return _type_of(fitting[0], is_file=False) if fitting else None
    infos = read_infos(run)
    # A wrong name is reported when the student is opened.
    return _type_of(next((info for info in infos if info.name == task), infos[0]), is_file=True)


def _type_of(info: FileInfo, is_file: bool) -> type[EnginePredictor]:
    if not info.labels_words:
        return EnginePredictor if is_file else FolderPredictor
    from student.predict.engine_words import WordFilePredictor, WordFolderPredictor

    return WordFilePredictor if is_file else WordFolderPredictor


def read_infos(path: Path) -> list[FileInfo]:
    """What a file holds of its students.

    Raises:
        IntegrityError: if it is not a student's.
    """
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise IntegrityError(f"{path}: not a student's file: {error}") from error
    try:
        return FILE_INFOS.validate_json(metadata.get(INFO, ""))
    except ValueError as error:
        raise IntegrityError(
            f"{path}: does not describe its student. Write it with `distill export RUN --file`"
        ) from error


def has_engine() -> bool:
    """Whether the engine was built."""
    try:
        from student.engine.python import distill_student  # noqa: F401
    except OSError:
        return False
    return True


def opened(name: str | Path, make: Callable[[Any], Any]) -> Any:
    """Returns what is made of the engine's Python package.

    Args:
        name: of the student in messages.
        make: from the package to one of its predictors.

    Raises:
        MissingDependencyError: if the engine was not built.
        IntegrityError: if it refuses the student.
    """
    if not has_engine():
        raise MissingDependencyError(
            f"{name}: the engine is not built. Install a C++17 compiler, and then distill-offline again"
        )
    from student.engine.python import distill_student

    try:
        return make(distill_student)
    except distill_student.DistillError as error:
        raise IntegrityError(str(error)) from error


def logits_by(engine: Any, first: Sequence[str], second: Sequence[str] | None) -> Any:
    """Returns what an engine's predictor, of one task or of several, answers to texts.

    Args:
        engine: the predictor.
        first: the (first) texts.
        second: the second ones, for pairs.

    Raises:
        DataError: naming the first sentence that is not text.
    """
    texts = (first,) if second is None else (first, second)
    return _answered(lambda: engine.logits(first, second), lambda: texts)


def word_logits_by(engine: Any, sentences: Sequence[Sequence[str]]) -> Floats:
    """Returns the logits of the words of all sentences [W, C]. See `logits_by`."""
    logits_WC: Floats = _answered(lambda: engine.logits(sentences), lambda: ([" ".join(words) for words in sentences],))
    return logits_WC


def encoded_by(engine: Any, texts: Sequence[str]) -> Floats:
    """Returns the vectors of texts. See `logits_by`."""
    vectors_NF: Floats = _answered(lambda: engine.encode(texts), lambda: (texts,))
    return vectors_NF


def _answered(ask: Callable[[], Any], texts: Callable[[], tuple[Sequence[Any], ...]]) -> Any:
    """Returns an answer of the engine. The error of a sentence that is not text has the sentence's number."""
    from student.engine.python.distill_student import DistillError

    try:
        return ask()
    except DistillError as error:
        require_text(texts(), 0)
        raise IntegrityError(str(error)) from error
