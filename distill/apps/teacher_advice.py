"""The scores of teachers for `judge`: of a logit set, and of teachers that were fine-tuned just now."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from distill.apps.baseline import judged_metrics, labelled_rows, quick_baseline, scores_of
from distill.apps.systems import Rows, System, read_rows
from pipeline.arrays import Floats
from pipeline.errors import ConfigError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.metrics import majority_scores, score_logits, scores_by_label
from pipeline.tasks.target import Target, make_target
from pipeline.tasks.task import TRAIN, Metric, Task
from pipeline.training.joint import entry_of
from pipeline.training.run_record import Entry
from teacher.finetune_settings import FinetuneCorpus, FinetuneSettings, FinetuneTask

Scores = dict[str, float]
Texts = tuple[list[str], list[str] | None]


def judged_set(logit_set: ExampleSet) -> dict[str, dict[str, Any]]:
    """Returns the scores of a set's teacher on each dev split with gold, and those of the baseline, for `judge`."""
    record = logit_set.record
    if not record.has_text:
        return {}
    train = read_rows(logit_set, TRAIN) if TRAIN in logit_set.splits else None
    system = None if train is None else quick_baseline(train, record.target)
    dev = {split: read_rows(logit_set, split) for split in logit_set.splits if split != TRAIN}
    return {split: _parts(record.metrics, record.target, rows, system) for split, rows in dev.items() if len(rows)}


def judged_teachers(settings: FinetuneSettings, best: Entry) -> dict[str, dict[str, Any]]:
    """Returns the scores of fine-tuned teachers on the split that chose the best epoch, for `judge`.

    Args:
        settings: the settings of the teachers. Only teachers of texts are judged.
        best: the recorded scores of the best epoch.

    Returns: The scores by split, or by task and split for several tasks.
    """
    from teacher.finetune.classifier import load_tasks, targets_of

    learn = settings.learn
    if isinstance(learn, FinetuneCorpus):
        return {}
    tasks = load_tasks(learn)
    if isinstance(learn, FinetuneTask):
        (task,) = tasks
        if task.type == "token_labels":
            return {}
        return _judged(settings, task, make_target(task, learn.objective), settings.output_dir, best)
    found: dict[str, dict[str, Any]] = {}
    for task, target in zip(tasks, targets_of(tasks, learn.objective), strict=True):
        own = _judged(settings, task, target, settings.output_dir / task.name, entry_of(task.name, best))
        found |= {f"{task.name}/{split}": parts for split, parts in own.items()}
    return found


def _judged(settings: FinetuneSettings, task: Task, target: Target, folder: Path, best: Entry) -> dict[str, Any]:
    """Returns the scores of the teacher of texts in a folder by its split. Empty if no gold scores it."""
    from teacher.finetune.tasks import hold_out, training_source

    assert not isinstance(settings.learn, FinetuneCorpus), "it has no task"
    split = next(iter(best["metrics"]), None)
    if split is None or not best["metrics"][split]:
        return {}
    scores = best["metrics"][split]
    splits = hold_out(training_source(task, settings.learn.data), settings.learn.held_out, settings.learn.group)
    rows = labelled_rows(target, splits[split])
    system = quick_baseline(labelled_rows(target, splits[TRAIN]), target)
    is_beyond = system is not None and judged_metrics(task.metrics, target, rows.label_N) != task.metrics
    if is_beyond or scores.get("labels_predicted", 0) < scores.get("labels_in_gold", 0):
        # The record has neither the names of missing labels nor other metrics. Only a second run over the split has.
        texts, labels = (rows.texts1, rows.texts2), target.names if target.has_labels else ()
        rows = replace(rows, teacher_NC=answers(folder, task, target, texts, settings.steps.max_seq_length, labels))
    return {split: _parts(task.metrics, target, rows, system, {name: scores[name] for name in task.metrics})}


def answers(
    folder: Path, task: Task, target: Target, texts: Texts, max_seq_length: int, labels: Sequence[str] = ()
) -> Floats:
    """Runs the fine-tuned teacher in a folder over texts.

    Args:
        folder: its folder.
        task: its task.
        target: the meaning that its logits have to have.
        texts: the first texts, and the second ones of pairs.
        max_seq_length: maximum input length in tokens.
        labels: its order of labels. Default: that in its config.

    Raises:
        ConfigError: if its logits have another meaning.
    """
    from teacher.models.batches import tokens_per_batch
    from teacher.models.classifier import load_teacher, teacher_logits

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    teacher = load_teacher(task, str(folder), None, labels, max_seq_length)
    if teacher.target != target:
        names = [", ".join(one.names) for one in (teacher.target, target)]
        raise ConfigError(f"teacher {folder}: has the outputs {names[0]}, but the student {names[1]}")
    teacher.model.to(device)
    with torch.inference_mode():
        return teacher_logits(teacher, teacher.reader.tokenize(*texts, max_seq_length), tokens_per_batch(device))


def _parts(
    metrics: tuple[Metric, ...], target: Target, rows: Rows, system: System | None, teacher: Scores | None = None
) -> dict[str, Any]:
    """Returns what `judge` takes about a teacher, whose scores are computed from its logits if they are not given."""
    gold = rows.label_N, rows.score_N
    if teacher is None:
        metrics = judged_metrics(metrics, target, rows.label_N)
        teacher = score_logits(metrics, target, rows.teacher_NC, *gold)
    parts: dict[str, Any] = {"gold": {}, "teacher": teacher, "majority": majority_scores(metrics, target, *gold)}
    if rows.teacher_NC.shape[1]:
        parts["teacher_by_label"] = scores_by_label(target, rows.teacher_NC, rows.label_N)
    if system is not None:
        parts["baseline"] = {"scores": scores_of(system, rows, metrics), "bytes": system.num_bytes}
    return parts
