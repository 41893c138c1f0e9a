"""A served student: its batches, and its answers as JSON.

Batching needs no timer: all requests that arrive while the student works form its next batch. An idle student answers a
single text at once, and the batches of a busy one grow by themselves. Each student has one worker thread, because torch
uses all cores for a batch and a tokenizer is not thread-safe. Switching to that thread takes longer than predicting a
few short texts, so these are answered on the event loop if the thread is idle.

Shapes: N inputs, C logits.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

import numpy as np

from distill.apps.app_settings import ServeSettings
from distill.apps.serve.drift import RecentInputs
from distill.apps.serve.prometheus import GAUGE, Metrics
from distill.apps.serve.requests import ENCODER, RefusedError, Scale, Texts
from pipeline.arrays import Floats, Ints
from pipeline.errors import ConfigError, did_you_mean
from pipeline.tasks.target import Target, predicted_scores, sigmoid, softmax
from pipeline.tasks.temperature import calibrated
from student.cascade.cascade_file import CASCADE_FILE
from student.predict.multi_task import MultiTaskPredictor, tasks_in
from student.predict.predictor import BATCH_SIZE, Predictor
from student.predict.token_labels import WordPredictor

# Texts per batch, which limits how long a small request waits behind large ones.
MOST_AT_ONCE = 8192
# Limits of a batch that blocks the event loop for a few milliseconds only.
SHORT_TEXTS, SHORT_CHARACTERS = 128, 16384
ANSWER_SECONDS = 60

Ranking = list[str]  # a JSON object for each label with its score, the highest first
Rankings = dict[str, Ranking]  # by the name of the student
if TYPE_CHECKING:
    from distill.apps.serve.stored import Stored

T = TypeVar("T")
R = TypeVar("R", Floats, Ints, list[Ranking], list[Rankings])  # a row for each text
Waiting = tuple[Texts, asyncio.Future[R]]


class Worker:
    """Does one piece of work at a time.

    Args:
        is_quick: whether it predicts a few short texts faster than it switches to the thread.
    """

    def __init__(self, is_quick: bool) -> None:
        # The lock keeps event loop and thread from using the student at the same time. See `do`.
        self._thread, self._busy, self._is_quick = ThreadPoolExecutor(1), Lock(), is_quick

    async def do(self, work: Callable[[], T], is_short: bool = False) -> T:
        """Returns or raises what the work does. ``is_short`` marks work for a few short texts."""
        if is_short and self._is_quick and self._busy.acquire(blocking=False):
            try:
                return work()
            finally:
                self._busy.release()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._alone, work)

    def _alone(self, work: Callable[[], T]) -> T:
        with self._busy:
            return work()


class Batches(Generic[R]):
    """A queue of texts that wait for an answer.

    Args:
        answer: returns the student's output for texts or pairs, one row each.
        worker: does the work.
        metrics: what is counted.
    """

    def __init__(self, answer: Callable[[list[str], list[str] | None], R], worker: Worker, metrics: Metrics) -> None:
        self._answer: Callable[[list[str], list[str] | None], R] = answer
        self._worker, self._metrics = worker, metrics
        self._waiting: list[Waiting[R]] = []
        self._work: asyncio.Task[None] | None = None

    async def submit(self, texts: Texts) -> R:
        """Waits for the batch of these texts and returns their rows.

        Raises:
            TimeoutError: if their batch does not start in time.
            Exception: what the student raised for these texts.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((texts, future))
        if self._work is None:
            self._work = loop.create_task(self._answer_waiting())
        end = loop.call_later(ANSWER_SECONDS, _give_up, future)
        self._metrics.add(GAUGE, len(texts))
        try:
            return await future
        finally:
            end.cancel()
            self._metrics.add(GAUGE, -len(texts))

    async def _answer_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        # Lets requests that have already arrived join the first batch.
        await asyncio.sleep(0)
        while waiting := [one for one in self._waiting if not one[1].done()]:  # without requests that have timed out
            batch, self._waiting = _next(waiting)
            self._metrics.observe("te_batch_next_size", sum(len(texts) for texts, _ in batch))
            started = loop.time()
            batch_texts = [texts for texts, _ in batch]
            try:
                answers = await self._worker.do(partial(self._answers, batch_texts), is_short=_is_short(batch_texts))
            except RuntimeError as error:  # no thread could be started, but the next batch may succeed
                answers = [error] * len(batch)
            self._metrics.observe("te_request_inference_duration", loop.time() - started)
            for (_, future), answer in zip(batch, answers, strict=True):
                # Skips clients that have disconnected or timed out, because setting a result twice raises an error.
                if future.done():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        self._work, self._waiting = None, []

    def _answers(self, batch: Sequence[Texts]) -> Sequence[R | Exception]:
        """Returns an answer or an exception for each request, so that one invalid text does not fail the others."""
        try:
            first = [text for texts in batch for text in texts.first]
            second = [text for texts in batch for text in texts.second or ()]
            rows = self._answer(first, second if batch[0].second is not None else None)
            ends = accumulate(len(texts) for texts in batch)
            return [rows[end - len(texts) : end] for texts, end in zip(batch, ends, strict=True)]
        except Exception as error:  # noqa: BLE001  (returned to the request that caused it)
            return [error] if len(batch) == 1 else [self._answers([texts])[0] for texts in batch]


