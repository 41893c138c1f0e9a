"""A student from the folder of its run: by the engine on a CPU, by torch where the engine does not serve it.

Shapes: N inputs, F features, C logits.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from pipeline.arrays import Floats, Floats64, Ints
from pipeline.file_names import TOKENIZER_FILE
from pipeline.tasks.text_drift import text_signals
from pipeline.text.text_to_ids import TextReader
from pipeline.text.tokenizer import load_tokenizer
from pipeline.training.run_record import text_columns
from student.data import in_batches
from student.export.engine_file import engine_content, engine_problems
from student.model.architecture import sequences
from student.model.config_file import labels_words
from student.model.heads import HEADS, is_equal, logits_of_heads, share_hidden_layers
from student.model.student import Student, TaskStudent, default_device
from student.model.weights import encoder_checksum
from student.predict.certificate import certified_margin, file_hashes
from student.predict.engine_predictor import (
    check_abstains,
    encoded_by,
    has_engine,
    logits_by,
    opened,
)
from student.predict.labels import label_bias
from student.predict.multi_task import Opened, SharedLogits
from student.predict.predictor import Predictor, StudentInfo
from student.texts import listed

MADE_AGAIN = {"student", "reader", "served"}  # attributes that do not travel to other processes
Ask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class RunPredictor(Predictor):
    """A student from the folder of its run. See `Predictor` for arguments and errors.

    Attributes:
        folder: of the run.
        student: the torch module.
        tokenizer: of its texts.
    """

    student_type: ClassVar[type[TaskStudent]] = Student

    def _open(self, run: str | Path, abstain: bool, costs: Mapping[str, float], task: str | None) -> None:
        check_abstains(abstain, costs)
        _one_thread_after_forks()
        self.folder = folder = Path(run) / (task or "")
        self.student: Any = _ready(self.student_type.load(folder))
        self.info = StudentInfo.of(self.student.config)
        self.threshold = self.certified_threshold() if abstain else None
        self.bias_C = label_bias(folder, self.info.target, costs)
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
        """See `Predictor`."""
        return self.engine is not None

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again of the student's weights, wherever its folder is."""
        others = {name: value for name, value in vars(self).items() if name not in MADE_AGAIN}
        # Tables that lie side by side do not travel.
        weights = {name: weight.cpu().clone() for name, weight in self.student.state_dict().items()}
        student = type(self.student), self.student.config, weights, self.student.companions
        return _revived, (type(self), student, others)

    def logits(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> Floats:
        """See `Predictor`."""
        texts, engine = self._texts(sentences1, sentences2), self.engine
        if engine is not None:
            engine.threads = torch.get_num_threads()
            logits_NC: Floats = logits_by(engine, *texts)
            return logits_NC
        config = self.student.config
        parts = sequences(config, *self.reader.read(*texts, config.max_seq_length))
        return in_batches(self.student.logits, parts, config.target.num_logits, self.student.device)

    def encode(self, sentences: Iterable[str]) -> Floats:
        """See `Predictor`."""
        texts, engine = listed(sentences), self.engine
        if engine is not None:
            engine.threads = torch.get_num_threads()
            return encoded_by(engine, texts)
        student = self.student
        parts = sequences(student.config, *self.reader.read(texts, None, student.config.max_seq_length))
        return in_batches(student.encoder.reduce, parts, student.encoder.size, student.device)

    def num_tokens(self, sentences1: Sequence[str], sentences2: Sequence[str] | None = None) -> Ints:
        """See `Predictor`."""
        parts = self.reader.read(sentences1, sentences2, None)
        special = self.tokenizer.num_special_tokens_to_add(sentences2 is not None)
        return np.asarray(special + np.sum([part.lengths for part in parts], axis=0))

    def text_signals(self, sentences1: Sequence[Any], sentences2: Sequence[str] | None = None) -> dict[str, Floats64]:
        """See `Predictor`."""
        assert self.info.profile is not None, "there is nothing to compare with"
        parts = self.reader.read(sentences1, sentences2, self.info.max_seq_length)
        return text_signals(parts, self.info.profile.is_seen_V)

    def text_columns(self) -> list[tuple[str, ...]] | None:
        """See `Predictor`."""
        return text_columns(self.folder)

    def certified_threshold(self) -> float:
        """See `Predictor`."""
        return certified_margin(self.folder).threshold

    def hashes(self) -> dict[str, str]:
        """See `Predictor`."""
        return file_hashes(self.folder)

    def set_threads(self, count: int) -> None:
        """See `Predictor`."""
        torch.set_num_threads(count)


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
    kind: type[RunPredictor],
    student: tuple[type[TaskStudent], Any, dict[str, torch.Tensor], dict[str, bytes]],
    others: dict[str, Any],
) -> RunPredictor:
    """The predictor that was pickled or copied, on this machine's device and with its kernels."""
    model, config, weights, companions = student
    made = model(config)
    made.load_state_dict(weights)
    made.companions = companions
    predictor: RunPredictor = object.__new__(kind)
    vars(predictor).update(others | {"student": _ready(made.eval())})
    return predictor


