"""Students of several tasks that share an encoder: each text is read once and answered for all tasks.

Shapes: N inputs, C logits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.arrays import Floats
from pipeline.errors import ConfigError, did_you_mean, raise_all
from pipeline.file_names import RUN_RECORD
from pipeline.record_file import read_work_record
from pipeline.training.run_record import STUDENTS
from student.predict.engine_backend import fitting_infos, open_several
from student.predict.predictor import Predictor
from student.predict.student_info import read_infos
from student.predict.text_answers import Prediction, TextAnswers

if TYPE_CHECKING:
    import pyarrow as pa

    from student.cascade.cascade import Cascade


class MultiTaskPredictor:
    """The students of a run of several tasks. All that take such inputs answer for each input, which is read once.

    Args:
        run: folder of a run of several tasks (``distill train-student --tasks``), or a file that was exported from one.
        tasks: those to answer for. Default: all.
        abstain: answer ``abstain`` where a student is less sure than its certificate demands.

    Attributes:
        predictors: the student of each task, by its name. They share one encoder in memory.

    Raises:
        IntegrityError: if the folder or the file holds no students.
        ConfigError: if a task is not there.
    """

    def __init__(self, run: str | Path, tasks: Sequence[str] = (), abstain: bool = False) -> None:
        self.run, self._abstain = Path(run), abstain
        names = _chosen(self.run, tasks)
        if self.run.is_file() or fitting_infos(self.run, names):
            backends, self._groups = open_several(self.run, names)
        else:
            from student.predict import torch_backend

            # Not the file, which might fit only some of them: these are to share their weights.
            backends, self._groups = torch_backend.open_several(self.run, names)
        self.predictors = {task: Predictor.of(one, abstain) for task, one in backends.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again from the folder or the file, which has to be there."""
        return type(self), (self.run, tuple(self.predictors), self._abstain)

    @property
    def is_pair(self) -> bool:
        """Whether an input has two texts.

        Raises:
            ConfigError: if some tasks take pairs and others single texts.
        """
        pairs = [task for task, one in self.predictors.items() if one.is_pair]
        if pairs and len(pairs) < len(self.predictors):
            single = ",".join(task for task in self.predictors if task not in pairs)
            raise ConfigError(
                f"{self.run}: some tasks take pairs of texts and others one text. Choose by --tasks {','.join(pairs)} "
                f"or --tasks {single}"
            )
        return bool(pairs)

    def __call__(
        self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None
    ) -> list[dict[str, Prediction]]:
        """Predicts for all tasks that take such inputs.

        Args:
            sentences1: the (first) sentences.
            sentences2: the second sentences, for tasks of pairs.

        Returns:
            One dict per input: by task what `Predictor` returns for it.

        Raises:
            ConfigError: if no task takes such inputs.
        """
        answers = self._by_task(sentences1, sentences2, TextAnswers.predictions_of, lambda one, *texts: one(*texts))
        return [dict(zip(answers, row, strict=True)) for row in zip(*answers.values(), strict=True)]

    def logits(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> dict[str, Floats]:
        """Returns the logits of each task [N, C], not calibrated.

        Args:
            sentences1: the (first) sentences.
            sentences2: the second sentences, for tasks of pairs.

        Raises:
            ConfigError: as of a call, and if a student labels words, which has no logits of texts.
        """
        texts = sentences1, sentences2
        return self._by_task(*texts, lambda _, logits_NC: logits_NC, lambda one, *texts: one.logits(*texts))

    def columns(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> "dict[str, pa.Array]":
        """Returns a column of structs for each task, whose fields are the columns of `Predictor.columns`."""
        import pyarrow as pa

        answers = self._by_task(sentences1, sentences2, TextAnswers.columns_of, lambda one, *texts: one.columns(*texts))
        return {
            task: pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
            for task, columns in answers.items()
        }

    def _by_task(
        self,
        sentences1: Iterable[Any],
        sentences2: Iterable[str] | None,
        of_logits: Callable[[Any, Floats], Any],
        of_texts: Callable[..., Any],
    ) -> dict[str, Any]:
        """Returns something of each task, in the order of the tasks: of the shared logits, or of the texts."""
        takes_pairs = sentences2 is not None
        asked = [task for task, one in self.predictors.items() if one.is_pair == takes_pairs]
        if not asked:
            raise ConfigError(f"{self.run}: all tasks take {'one sentence' if takes_pairs else 'pairs'}")
        texts = self.predictors[asked[0]].answers.texts(sentences1, sentences2)
        found: dict[str, Any] = {}
        for tasks, shared_logits in self._groups:
            if self.predictors[tasks[0]].is_pair != takes_pairs:
                continue
            if shared_logits is None:
                found |= {task: of_texts(self.predictors[task], *texts) for task in tasks}
            else:
                logits = shared_logits(*texts)
                found |= {task: of_logits(self.predictors[task].answers, logits[task]) for task in tasks}
        return {task: found[task] for task in asked}


AnyPredictor = Predictor | MultiTaskPredictor


def open_predictor(
    run: Path, tasks: Sequence[str] = (), abstain: bool = False, costs: Mapping[str, float] | None = None
) -> AnyPredictor:
    """Opens a student, or the students of several tasks that all take the same kind of input.

    Raises:
        ConfigError: as of `Predictor` and `MultiTaskPredictor`, for costs of labels where there are several tasks, and
            if some take pairs and others single texts.
    """
    names = tasks_in(run)
    if not names and not tasks:
        return Predictor(run, abstain, costs)
    if costs:
        raise ConfigError(f"--cost: is for one task, but {run} has {', '.join(names)}. Give the folder of one task")
    predictor = MultiTaskPredictor(run, tasks, abstain)
    _ = predictor.is_pair  # raises for tasks with different inputs
    return predictor


def members(predictor: AnyPredictor) -> Mapping[str, Predictor]:
    """Returns the students by task. The only one of a `Predictor` has the name of its own task."""
    return predictor.predictors if isinstance(predictor, MultiTaskPredictor) else {predictor.info.task: predictor}


def answer_names(predictor: AnyPredictor) -> Set[str]:
    """Returns the names of the columns of a predictor's answers."""
    return set(predictor.predictors) if isinstance(predictor, MultiTaskPredictor) else predictor.answers.names


def cascade_of(predictor: AnyPredictor) -> "Cascade | None":
    """Returns the cascade that a predictor answers by, if it is one."""
    if isinstance(predictor, MultiTaskPredictor) or "stage" not in predictor.answers.names:
        return None
    # Cascades need Arrow, which a file of a student does without.
    from student.cascade.cascade import Cascade

    assert isinstance(predictor.backend, Cascade), "no other answers have a stage"
    return predictor.backend


def tasks_in(run: Path) -> tuple[str, ...]:
    """Returns the tasks of a folder or a file with several students. Empty for one student, and for a cascade.

    Raises:
        IntegrityError: if the record of the run, or the file, cannot be read.
    """
    if run.is_file():
        names = tuple(read_infos(run))
        return names if len(names) > 1 else ()
    record = run / RUN_RECORD
    return tuple(read_work_record(record).get(STUDENTS, ())) if record.is_file() else ()


def _chosen(run: Path, tasks: Sequence[str]) -> tuple[str, ...]:
    names = tasks_in(run)
    if not names:
        raise ConfigError(f"{run}: has no students of several tasks. Open it with Predictor, or remove --tasks")
    problems = [f"{run} has no task {task!r}. {did_you_mean(task, names)}" for task in tasks if task not in names]
    raise_all(ConfigError, "--tasks", problems)
    return tuple(dict.fromkeys(tasks)) or names
