"""A student from its file, by the engine: no torch is imported.

`distill export --file` writes such a file, and `train-student` writes one into the folder of its run.

Shapes: N inputs, F features, C logits, W words.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.arrays import Floats, Floats64, Ints, Ragged
from pipeline.errors import ConfigError, IntegrityError, did_you_mean
from pipeline.file_names import STUDENT_FILE
from pipeline.files import sha256
from pipeline.tasks.text_drift import text_signals
from pipeline.training.run_record import text_columns
from student.predict.backend import Backend, Opened, SharedLogits
from student.predict.certificate import certified_margin, file_hashes
from student.predict.engine_calls import encoded_by, has_engine, logits_by, opened, word_logits_by
from student.predict.labels import bias_of, label_bias
from student.predict.student_info import FileInfo, read_infos
from student.predict.word_answers import answers_of


class EngineBackend:
    """A student in the engine. See `Backend`.

    Args:
        path: the file.
        engine: the engine's predictor of the student.
        info: what the file holds of it.
        folder: of its run, if the file is the one in it. The student and its reader are loaded when they are used.

    Raises:
        IntegrityError: if the file's two descriptions of the student differ.
    """

    is_quick = True

    def __init__(self, path: Path, engine: Any, info: FileInfo, folder: Path | None = None) -> None:
        described = info.name, info.is_pair, info.labels_words, info.certificate is not None
        if (engine.task, engine.is_pair, engine.labels_words, engine.has_certificate) != described:
            raise IntegrityError(f"{path}: its two descriptions of the student differ. Export it again")
        self.path, self.engine, self.info, self.folder = path, engine, info, folder
        self.answers = answers_of(info)

    @cached_property
    def by_torch(self) -> Backend:
        """The same student with its weights in torch.

        Raises:
            ConfigError: if there is only the file, so that a command that needs more fails with a remedy.
        """
        if self.folder is None:
            raise ConfigError(
                f"{self.path}: is a file for the engine, but this needs torch. Give the folder of its run"
            )
        from student.predict.torch_backend import TorchBackend

        return TorchBackend(self.folder)

    @property
    def student(self) -> Any:
        """The torch module."""
        return self.by_torch.student

    @property
    def reader(self) -> Any:
        """What makes ids of its texts."""
        return self.by_torch.reader

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again from the file, which has to be there. A run's folder travels as the content of its file."""
        content = None if self.folder is None else self.path.read_bytes()
        return _revived, (self.path, self.info, self.folder, content)

    def logits(self, first: Sequence[str], second: Sequence[str] | None) -> Floats:
        logits_NC: Floats = logits_by(self.engine, first, second)
        return logits_NC

    def word_logits(self, sentences: Sequence[Sequence[str]]) -> Floats:
        return word_logits_by(self.engine, sentences)

    def encode(self, texts: Sequence[str]) -> Floats:
        return encoded_by(self.engine, texts)

    def num_tokens(self, first: Sequence[str], second: Sequence[str] | None) -> Ints:
        parts = [first] if second is None else [first, second]
        counts = np.array([[len(self.engine.tokenize(text)) for text in part] for part in parts], dtype=np.int64)
        return np.asarray(self.info.num_special_tokens + counts.sum(axis=0))

    def text_signals(self, first: Sequence[str], second: Sequence[str] | None) -> dict[str, Floats64]:
        assert self.info.profile is not None, "there is nothing to compare with"
        texts = [part for part in (first, second) if part is not None]
        parts = [Ragged.of([self.engine.tokenize(text) for text in part]) for part in texts]
        signals = text_signals(parts, self.info.profile.is_seen_V)
        # The engine truncates when it computes logits, after it has made tokens.
        most = self.info.max_seq_length - self.info.num_special_tokens
        return signals | {"tokens": np.minimum(signals["tokens"], most)}

    # The certificate, thresholds and columns in a folder may have changed since the file was written.

    def text_columns(self) -> list[tuple[str, ...]] | None:
        if self.folder is not None:
            return text_columns(self.folder)
        return None if self.info.text_columns is None else list(self.info.text_columns)

    def certified_threshold(self) -> float:
        if self.folder is not None:
            return certified_margin(self.folder).threshold
        if self.info.certificate is None:
            raise ConfigError(
                f"{self.path}: has no certificate of {self.info.name!r}. Run `distill certify`, then `distill export`"
            )
        return self.info.certificate.threshold

    def bias(self, costs: Mapping[str, float]) -> Floats | None:
        if self.folder is not None:
            return label_bias(self.folder, self.info.target, costs)
        return bias_of(self.info.thresholds, self.info.target, costs)

    def hashes(self) -> dict[str, str]:
        return {self.path.name: sha256(self.path)} if self.folder is None else dict(self.info.made_from)

    def set_threads(self, count: int) -> None:
        self.engine.threads = count


