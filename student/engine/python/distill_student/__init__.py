"""A trained student that reads text, with numpy as its only dependency.

``Predictor("student.distill").predict(["what a film"])``. The file is written by ``distill export RUN --file FILE``.
`MultiTaskPredictor` predicts for several tasks that share an encoder, and reads each text once.
`Predictor.predict` does not use numpy, because importing numpy takes longer than opening a student and predicting.
"""

import ctypes
import os
import weakref
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

__all__ = ["DistillError", "MultiTaskPredictor", "Predictor"]

File = str | os.PathLike[str] | bytes
LIBRARY = Path(__file__).parent / "libdistill_student.so"
CLASSES, LABELS, SCORE, WORDS = range(4)
ABSTAIN = "abstain"  # in place of the label of an unsure prediction
INPUTS_PER_THREAD = 256  # starting a thread takes longer than reading fewer texts


class DistillError(Exception):
    """Raised for a file without a student, or arguments that do not fit the student."""


class _Texts(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char_p), ("starts", ctypes.c_void_p), ("count", ctypes.c_int64))


class _Sentences(ctypes.Structure):
    _fields_ = (("words", _Texts), ("starts", ctypes.c_void_p), ("count", ctypes.c_int64))


class _Tasks(ctypes.Structure):
    _fields_ = (("numbers", ctypes.c_void_p), ("count", ctypes.c_int64))


class _Info(ctypes.Structure):
    _fields_ = (
        ("task", ctypes.c_char_p),
        ("kind", ctypes.c_int),
        ("is_pair", ctypes.c_int32),
        ("num_logits", ctypes.c_int64),
        ("num_answers", ctypes.c_int64),
        ("num_features", ctypes.c_int64),
        ("num_tokens", ctypes.c_int64),
        ("max_tokens", ctypes.c_int64),
        ("has_certificate", ctypes.c_int32),
    )


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    texts, student, address = ctypes.POINTER(_Texts), ctypes.c_void_p, ctypes.c_void_p
    inputs: list[Any] = [student, ctypes.POINTER(_Tasks), texts, texts, ctypes.c_int32]
    for name in ("version", "level", "last_error"):
        getattr(library, f"distill_{name}").restype = ctypes.c_char_p
    library.distill_open.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
    library.distill_open_bytes.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p)]
    library.distill_close.argtypes = [student]
    library.distill_close.restype = None
    library.distill_num_tasks.argtypes = [student]
    library.distill_num_tasks.restype = ctypes.c_int64
    library.distill_describe.argtypes = [student, ctypes.c_int64, ctypes.POINTER(_Info)]
    library.distill_label.argtypes = [student, ctypes.c_int64, ctypes.c_int64]
    library.distill_label.restype = ctypes.c_char_p
    library.distill_tokenise.argtypes = [student, ctypes.c_char_p, ctypes.c_int64, address, ctypes.c_int64, address]
    library.distill_logits.argtypes = [*inputs, address]
    library.distill_predict.argtypes = [*inputs, ctypes.c_int32, address, address]
    sentences: list[Any] = [student, ctypes.POINTER(_Tasks), ctypes.POINTER(_Sentences), ctypes.c_int32]
    library.distill_word_logits.argtypes = [*sentences, address]
    library.distill_predict_words.argtypes = [*sentences, address, address]
    library.distill_encode.argtypes = [student, texts, ctypes.c_int32, address]
    return library


_library = _load(LIBRARY)


class _File:
    """An open file: its handle, and the description of each task by name."""

    def __init__(self, file: File) -> None:
        self.handle = ctypes.c_void_p()
        self.name = "the student" if isinstance(file, bytes) else os.fspath(file)  # in messages
        if isinstance(file, bytes):
            self.content = file  # the engine reads these bytes as long as it is open
            _check(_library.distill_open_bytes(file, len(file), ctypes.byref(self.handle)))
        else:
            _check(_library.distill_open(os.fsencode(file), ctypes.byref(self.handle)))
        # When Python ends, threads may still read the file, and modules are gone.
        weakref.finalize(self, _library.distill_close, self.handle).atexit = False
        self.tasks: dict[str, tuple[int, _Info]] = {}
        for number in range(_library.distill_num_tasks(self.handle)):
            info = _Info()
            _check(_library.distill_describe(self.handle, number, ctypes.byref(info)))
            self.tasks[info.task.decode()] = number, info

    def labels(self, number: int, count: int) -> tuple[str, ...]:
        return tuple(_library.distill_label(self.handle, number, k).decode() for k in range(count))


