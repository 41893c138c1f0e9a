"""A served student or cascade, and its answers as JSON.

Shapes: N inputs, C logits.
"""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from distill.apps.app_settings import ServeSettings
from distill.apps.serve.batches import Batches, Worker
from distill.apps.serve.drift import RecentInputs
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.requests import ENCODER, RefusedError, Scale, Texts
from pipeline.arrays import Bools, Floats, Ints
from pipeline.errors import ConfigError, did_you_mean
from pipeline.file_names import STUDENT_FILE
from pipeline.tasks.target import Target, log_of, predicted_scores, sigmoid, softmax
from pipeline.tasks.temperature import calibrated
from student.cascade.cascade_file import CASCADE_FILE
from student.predict.multi_task import MultiTaskPredictor, cascade_of, tasks_in
from student.predict.predictor import BATCH_SIZE, Predictor
from student.texts import taken

Ranking = list[str]  # a JSON object for each label with its score, the highest first
Rankings = dict[str, Ranking]  # by the name of the student
if TYPE_CHECKING:
    from distill.apps.serve.stored import Stored
    from student.cascade.cascade import Cascade


class StudentRow(NamedTuple):
    """A student's answer to a text: its ranking, the number of its stage, and whether a server is to answer, too."""

    ranking: Ranking
    stage: int
    is_open: bool


class CascadeQueue:
    """The queues of a cascade: one for its students, and one for the server behind them.

    Students need milliseconds and the server seconds. What is handed on waits in a thread of its own, so that no other
    text waits for the server.

    Args:
        cascade: its stages.
        scale: of the scores.
        student: does the work of the students.
        server: waits for the server.
        metrics: what is counted.
        watch: takes first and second texts, and the logits of the students.
    """

    def __init__(
        self,
        cascade: "Cascade",
        scale: Scale,
        student: Worker,
        server: Worker,
        metrics: Metrics,
        watch: Callable[[list[str], list[str] | None, Floats], None],
    ) -> None:
        self._cascade, self._scale, self._metrics, self._watch = cascade, scale, metrics, watch
        self._names = [ENCODER.encode(stage.name) for stage in cascade.stages]
        self._students: Batches[list[StudentRow]] = Batches(self._of_students, student, metrics)
        self._server: Batches[list[Ranking]] = Batches(self._of_server, server, metrics)

    async def submit(self, texts: Texts) -> list[Ranking]:
        """Waits for the rows of these texts, see `Batches`. The last stage is counted for what it was to answer."""
        rows, last = await self._students.submit(texts), len(self._names) - 1
        answers, stages = [row.ranking for row in rows], [row.stage for row in rows]
        open_rows = [number for number, row in enumerate(rows) if row.is_open]
        if open_rows:
            for number, ranking in zip(open_rows, await self._server.submit(texts.taken(open_rows)), strict=True):
                if ranking:
                    answers[number], stages[number] = ranking, last
                else:
                    self._metrics.add(f'distill_stage_failures{{stage="{last}"}}')
        for stage, count in Counter(stages).items():
            self._metrics.add(f'distill_stage_answers{{stage="{stage}"}}', count)
        return answers

    def _of_students(self, first: list[str], second: list[str] | None) -> list[StudentRow]:
        p_NC, stage_N, open_N = self._cascade.of_students(first, second)
        self._watch(first, second, log_of(p_NC))
        is_open_N = np.isin(np.arange(len(first)), open_N)
        self._keep(first, second, p_NC, stage_N, ~is_open_N)
        rows = zip(self._ranked(p_NC, stage_N.tolist()), stage_N.tolist(), is_open_N.tolist(), strict=True)
        return [StudentRow(*row) for row in rows]

    def _of_server(self, first: list[str], second: list[str] | None) -> list[Ranking]:
        """Returns the answers of the server. Empty for texts without one."""
        p_NC = self._cascade.of_server(first, second)
        stage_N, has_answer_N = np.full(len(first), len(self._names) - 1), ~np.isnan(p_NC[:, 0])
        self._keep(first, second, p_NC, stage_N, has_answer_N)
        answers = iter(self._ranked(p_NC[has_answer_N], stage_N[has_answer_N].tolist()))
        return [next(answers) if has_answer else [] for has_answer in has_answer_N.tolist()]

    def _keep(self, first: list[str], second: list[str] | None, p_NC: Floats, stage_N: Ints, is_final_N: Bools) -> None:
        rows = np.flatnonzero(is_final_N).tolist()
        self._cascade.keep(*taken(first, second, rows), p_NC[rows], stage_N[rows])

    def _ranked(self, p_NC: Floats, stages: Sequence[int]) -> list[Ranking]:
        ranked = rankings(self._cascade.info.target, log_of(p_NC), self._scale)
        return [
            [f'{one[:-1]},"stage":{self._names[stage]}}}' for one in row]
            for row, stage in zip(ranked, stages, strict=True)
        ]


