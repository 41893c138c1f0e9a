"""A student from the folder of its run: by the engine on a CPU, by torch where the engine does not serve it.

Shapes: N inputs, F features, T tokens of all sentences, W their words, C logits.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline.arrays import Floats, Floats64, Ints
from pipeline.file_names import TOKENIZER_FILE
from pipeline.tasks.task import OUTSIDE
from pipeline.tasks.text_drift import text_signals
from pipeline.text.text_to_ids import TextReader
from pipeline.text.tokenizer import load_tokenizer
from pipeline.text.word_pieces import read_pieces
from pipeline.training.run_record import text_columns
from student.data import in_batches
from student.export.engine_file import engine_content, engine_problems
from student.model.architecture import sequences
from student.model.config_file import labels_words
from student.model.heads import HEADS, is_equal, logits_of_heads, share_hidden_layers
from student.model.student import Student, TaskStudent, TokenLabelStudent, default_device
from student.model.weights import encoder_checksum
from student.predict.backend import Opened, SharedLogits
from student.predict.certificate import certified_margin, file_hashes
from student.predict.engine_calls import encoded_by, has_engine, logits_by, opened, word_logits_by
from student.predict.labels import label_bias
from student.predict.student_info import StudentInfo
from student.predict.word_answers import answers_of

MADE_AGAIN = {"student", "reader", "served"}  # attributes that do not travel to other processes
Ask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class TorchBackend:
    """A student from the folder of its run. See `Backend`. On a CPU, the engine answers where it serves the student.

    Attributes:
        student: the torch module.
        tokenizer: of its texts.
    """

    def __init__(self, folder: Path) -> None:
        _one_thread_after_forks()
        self.folder = folder
        kind = TokenLabelStudent if labels_words(folder) else Student
        self.student: Any = _ready(kind.load(folder))
        self.info = StudentInfo.of(self.student.config, kind is TokenLabelStudent)
        self.answers = answers_of(self.info)
        self.tokenizer = load_tokenizer(folder / TOKENIZER_FILE, self.student.config.tokenizer_sha256)

    @cached_property
    def reader(self) -> TextReader:
        """What makes ids of its texts. Takes a moment, which the engine does not need."""
        return TextReader.of(self.tokenizer)

    @property
    def engine(self) -> Any:
        """The engine's predictor, or None if torch has to answer. The module may have been moved to a GPU since."""
        return self.served if self.student.device.type == "cpu" else None

    @cached_property
    def served(self) -> Any:
        """The student in the engine, which has its own copy of the weights, or None if it does not serve it."""
        return _serve({self.info.task: self}).predictors[self.info.task] if is_served(self) else None

    @property
    def is_quick(self) -> bool:
        return self.engine is not None

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again of the student's weights, wherever its folder is."""
        others = {name: value for name, value in vars(self).items() if name not in MADE_AGAIN}
        # Tables that lie side by side do not travel.
        weights = {name: weight.cpu().clone() for name, weight in self.student.state_dict().items()}
        student = type(self.student), self.student.config, weights, self.student.companions
        return _revived, (student, others)

    def logits(self, first: Sequence[str], second: Sequence[str] | None) -> Floats:
        if (engine := self._limited_engine()) is not None:
            logits_NC: Floats = logits_by(engine, first, second)
            return logits_NC
        config = self.student.config
        parts = sequences(config, *self.reader.read(first, second, config.max_seq_length))
        return in_batches(self.student.logits, parts, config.target.num_logits, self.student.device)

    def word_logits(self, sentences: Sequence[Sequence[str]]) -> Floats:
        if (engine := self._limited_engine()) is not None:
            return word_logits_by(engine, sentences)
        return logits_of_words(self.student, self.reader, sentences)

    def encode(self, texts: Sequence[str]) -> Floats:
        if (engine := self._limited_engine()) is not None:
            return encoded_by(engine, texts)
        student = self.student
        parts = sequences(student.config, *self.reader.read(texts, None, student.config.max_seq_length))
        return in_batches(student.encoder.reduce, parts, student.encoder.size, student.device)

    def _limited_engine(self) -> Any:
        """The engine with torch's number of threads, or None."""
        engine = self.engine
        if engine is not None:
            engine.threads = torch.get_num_threads()
        return engine

    def num_tokens(self, first: Sequence[str], second: Sequence[str] | None) -> Ints:
        parts = self.reader.read(first, second, None)
        special = self.tokenizer.num_special_tokens_to_add(second is not None)
        return np.asarray(special + np.sum([part.lengths for part in parts], axis=0))

    def text_signals(self, first: Sequence[str], second: Sequence[str] | None) -> dict[str, Floats64]:
        assert self.info.profile is not None, "there is nothing to compare with"
        parts = self.reader.read(first, second, self.info.max_seq_length)
        return text_signals(parts, self.info.profile.is_seen_V)

    def text_columns(self) -> list[tuple[str, ...]] | None:
        return text_columns(self.folder)

    def certified_threshold(self) -> float:
        return certified_margin(self.folder).threshold

    def bias(self, costs: Mapping[str, float]) -> Floats | None:
        return label_bias(self.folder, self.info.target, costs)

    def hashes(self) -> dict[str, str]:
        return file_hashes(self.folder)

    def set_threads(self, count: int) -> None:
        torch.set_num_threads(count)


def logits_of_words(student: TaskStudent, reader: TextReader, sentences: Sequence[Sequence[str]]) -> Floats:
    """Returns what torch computes, see `Backend.word_logits`.

    Args:
        student: a student that labels words.
        reader: what makes ids of its texts.
        sentences: the words of each text.
    """
    pieces, names = read_pieces(reader, sentences), student.config.target.names
    logits_TC = in_batches(student, [pieces.ids], len(names), student.device, of_tokens=True)
    num_words_N = np.array([len(words) for words in sentences], dtype=np.int64)
    token = pieces.by_word(np.arange(len(logits_TC)), num_words_N, -1)
    outside_1C = np.full((1, len(names)), -np.inf, np.float32)
    outside_1C[0, names.index(OUTSIDE)] = 0
    # A word without tokens has the index -1, which reads the appended row.
    return np.concatenate([logits_TC, outside_1C])[token.flat]