class Predictor:
    """A trained student. Several threads may use it at once.

    Args:
        file: the student's file, or its content as bytes.
        threads: number of threads for many inputs. Default: one per processor.
        task: the task, for a file with several.

    Attributes:
        task: the student's task.
        labels: the names of its labels, or ``score`` for a regression student.
        is_pair: whether an input has two texts.
        labels_words: whether an input is a list of words, each of which gets a label.
        threads: number of threads for many inputs.
        has_certificate: whether `predict` can abstain.
        num_features: the number of features that `encode` returns for a text.

    Raises:
        DistillError: if the file cannot be read or is not a student's, or has no such task.
    """

    def __init__(self, file: File, threads: int | None = None, task: str | None = None) -> None:
        opened = _File(file)
        if task is None and len(opened.tasks) > 1:
            raise DistillError(f"{opened.name}: has several tasks. Choose one by task=: {', '.join(opened.tasks)}")
        self._open(opened, threads, task)

    def _open(self, file: _File, threads: int | None, task: str | None) -> None:
        self._file, self.threads = file, threads or os.cpu_count() or 1
        self.task = next(iter(file.tasks)) if task is None else task
        if self.task not in file.tasks:
            raise DistillError(f"{file.name}: has no task {task!r}. It has {', '.join(file.tasks)}")
        self._number, info = file.tasks[self.task]
        self._num_logits, self._num_answers = int(info.num_logits), int(info.num_answers)
        self._kind, self.is_pair, self.num_features = int(info.kind), bool(info.is_pair), int(info.num_features)
        self.labels_words = self._kind == WORDS
        self.has_certificate = bool(info.has_certificate)
        self.labels = file.labels(self._number, self._num_answers)

    def __reduce__(self) -> Any:
        raise TypeError("a Predictor cannot be pickled. Open its file again.")

    def predict(
        self, texts: Sequence[Any], seconds: Sequence[str] | None = None, *, abstain: bool = False
    ) -> list[Any]:
        """Predicts labels, or scores.

        Args:
            texts: the (first) texts, or for a student that labels words a list of words for each text.
            seconds: the second texts, for a student of pairs.
            abstain: predict ``abstain`` where the student is less sure than its certificate demands.

        Returns: One dict per input: ``label`` (for a multi-label student the list of labels) and ``probabilities`` by
            label, or ``score``. For a student that labels words, each input has a list with such a dict for each word.

        Raises:
            DistillError: if the texts do not fit the student, or it has no certificate and must abstain.
        """
        return _predicted([self], texts, seconds, abstain)[0]

    def predict_arrays(
        self, texts: Sequence[Any], seconds: Sequence[str] | None = None, *, abstain: bool = False
    ) -> "dict[str, npt.NDArray[Any]]":
        """Predicts labels, or scores, as arrays of N inputs, or of the words of all inputs. Faster than `predict`.

        See `predict` for the arguments and errors.

        Returns: ``label``, the place of each label in ``labels``, or -1 where the student abstains (for a multi-label
            student whether each label holds, [N, C]), and float32 ``probabilities`` [N, C]. Or ``score`` [N].
        """
        import numpy as np

        count, answers, chosen = _answered([self], texts, seconds, abstain)
        answers_NC = np.frombuffer(answers, np.float32).reshape(count, self._num_answers)
        if self._kind == SCORE:
            return {"score": answers_NC[:, 0]}
        holds_NC = np.frombuffer(chosen, np.bool_).reshape(count, self._num_answers)
        label = holds_NC if self._kind == LABELS else np.where(holds_NC.any(axis=1), holds_NC.argmax(axis=1), -1)
        return {"label": label, "probabilities": answers_NC}

    def logits(self, texts: Sequence[Any], seconds: Sequence[str] | None = None) -> "Floats":
        """Returns float32 logits [N, C] before softmax, for N inputs or for the words of all inputs.

        See `predict` for the arguments. A word without tokens has the logit 0 for the label ``O``, and minus infinity
        for all others.
        """
        return _logits([self], texts, seconds)

    def encode(self, texts: Sequence[str]) -> "Floats":
        """Returns float32 representations [N, F] of texts, not normalised.

        A student of pairs encodes each text separately.
        """
        import numpy as np

        joined = _joined(texts)
        features = np.empty((len(texts), self.num_features), np.float32)
        threads = _threads_for(self.threads, len(texts))
        _check(_library.distill_encode(self._file.handle, _texts(joined, len(texts)), threads, _address(features)))
        return features

    def tokenize(self, text: str) -> list[int]:
        """Returns the token ids of a text, without special tokens and not truncated."""
        content = _encoded(text)
        handle, count = self._file.handle, ctypes.c_int64()
        ids = (ctypes.c_int32 * (2 * len(content) + 8))()
        while True:
            address, room = ctypes.addressof(ids), len(ids)
            _check(_library.distill_tokenise(handle, content, len(content), address, room, ctypes.byref(count)))
            if count.value <= room:
                return ids[: count.value]
            ids = (ctypes.c_int32 * count.value)()

    def _answers(self, answers: list[float], holds: bytes) -> list[dict[str, Any]]:
        """Returns the answers to inputs, whose numbers lie end to end."""
        if self._kind == SCORE:
            return [{"score": score} for score in answers]
        width = self._num_answers
        rows = range(0, len(answers), width)
        return [self._answer(answers[row : row + width], holds[row : row + width]) for row in rows]

    def _answer(self, probabilities: list[float], holds: bytes) -> dict[str, Any]:
        names = [name for name, is_held in zip(self.labels, holds, strict=True) if is_held]
        label = names if self._kind == LABELS else next(iter(names), ABSTAIN)
        return {"label": label, "probabilities": dict(zip(self.labels, probabilities, strict=True))}