def _revived(path: Path, info: FileInfo, folder: Path | None, content: bytes | None) -> EngineBackend:
    source = path if content is None else content
    engine = opened(path, lambda module: module.Predictor(source, task=info.name))
    return EngineBackend(path, engine, info, folder)


def open_file(path: Path, task: str | None) -> EngineBackend:
    """Opens the student of a file, or of one of its tasks.

    Raises:
        IntegrityError: if it is not a student's file.
        ConfigError: if it has several tasks, or not this one.
    """
    infos = read_infos(path)
    if task is None and len(infos) > 1:
        raise ConfigError(
            f"{path}: has several tasks. Open it with MultiTaskPredictor, or name one of {', '.join(infos)}"
        )
    if task is not None and task not in infos:
        raise ConfigError(f"{path} has no task {task!r}. {did_you_mean(task, infos)}")
    return _revived(path, infos[task or next(iter(infos))], None, None)


def open_folder(run: Path, task: str | None) -> EngineBackend | None:
    """Opens the student of a run's folder by the file in it, or returns None if the engine cannot answer from one."""
    whole, name = _whole_run(run, task)
    fitting = fitting_infos(whole, () if name is None else (name,))
    if not fitting:
        return None
    path, info = whole / STUDENT_FILE, fitting[0]
    engine = opened(path, lambda module: module.Predictor(path, task=info.name))
    return EngineBackend(path, engine, info, run / (task or ""))


def _whole_run(run: Path, task: str | None) -> tuple[Path, str | None]:
    """Returns the folder of a run and its task. Given the folder of one task of several, the run is one level up."""
    if task is not None or (run / STUDENT_FILE).is_file():
        return run, task
    folder = run.resolve()
    return folder.parent, folder.name


def fitting_infos(run: Path, tasks: Sequence[str]) -> list[FileInfo]:
    """Returns what the file in a run's folder holds of some tasks, or of its only one.

    Empty if the file does not fit: it was not made from the weights that are there, or the engine was not built.
    """
    if not (run / STUDENT_FILE).is_file() or not has_engine():
        return []
    try:
        infos = read_infos(run / STUDENT_FILE)
    except IntegrityError:
        return []  # the weights beside it may be whole
    folders = {task: run / task for task in tasks}
    if not tasks and len(infos) == 1:
        folders = dict.fromkeys(infos, run)
    fits = all(task in infos and infos[task].made_from == file_hashes(folder) for task, folder in folders.items())
    return [infos[task] for task in folders] if fits else []


def open_several(run: Path, tasks: Sequence[str]) -> Opened:
    """Opens the students of some tasks of a file, or of a folder that has one. See `MultiTaskPredictor`."""
    path = run if run.is_file() else run / STUDENT_FILE
    infos = read_infos(path)
    engine = opened(path, lambda module: module.MultiTaskPredictor(path, tasks=tasks))
    backends: dict[str, Backend] = {
        task: EngineBackend(path, one, infos[task], None if run.is_file() else run / task)
        for task, one in engine.predictors.items()
    }
    of_words = [task for task in backends if infos[task].labels_words]
    of_texts = [task for task in backends if task not in of_words]
    groups = ([task for task in of_texts if infos[task].is_pair == is_pair] for is_pair in (False, True))
    together: list[tuple[list[str], SharedLogits | None]] = [
        (names, partial(logits_by, engine)) for names in groups if names
    ]
    return backends, together + [([task], None) for task in of_words]