class Served:
    """A student with its queues of waiting requests.

    Args:
        run: folder of its run, or its file.
        metrics: what is counted.
        workers: the number of processes that this one will fork.
        opened: its predictor, and the worker that it shares with others. Default: new ones.

    Attributes:
        tasks: the students that answer with it from one reading. By default it is alone.
        recent: what its recent inputs were like, or None if it is not known what to compare them with.
    """

    def __init__(
        self, run: Path, metrics: Metrics, workers: int = 1, opened: tuple[Predictor, "Worker"] | None = None
    ) -> None:
        self.name = name_of(run)
        self.predictor = opened[0] if opened else Predictor(run)
        self.worker = opened[1] if opened else Worker(self.predictor.backend.is_quick)
        self.student = self.predictor.info
        # Hashed once: the files may change while this process still answers by the weights that it loaded.
        self.hashes = self.predictor.hashes()
        self.sha256 = _sha256(self.hashes)
        self.run, self._metrics = run, metrics
        profile = self.student.profile
        self.recent = None if profile is None else RecentInputs(self.name, self.predictor, profile, workers)
        self.stored = None if self.student.labels_words else _stored_answers(run, self.student.target)
        self.tasks = ServedTasks([self], None, metrics)
        batches = partial(Batches, worker=self.worker, metrics=metrics)
        server = Worker(is_quick=False)
        self.rankings = {scale: self._queue(scale, server) for scale in get_args(Scale)}
        self.words = batches(lambda texts, _: self.labelled(texts))
        self.vectors = batches(lambda texts, _: self.predictor.encode(texts))
        self.lengths = batches(self.predictor.num_tokens)

    def _queue(self, scale: Scale, server: Worker) -> "Batches[list[Ranking]] | CascadeQueue":
        if (cascade := cascade_of(self.predictor)) is not None:
            return CascadeQueue(cascade, scale, self.worker, server, self._metrics, self._watch)

        def answer(first: list[str], second: list[str] | None) -> list[Ranking]:
            return self.ranked(scale, first, second, self.predictor.logits(first, second))

        return Batches(answer, self.worker, self._metrics)

    def ranked(self, scale: Scale, first: list[str], second: list[str] | None, logits_NC: Floats) -> list[Ranking]:
        """Returns the answers to texts whose logits are known."""
        calibrated_NC = calibrated(logits_NC, self.student.calibration)
        self._watch(first, second, calibrated_NC)
        # Other scales are of the logits as they are, as a client of another server expects them.
        return rankings(self.student.target, calibrated_NC if scale == "softmax" else logits_NC, scale)

    def labelled(self, texts: list[str]) -> list[str]:
        """Returns the labelled words and the spans of each text as JSON."""
        if self.recent is not None:
            self.recent.add(texts, None)
        try:
            return [ENCODER.encode(one) for one in self.predictor(texts)]
        except ValueError as error:
            raise RefusedError(424, "Backend", "score is NaN") from error

    def _watch(self, first: list[str], second: list[str] | None, logits_NC: Floats) -> None:
        if self.recent is not None:
            self.recent.add(first, second, logits_NC)

    def info(self, config: ServeSettings) -> dict[str, Any]:
        """Returns the description of the model in the form of text-embeddings-inference."""
        is_classifier, kind = self.student.target.has_labels, "classifier"
        if self.student.labels_words:
            kind = "token_classifier"
        names = self.student.target.names if is_classifier else ("score",)
        labels = {
            "id2label": {str(k): name for k, name in enumerate(names)},
            "label2id": {name: k for k, name in enumerate(names)},
        }
        return {
            "model_id": self.name,
            "model_sha": self.sha256,
            "model_files": self.hashes,
            "model_dtype": self.student.table_dtype,
            "model_type": {kind if is_classifier else "reranker": labels},
            "max_concurrent_requests": config.max_concurrent_requests,
            "max_input_length": self.student.max_seq_length,
            "max_batch_tokens": BATCH_SIZE * self.student.max_seq_length,
            "max_batch_requests": None,
            "max_client_batch_size": config.max_client_batch_size,
            "auto_truncate": True,
            "tokenization_workers": 1,
            "version": version("distill-offline"),
            "sha": None,
            "docker_label": None,
        }

    def summary(self, config: ServeSettings) -> dict[str, Any]:
        """Returns the description of the student for the page."""
        target = self.student.target
        return {
            "name": self.name,
            "task": self.student.task,
            "is_pair": self.student.is_pair,
            "labels_words": self.student.labels_words,
            "text_columns": self.predictor.backend.text_columns() or [],
            "labels": list(target.names) if target.has_labels else [],
            "has_teacher": self.stored is not None,
            "max_client_batch_size": config.max_client_batch_size,
        }