@cache
def _one_thread_after_forks() -> None:
    """Makes forked children of this process compute by one thread, once a predictor is there.

    A fork copies no threads of OpenMP. torch would wait for those of its parent for ever, as in
    `datasets.map(num_proc=2)`. A child may set another number before it computes.
    """
    if hasattr(os, "register_at_fork"):  # Windows has no forks
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


def _ready(student: TaskStudent) -> TaskStudent:
    """The student on this machine's device, with its tables side by side."""
    student.to(default_device()).encoder.lay_out()
    return student


def _revived(
    student: tuple[type[TaskStudent], Any, dict[str, torch.Tensor], dict[str, bytes]],
    others: dict[str, Any],
) -> TorchBackend:
    """The backend that was pickled or copied, on this machine's device and with its kernels."""
    model, config, weights, companions = student
    made = model(config)
    made.load_state_dict(weights)
    made.companions = companions
    backend = object.__new__(TorchBackend)
    vars(backend).update(others | {"student": _ready(made.eval())})
    return backend


def is_served(backend: TorchBackend) -> bool:
    """Whether the engine answers for a student: in float32, on a CPU, where the engine was built."""
    student = backend.student
    # Smaller tables would have to be widened, and save memory no longer.
    if student.device.type != "cpu" or student.config.table_dtype != "float32" or not has_engine():
        return False
    return not engine_problems(student, backend.tokenizer)


def _serve(backends: Mapping[str, TorchBackend]) -> Any:
    """Makes one engine answer for students with one encoder, by their names. Returns its predictor of all of them."""
    tokenizer = next(iter(backends.values())).tokenizer
    content = engine_content({name: one.student for name, one in backends.items()}, tokenizer)
    engine = opened("the student", lambda module: module.MultiTaskPredictor(content))
    for name, one in backends.items():
        one.served = engine.predictors[name]
    return engine


def open_several(run: Path, tasks: Sequence[str]) -> Opened:
    """Opens the students of some tasks of a run's folder. See `MultiTaskPredictor`."""
    runs = {task: TorchBackend(run / task) for task in tasks}
    _share_weights(list(runs.values()))
    engines = _share_engines(runs)
    groups: dict[Any, list[str]] = {}
    for task, one in runs.items():
        groups.setdefault((_way_of_reading(one.student), id(engines.get(task))), []).append(task)
    return dict(runs), [
        (names, _shared_logits({name: runs[name] for name in names}, engines.get(names[0])))
        for names in groups.values()
    ]


def _shared_logits(backends: Mapping[str, TorchBackend], engine: Any) -> SharedLogits | None:
    """What gives the logits of students for texts, each of which is read once. None for students of labelled words."""
    if not all(isinstance(one.student, Student) for one in backends.values()):
        return None
    return _by_torch(backends) if engine is None else _by_engine(engine)


def _share_weights(backends: Sequence[TorchBackend]) -> None:
    """Makes students with the same encoder, or the same hidden layer, use one, so that memory holds them once."""
    share_hidden_layers([one.student.head for one in backends], is_equal)
    encoders: dict[str, nn.Module] = {}
    for one in backends:
        checksum = encoder_checksum(one.folder)
        if checksum is not None:
            one.student.encoder = encoders.setdefault(checksum, one.student.encoder)


def _share_engines(backends: Mapping[str, TorchBackend]) -> dict[str, Any]:
    """Makes one engine answer for students with the same encoder. Returns its predictor for each of their tasks."""
    together: dict[Any, dict[str, TorchBackend]] = {}
    for task, one in backends.items():
        if is_served(one):
            together.setdefault((id(one.student.encoder), one.info.max_seq_length), {})[task] = one
    engines: dict[str, Any] = {}
    for group in together.values():
        engines |= dict.fromkeys(group, _serve(group))
    return engines


def _way_of_reading(student: TaskStudent) -> tuple[Any, ...]:
    """What heads have in common that take the same inputs."""
    config = student.config
    pairing = config.pairing if isinstance(student, Student) and config.is_pair else None
    return type(student), id(student.encoder), pairing, HEADS[config.head].reads_tokens


def _by_engine(engine: Any) -> SharedLogits:
    def logits(sentences1: Sequence[str], sentences2: Sequence[str] | None) -> dict[str, Floats]:
        for one in engine.predictors.values():
            one.threads = torch.get_num_threads()
        found: dict[str, Floats] = logits_by(engine, sentences1, sentences2)
        return found

    return logits


def _by_torch(backends: Mapping[str, TorchBackend]) -> SharedLogits:
    first = next(iter(backends.values()))
    student, config = first.student, first.student.config
    heads = [one.student.head for one in backends.values()]
    ends = list(accumulate(one.student.config.target.num_logits for one in backends.values()))

    def ask(ids_T: torch.Tensor, starts_S: torch.Tensor) -> torch.Tensor:
        inputs = student.head_inputs(ids_T, starts_S)
        return logits_of_heads(heads, *inputs)

    def logits(sentences1: Sequence[str], sentences2: Sequence[str] | None) -> dict[str, Floats]:
        parts = sequences(config, *first.reader.read(sentences1, sentences2, config.max_seq_length))
        logits_NC = in_batches(ask, parts, ends[-1], student.device)
        return dict(zip(backends, np.split(logits_NC, ends[:-1], axis=1), strict=True))

    return logits