def is_served(predictor: RunPredictor) -> bool:
    """Whether the engine answers for a student: in float32, on a CPU, where the engine was built."""
    student = predictor.student
    # Smaller tables would have to be widened, and save memory no longer.
    if student.device.type != "cpu" or student.config.table_dtype != "float32" or not has_engine():
        return False
    return not engine_problems(student, predictor.tokenizer)


def _serve(predictors: Mapping[str, RunPredictor]) -> Any:
    """Makes one engine answer for students with one encoder, by their names. Returns its predictor of all of them."""
    tokenizer = next(iter(predictors.values())).tokenizer
    content = engine_content({name: one.student for name, one in predictors.items()}, tokenizer)
    engine = opened("the student", lambda module: module.MultiTaskPredictor(content))
    for name, one in predictors.items():
        one.served = engine.predictors[name]
    return engine


def open_several(run: Path, tasks: Sequence[str], abstain: bool) -> Opened:
    """Opens the students of some tasks of a run's folder. See `MultiTaskPredictor`."""
    from student.predict.run_words import TokenLabelPredictor  # which imports this module

    # Not `Predictor`, which could take the run's file for some of them: these are to share their weights.
    runs = {
        task: (TokenLabelPredictor if labels_words(run / task) else RunPredictor)(run, abstain, task=task)
        for task in tasks
    }
    _share_weights(list(runs.values()))
    engines = _share_engines(runs)
    groups: dict[Any, list[str]] = {}
    for task, one in runs.items():
        groups.setdefault((_way_of_reading(one.student), id(engines.get(task))), []).append(task)
    return dict(runs), [
        (names, _shared_logits({name: runs[name] for name in names}, engines.get(names[0])))
        for names in groups.values()
    ]


def _shared_logits(predictors: Mapping[str, RunPredictor], engine: Any) -> SharedLogits | None:
    """What gives the logits of students for texts, each of which is read once. None for students of labelled words."""
    if not all(isinstance(one.student, Student) for one in predictors.values()):
        return None
    return _by_torch(predictors) if engine is None else _by_engine(engine)


def _share_weights(predictors: Sequence[RunPredictor]) -> None:
    """Makes students with the same encoder, or the same hidden layer, use one, so that memory holds them once."""
    share_hidden_layers([one.student.head for one in predictors], is_equal)
    encoders: dict[str, nn.Module] = {}
    for one in predictors:
        checksum = encoder_checksum(one.folder)
        if checksum is not None:
            one.student.encoder = encoders.setdefault(checksum, one.student.encoder)


def _share_engines(predictors: Mapping[str, RunPredictor]) -> dict[str, Any]:
    """Makes one engine answer for students with the same encoder. Returns its predictor for each of their tasks."""
    together: dict[Any, dict[str, RunPredictor]] = {}
    for task, one in predictors.items():
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


def _by_torch(predictors: Mapping[str, RunPredictor]) -> SharedLogits:
    first = next(iter(predictors.values()))
    student, config = first.student, first.student.config
    heads = [one.student.head for one in predictors.values()]
    ends = list(accumulate(one.student.config.target.num_logits for one in predictors.values()))

    def ask(ids_T: torch.Tensor, starts_S: torch.Tensor) -> torch.Tensor:
        inputs = student.head_inputs(ids_T, starts_S)
        return logits_of_heads(heads, *inputs)

    def logits(sentences1: Sequence[str], sentences2: Sequence[str] | None) -> dict[str, Floats]:
        parts = sequences(config, *first.reader.read(sentences1, sentences2, config.max_seq_length))
        logits_NC = in_batches(ask, parts, ends[-1], student.device)
        return dict(zip(predictors, np.split(logits_NC, ends[:-1], axis=1), strict=True))

    return logits