SCALES_OF_TASKS: tuple[Scale, ...] = ("softmax", "none")  # a request chooses between probabilities and raw scores


class ServedTasks:
    """Students that answer from one reading of a text.

    Args:
        students: who have one worker.
        predictor: of all of them, or None for a student alone.
        metrics: what is counted.

    Attributes:
        students: by name.
    """

    def __init__(self, students: Sequence[Served], predictor: MultiTaskPredictor | None, metrics: Metrics) -> None:
        self.students = {one.name: one for one in students}
        self._queues: dict[tuple[Scale, bool], Batches[list[Rankings]]] = {}
        if predictor is not None:
            self._queues = {
                (scale, is_pair): Batches(
                    partial(self._rankings, predictor, scale, is_pair), students[0].worker, metrics
                )
                for scale in SCALES_OF_TASKS
                for is_pair in (False, True)  # single texts and pairs cannot be in one batch
            }

    def submit(self, scale: Scale, is_pair: bool) -> Callable[[Texts], Awaitable[list[Rankings]]]:
        """Returns what waits for the answers of all students to texts, or to pairs."""
        if self._queues:
            return self._queues[scale, is_pair].submit
        ((name, alone),) = self.students.items()

        async def of_one(texts: Texts) -> list[Rankings]:
            return [{name: row} for row in await alone.rankings[scale].submit(texts)]

        return of_one

    def chosen(self, wanted: Sequence[str] | None, is_pair: bool) -> list[str]:
        """Returns the names of the students that answer.

        Args:
            wanted: their names. Default: all that take such inputs.
            is_pair: whether an input has two texts.

        Raises:
            RefusedError: if one of them is not there, or none takes such inputs.
        """
        fitting, inputs = list(self._fitting(is_pair)), "pairs" if is_pair else "single texts"
        for name in wanted or ():
            if name not in self.students:
                message = f"no task {name[:100]!r}. {did_you_mean(name[:100], self.students)}"
                raise RefusedError(422, "Validation", message)
            if name not in fitting:
                raise RefusedError(422, "Validation", f"the task {name!r} does not take {inputs}")
        if not fitting:
            raise RefusedError(422, "Validation", f"no task takes {inputs}")
        return list(dict.fromkeys(wanted or fitting))

    def _fitting(self, is_pair: bool) -> dict[str, Served]:
        return {name: one for name, one in self.students.items() if one.student.is_pair == is_pair}

    def _rankings(
        self, predictor: MultiTaskPredictor, scale: Scale, is_pair: bool, first: list[str], second: list[str] | None
    ) -> list[Rankings]:
        logits = predictor.logits(first, second)
        fitting = self._fitting(is_pair)
        ranked = {name: one.ranked(scale, first, second, logits[name]) for name, one in fitting.items()}
        return [dict(zip(ranked, row, strict=True)) for row in zip(*ranked.values(), strict=True)]


