"""A trained student that reads text, with numpy as its only dependency.

``Predictor("student.distill").predict(["what a film"])``. The file is written by ``distill export RUN --file FILE``.
`Predictor.predict` does not use numpy, because importing numpy takes longer than opening a student and predicting.
"""

import ctypes
import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

__all__ = ["DistillError", "Predictor"]

LIBRARY = Path(__file__).parent / "libdistill_student.so"
CLASSES, LABELS, SCORE = range(3)
INPUTS_PER_THREAD = 256  # starting a thread takes longer than reading fewer texts


class DistillError(Exception):
    """Raised for a file without a student, or arguments that do not fit the student."""


class _Texts(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char_p), ("starts", ctypes.c_void_p), ("count", ctypes.c_int64))


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
    )


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    texts, student, address = ctypes.POINTER(_Texts), ctypes.c_void_p, ctypes.c_void_p
    for name in ("version", "level", "last_error"):
        getattr(library, f"distill_{name}").restype = ctypes.c_char_p
    library.distill_open.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
    library.distill_close.argtypes = [student]
    library.distill_close.restype = None
    library.distill_describe.argtypes = [student, ctypes.POINTER(_Info)]
    library.distill_label.argtypes = [student, ctypes.c_int64]
    library.distill_label.restype = ctypes.c_char_p
    library.distill_tokenise.argtypes = [student, ctypes.c_char_p, ctypes.c_int64, address, ctypes.c_int64, address]
    library.distill_logits.argtypes = [student, texts, texts, ctypes.c_int32, address]
    library.distill_predict.argtypes = [student, texts, texts, ctypes.c_int32, address, address]
    library.distill_encode.argtypes = [student, texts, ctypes.c_int32, address]
    return library


_library = _load(LIBRARY)


class Predictor:
    """A trained student. Several threads may use it at once.

    Args:
        path: the student's file.
        threads: number of threads for many inputs. Default: one per processor.

    Attributes:
        task: the student's task.
        labels: the names of its labels, or ``score`` for a regression student.
        is_pair: whether an input has two texts.
        threads: number of threads for many inputs.
        num_features: the number of features that `encode` returns for a text.

    Raises:
        DistillError: if the file cannot be read or is not a student's.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int | None = None) -> None:
        self._handle = ctypes.c_void_p()
        _check(_library.distill_open(os.fsencode(path), ctypes.byref(self._handle)))
        self.threads = threads or os.cpu_count() or 1
        info = _Info()
        _check(_library.distill_describe(self._handle, ctypes.byref(info)))
        self._num_logits, self._num_answers = int(info.num_logits), int(info.num_answers)
        self.task, self._kind, self.is_pair = info.task.decode(), int(info.kind), bool(info.is_pair)
        self.num_features = int(info.num_features)
        names = (_library.distill_label(self._handle, number) for number in range(self._num_answers))
        self.labels = tuple(name.decode() for name in names)

    def __del__(self) -> None:
        if self._handle:
            _library.distill_close(self._handle)

    def __reduce__(self) -> Any:
        raise TypeError("a Predictor cannot be pickled. Open its file again.")

    def predict(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Predicts labels, or scores.

        Args:
            texts: the (first) texts.
            seconds: the second texts, for a student of pairs.

        Returns: One dict per input: ``label`` (for a multi-label student the list of labels) and ``probabilities`` by
            label, or ``score``.

        Raises:
            DistillError: if the texts do not fit the student.
        """
        count, inputs = self._inputs(texts, seconds)
        width = self._num_answers
        answers, chosen = (ctypes.c_float * (count * width))(), (ctypes.c_char * (count * width))()
        addresses = ctypes.addressof(answers), ctypes.addressof(chosen)
        _check(_library.distill_predict(self._handle, *inputs, *addresses))
        if self._kind == SCORE:
            return [{"score": score} for score in answers]
        rows, holds = range(0, count * width, width), chosen.raw
        return [self._answer(answers[row : row + width], holds[row : row + width]) for row in rows]

    def logits(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> "Floats":
        """Returns float32 logits [N, C] before softmax. See `predict` for the arguments."""
        import numpy as np

        count, inputs = self._inputs(texts, seconds)
        logits = np.empty((count, self._num_logits), np.float32)
        _check(_library.distill_logits(self._handle, *inputs, _address(logits)))
        return logits

    def encode(self, texts: Sequence[str]) -> "Floats":
        """Returns float32 representations [N, F] of texts, not normalised.

        A student of pairs encodes each text separately.
        """
        import numpy as np

        joined = _joined(texts)
        features = np.empty((len(texts), self.num_features), np.float32)
        threads = self._threads_for(len(texts))
        _check(_library.distill_encode(self._handle, _texts(joined, len(texts)), threads, _address(features)))
        return features

    def tokenize(self, text: str) -> list[int]:
        """Returns the token ids of a text, without special tokens and not truncated."""
        content = _encoded(text)
        count = ctypes.c_int64()
        ids = (ctypes.c_int32 * (2 * len(content) + 8))()
        while True:
            address, room = ctypes.addressof(ids), len(ids)
            _check(_library.distill_tokenise(self._handle, content, len(content), address, room, ctypes.byref(count)))
            if count.value <= room:
                return ids[: count.value]
            ids = (ctypes.c_int32 * count.value)()

    def _inputs(self, texts: Sequence[str], seconds: Sequence[str] | None) -> tuple[int, tuple[Any, ...]]:
        count = len(texts)
        if self.is_pair and seconds is None and not count:
            seconds = ()
        first, second = _joined(texts), None if seconds is None else _joined(seconds)
        parts = _texts(first, count), None if second is None else _texts(second, len(seconds or ()))
        return count, (*parts, self._threads_for(count))

    def _threads_for(self, count: int) -> int:
        return min(self.threads, 1 + count // INPUTS_PER_THREAD)

    def _answer(self, probabilities: list[float], holds: bytes) -> dict[str, Any]:
        names = [name for name, is_held in zip(self.labels, holds, strict=True) if is_held]
        label = names if self._kind == LABELS else names[0]
        return {"label": label, "probabilities": dict(zip(self.labels, probabilities, strict=True))}


def _check(status: int) -> None:
    if status:
        raise DistillError(_library.distill_last_error().decode(errors="replace"))


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except (AttributeError, UnicodeEncodeError):
        raise DistillError(f"{text!r:.60} is not text") from None


def _joined(texts: Sequence[str]) -> tuple[bytes, Any]:
    """Returns texts end to end in UTF-8, with the starts of the texts and the end of the last one."""
    if isinstance(texts, str):
        raise DistillError("give a list of texts, not one text")
    if len(texts) == 1:
        content = _encoded(texts[0])
        return content, (ctypes.c_int64 * 2)(0, len(content))
    try:
        joined = "".join(texts)
        parts: Sequence[str] | list[bytes] = texts if joined.isascii() else [text.encode() for text in texts]
        content = joined.encode()
    except (TypeError, UnicodeEncodeError):
        parts = [_encoded(text) for text in texts]
        content = b"".join(parts)
    return content, (ctypes.c_int64 * (len(texts) + 1))(0, *accumulate(map(len, parts)))


def _texts(joined: tuple[bytes, Any], count: int) -> Any:
    content, starts = joined
    texts = _Texts(content, ctypes.addressof(starts), count)
    texts.kept = starts  # keeps the memory of the address alive
    return ctypes.pointer(texts)


def _address(numbers: "npt.NDArray[Any]") -> int:
    return int(numbers.ctypes.data)