class MultiTaskPredictor:
    """Students of several tasks that share an encoder. Each text is read once.

    A student that labels words takes other inputs, and answers by itself: ``predictors["task"].predict``.

    Args:
        file: the students' file, or its content as bytes.
        threads: number of threads for many inputs. Default: one per processor.
        tasks: those that answer. Default: all.

    Attributes:
        predictors: the student of each task, by its name.

    Raises:
        DistillError: if the file cannot be read or is not a student's, or has no such task.
    """

    def __init__(self, file: File, threads: int | None = None, tasks: Sequence[str] = ()) -> None:
        opened = _File(file)
        self.predictors: dict[str, Predictor] = {}
        for task in tasks or opened.tasks:
            self.predictors[task] = object.__new__(Predictor)
            self.predictors[task]._open(opened, threads, task)

    def predict(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None, *, abstain: bool = False
    ) -> list[dict[str, dict[str, Any]]]:
        """Predicts for all tasks that take such inputs.

        Args:
            texts: the (first) texts.
            seconds: the second texts, for tasks of pairs.
            abstain: predict ``abstain`` where a student is less sure than its certificate demands.

        Returns: One dict per input: by task what `Predictor.predict` returns for it.

        Raises:
            DistillError: if no task takes such inputs, or one has no certificate and must abstain.
        """
        asked = self._asked(seconds)
        answers = _predicted(list(asked.values()), texts, seconds, abstain)
        return [dict(zip(asked, row, strict=True)) for row in zip(*answers, strict=True)]

    def logits(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> "dict[str, Floats]":
        """Returns the logits [N, C] of each task, see `predict`."""
        asked = self._asked(seconds)
        logits = _logits(list(asked.values()), texts, seconds)
        ends = [0, *accumulate(one._num_logits for one in asked.values())]
        return {task: logits[:, begin:end] for task, begin, end in zip(asked, ends[:-1], ends[1:], strict=True)}

    def _asked(self, seconds: Sequence[str] | None) -> dict[str, Predictor]:
        takes_pairs = seconds is not None
        of_texts = {task: one for task, one in self.predictors.items() if not one.labels_words}
        asked = {task: one for task, one in of_texts.items() if one.is_pair == takes_pairs}
        if not asked:
            raise DistillError(f"no task takes {'two texts' if takes_pairs else 'one text'} per input")
        return asked


def _logits(asked: Sequence[Predictor], texts: Sequence[Any], seconds: Sequence[str] | None) -> "Floats":
    """Returns the logits of tasks side by side."""
    import numpy as np

    count, inputs = _inputs(asked, texts, seconds)
    logits = np.empty((count, sum(one._num_logits for one in asked)), np.float32)
    function = _library.distill_word_logits if asked[0].labels_words else _library.distill_logits
    _check(function(asked[0]._file.handle, *inputs, _address(logits)))
    return logits


def _answered(
    asked: Sequence[Predictor], texts: Sequence[Any], seconds: Sequence[str] | None, abstain: bool
) -> tuple[int, Any, Any]:
    """Returns the number of answers of a task, and the answers of all tasks with the bytes that mark chosen labels."""
    count, inputs = _inputs(asked, texts, seconds)
    row = sum(one._num_answers for one in asked)
    answers, chosen = (ctypes.c_float * (count * row))(), (ctypes.c_char * (count * row))()
    addresses = ctypes.addressof(answers), ctypes.addressof(chosen)
    handle = asked[0]._file.handle
    if asked[0].labels_words:
        if abstain:
            raise DistillError("this student labels words, and never abstains")
        _check(_library.distill_predict_words(handle, *inputs, *addresses))
    else:
        _check(_library.distill_predict(handle, *inputs, abstain, *addresses))
    return count, answers, chosen


def _predicted(
    asked: Sequence[Predictor], texts: Sequence[Any], seconds: Sequence[str] | None, abstain: bool
) -> list[list[Any]]:
    """Returns the answers of each task to all inputs."""
    count, answers, chosen = _answered(asked, texts, seconds, abstain)
    if len(asked) == 1:
        of_one = asked[0]._answers(answers[:], chosen.raw)
        return [_by_sentence(of_one, texts) if asked[0].labels_words else of_one]
    widths = [one._num_answers for one in asked]
    row, found, begin = sum(widths), [], 0
    for one, width in zip(asked, widths, strict=True):
        places = [n * row + begin + k for n in range(count) for k in range(width)]
        found.append(one._answers([answers[place] for place in places], bytes(chosen.raw[place] for place in places)))
        begin += width
    return found


def _by_sentence(answers: list[dict[str, Any]], sentences: Sequence[Sequence[str]]) -> list[list[dict[str, Any]]]:
    return [answers[begin:end] for begin, end in pairwise(accumulate(map(len, sentences), initial=0))]


def _inputs(
    asked: Sequence[Predictor], texts: Sequence[Any], seconds: Sequence[str] | None
) -> tuple[int, tuple[Any, ...]]:
    """Returns the number of answers of a task, and the library's arguments: the tasks, the inputs and the threads."""
    count, first = len(texts), asked[0]
    if first.is_pair and seconds is None and not count:
        seconds = ()
    numbers = (ctypes.c_int64 * len(asked))(*(one._number for one in asked))
    tasks = _Tasks(ctypes.addressof(numbers), len(asked))
    tasks.kept = numbers  # keeps the memory of the address alive
    threads = _threads_for(first.threads, count)
    if first.labels_words:
        if seconds is not None:
            raise DistillError("this student labels words, and takes no second texts")
        sentences = _sentences(texts)
        return int(sentences.words.count), (ctypes.pointer(tasks), ctypes.pointer(sentences), threads)
    parts = _texts(_joined(texts), count), None if seconds is None else _texts(_joined(seconds), len(seconds))
    return count, (ctypes.pointer(tasks), *parts, threads)


def _sentences(rows: Sequence[Sequence[str]]) -> _Sentences:
    """Returns the words of sentences end to end."""
    if any(isinstance(row, str) for row in (rows, *rows)):
        raise DistillError("this student labels words: give a list of words for each text")
    words = [word for row in rows for word in row]
    texts = _texts(_joined(words), len(words))
    starts = array("q", [0, *accumulate(map(len, rows))])
    sentences = _Sentences(texts.contents, starts.buffer_info()[0], len(rows))
    sentences.kept = texts, starts  # keeps the memory of the addresses alive
    return sentences


def _threads_for(threads: int, count: int) -> int:
    return min(threads, 1 + count // INPUTS_PER_THREAD)


def _check(status: int) -> None:
    if status:
        raise DistillError(_library.distill_last_error().decode(errors="replace"))


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except (AttributeError, UnicodeEncodeError):
        raise DistillError(f"{text!r:.60} is not text") from None


def _joined(texts: Sequence[str]) -> "tuple[bytes, array[int]]":
    """Returns texts end to end in UTF-8, with the starts of the texts and the end of the last one."""
    if isinstance(texts, str):
        raise DistillError("give a list of texts, not one text")
    if len(texts) == 1:
        content = _encoded(texts[0])
        return content, array("q", (0, len(content)))
    try:
        joined = "".join(texts)
        parts: Sequence[str] | list[bytes] = texts if joined.isascii() else [text.encode() for text in texts]
        content = joined.encode()
    except (TypeError, UnicodeEncodeError):
        parts = [_encoded(text) for text in texts]
        content = b"".join(parts)
    return content, array("q", [0, *accumulate(map(len, parts))])  # four times as fast as an array of ctypes


def _texts(joined: "tuple[bytes, array[int]]", count: int) -> Any:
    content, starts = joined
    texts = _Texts(content, starts.buffer_info()[0], count)
    texts.kept = starts  # keeps the memory of the address alive
    return ctypes.pointer(texts)


def _address(numbers: "npt.NDArray[Any]") -> int:
    return int(numbers.ctypes.data)