def open_served(run: Path, metrics: Metrics, workers: int = 1) -> list[Served]:
    """Opens the student of a run, or those of a run of several tasks, which share their encoder and a worker.

    Args:
        run: folder of a run or a cascade, or a file of students.
        metrics: what is counted.
        workers: the number of processes that this one will fork.
    """
    if not tasks_in(run):
        return [Served(run, metrics, workers)]
    predictor = MultiTaskPredictor(run)
    if words := [str(run / task) for task, one in predictor.predictors.items() if one.info.labels_words]:
        raise ConfigError(f"{run}: a task that labels words is served alone. Give the folders of tasks: {words[0]}")
    worker = Worker(all(one.backend.is_quick for one in predictor.predictors.values()))
    students = [Served(run / task, metrics, workers, (one, worker)) for task, one in predictor.predictors.items()]
    tasks = ServedTasks(students, predictor, metrics)
    for one in students:
        one.tasks = tasks
    return students


def _sha256(hashes: Mapping[str, str]) -> str:
    """One hash of all files that decide the answers: that of a file itself if there is one alone."""
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    return hashlib.sha256("".join(f"{name} {hashes[name]}\n" for name in sorted(hashes)).encode()).hexdigest()


def _stored_answers(run: Path, target: Target) -> "Stored | None":
    """Returns the teacher's answers that a run was trained on. None for a file or a cascade, which have no record."""
    if not run.is_dir() or (run / CASCADE_FILE).is_file():  # a file with several students has no folder for a task
        return None
    # Sets need DuckDB, which a student alone does without.
    from distill.apps.serve.stored import stored_answers

    return stored_answers(run, target)


def names_of(run: Path) -> list[str]:
    """Returns the names under which a run is served: its tasks if it has several, otherwise that of the path."""
    return list(tasks_in(run)) or [name_of(run)]


def name_of(run: Path) -> str:
    """Returns the last part of the given path, which may be a link. The file in a run's folder has the run's name."""
    if run.name == STUDENT_FILE:
        return run.absolute().parent.name
    if run.is_file():
        return run.stem
    return run.resolve().name if run.name in {"", ".."} else run.name


def rankings(target: Target, logits_NC: Floats, scale: Scale = "softmax") -> list[Ranking]:
    """Returns the labels of each input with their scores, the highest first.

    A regression task has one score per input.

    Args:
        target: what the logits mean.
        logits_NC: the student's.
        scale: the conversion of logits: probabilities, a probability per label, or none. Multi-label tasks always have
            a probability per label.

    Raises:
        RefusedError: if a logit is no number.
    """
    if not np.isfinite(logits_NC).all():
        raise RefusedError(424, "Backend", "score is NaN")
    if not target.has_labels:
        return [[_scored(score, '"score"')] for score in predicted_scores(target, logits_NC).tolist()]
    scores_NC = _scaled(logits_NC, "sigmoid" if target.has_label_lists and scale == "softmax" else scale)
    by_score, names = itemgetter(0), [ENCODER.encode(name) for name in target.names]
    named = (zip(row, names, strict=True) for row in scores_NC.tolist())
    # Stable: equal scores stay in label order.
    ranked = (sorted(row, key=by_score, reverse=True) for row in named)
    return [[_scored(score, name) for score, name in row] for row in ranked]


def _scored(score: float, name: str) -> str:
    return f'{{"score":{score!r},"label":{name}}}'


def _scaled(logits_NC: Floats, scale: Scale) -> Floats:
    if scale == "softmax":
        return softmax(logits_NC)
    if scale == "sigmoid":
        return sigmoid(logits_NC)
    return logits_NC