def _is_short(batch: Sequence[Texts]) -> bool:
    is_few = sum(len(texts) for texts in batch) <= SHORT_TEXTS
    return is_few and sum(texts.characters for texts in batch) <= SHORT_CHARACTERS


def _give_up(future: asyncio.Future[R]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def _next(waiting: list[Waiting[R]]) -> tuple[list[Waiting[R]], list[Waiting[R]]]:
    """Returns the next batch and the remaining requests, in the order of their arrival."""
    size = 0
    for number, (texts, _) in enumerate(waiting):
        size += len(texts)
        # The first request always fits: a single request above the limit could otherwise never be answered.
        if number and size > MOST_AT_ONCE:
            return waiting[:number], waiting[number:]
    return waiting, []


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
        if isinstance(self.predictor, WordPredictor):
            raise ConfigError(f"{run}: labels words, which are not served. Use `distill predict` or distill.Predictor")
        self.worker = opened[1] if opened else Worker(self.predictor.is_quick)
        self.student = self.predictor.info
        # Hashed once: the files may change while this process still answers by the weights that it loaded.
        self.hashes = self.predictor.hashes()
        self.sha256 = _sha256(self.hashes)
        self._is_cascade = (run / CASCADE_FILE).is_file()
        self._metrics = metrics
        profile = self.student.profile
        self.recent = None if profile is None else RecentInputs(self.name, self.predictor, profile, workers)
        self.stored = _stored_answers(run, self.student.target)
        self.tasks = ServedTasks([self], None, metrics)
        batches = partial(Batches, worker=self.worker, metrics=metrics)
        self.rankings = {scale: batches(partial(self._rankings, scale)) for scale in get_args(Scale)}
        self.vectors = batches(lambda texts, _: self.predictor.encode(texts))
        self.lengths = batches(self.predictor.num_tokens)

    def _rankings(self, scale: Scale, first: list[str], second: list[str] | None) -> list[Ranking]:
        if not self._is_cascade:
            return self.ranked(scale, first, second, self.predictor.logits(first, second))
        # Cascades need Arrow, which a file of a student does without.
        from student.cascade.cascade_predictor import CascadePredictor, log_of

        assert isinstance(self.predictor, CascadePredictor)
        p_NC, stage_N = self.predictor.answers(first, second)
        logits_NC = log_of(p_NC)
        self._watch(first, second, logits_NC)
        for (stage, what), count in self.predictor.counts.items():
            self._metrics.add(f'distill_stage_{what}{{stage="{stage}"}}', count)
        self.predictor.counts.clear()  # they are in the metrics now
        sources = [ENCODER.encode(stage.name) for stage in self.predictor.stages]
        return [
            [f'{one[:-1]},"stage":{sources[stage]}}}' for one in row]
            for row, stage in zip(rankings(self.student.target, logits_NC, scale), stage_N.tolist(), strict=True)
        ]

    def ranked(self, scale: Scale, first: list[str], second: list[str] | None, logits_NC: Floats) -> list[Ranking]:
        """Returns the answers to texts whose logits are known."""
        calibrated_NC = calibrated(logits_NC, self.student.calibration)
        self._watch(first, second, calibrated_NC)
        # Other scales are of the logits as they are, as a client of another server expects them.
        return rankings(self.student.target, calibrated_NC if scale == "softmax" else logits_NC, scale)

    def _watch(self, first: list[str], second: list[str] | None, logits_NC: Floats) -> None:
        if self.recent is not None:
            self.recent.add(first, second, logits_NC)

    def info(self, config: ServeSettings) -> dict[str, Any]:
        """Returns the description of the model in the form of text-embeddings-inference."""
        is_classifier = self.student.target.has_labels
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
            "model_type": {"classifier" if is_classifier else "reranker": labels},
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
            "text_columns": self.predictor.text_columns() or [],
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
        rankings: the queues of waiting texts by what answers: a scale, and whether they are pairs.
    """

    def __init__(self, students: Sequence[Served], predictor: MultiTaskPredictor | None, metrics: Metrics) -> None:
        self.students = {one.name: one for one in students}
        self._predictor = predictor
        self.rankings = {
            (scale, is_pair): Batches(partial(self._rankings, scale, is_pair), students[0].worker, metrics)
            for scale in SCALES_OF_TASKS
            for is_pair in (False, True)  # single texts and pairs cannot be in one batch
        }

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

    def _rankings(self, scale: Scale, is_pair: bool, first: list[str], second: list[str] | None) -> list[Rankings]:
        fitting = self._fitting(is_pair)
        if self._predictor is None:
            ranked = {name: one._rankings(scale, first, second) for name, one in fitting.items()}
        else:
            logits = self._predictor.logits(first, second)
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
    worker = Worker(all(one.is_quick for one in predictor.predictors.values()))
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
    """Returns the last part of the given path, which may be a link."""
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
