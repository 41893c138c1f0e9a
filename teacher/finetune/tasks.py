"""Teachers of several tasks that are fine-tuned together and share one encoder.

Each task's folder is a model's like any other: weights in two files, as transformers has them of large models, the
encoder's with a name in every folder, and the head's.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedDataParallelKwargs
from transformers import AutoTokenizer

from pipeline.errors import ConfigError, raise_all
from pipeline.files import (
    library_writes,
    link_or_copy,
    make_folder,
    remove_temporaries,
    write_atomically,
    write_text,
)
from pipeline.tasks.target import Target, make_target
from pipeline.tasks.task import Task, load_task
from pipeline.training import loop
from pipeline.training.checkpoint import state_of, write_tensors
from pipeline.training.run_record import FINETUNE_RECORD, Metrics, RunRecord, best_of, finish_run, write_run_record
from pipeline.training.several import check_free, entry_of, joint_scores, joint_settings
from pipeline.training.steps import seed_step
from teacher.config import FinetuneTask
from teacher.finetune.common import classifier_settings, new_accelerator, sentence_encoder, start_run
from teacher.finetune.learner import ClassifierLearner, Lesson
from teacher.finetune.rows import splits_of, training_source
from teacher.models.classifier import Teacher, new_classifier

ENCODER_FILE, HEAD_FILE = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def finetune_tasks(config: FinetuneTask, command: str) -> RunRecord:
    """Fine-tunes a teacher for each of ``config.tasks`` into a folder of ``config.output_dir``, or goes on with them.

    A step is a batch of one task, an epoch all batches of all tasks in random order. The best epoch is that of the
    best mean of the tasks' first metrics on their first dev splits.

    Returns:
        The record of them all, ``finetune.json``; each task's folder has its own.

    Raises:
        ConfigError: for an unknown task, one that labels words, or an objective that none has.
        DataError: if there is no train split.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    tasks = [_load(name) for name in config.task_names]
    targets = targets_of(tasks, config)
    names = [task.name for task in tasks]
    sources = [training_source(task, config) for task in tasks]
    # a step reads one head; processes must not wait for gradients of the others
    accelerator = new_accelerator(DistributedDataParallelKwargs(find_unused_parameters=True))
    make_folder(config.output_dir)
    seed_step(config.seed, 0)
    teachers = new_teachers(config, tasks, targets)
    parts = list(zip(tasks, sources, teachers, strict=True))
    by_task = {part[0].name: {"tasks": names} | classifier_settings(config, *part, accelerator) for part in parts}
    run, finished = start_run(config.output_dir, joint_settings(by_task), command, accelerator)
    if finished is not None:
        return finished
    folders = {name: config.output_dir / name for name in names}
    if run.is_main:
        for name, folder in folders.items():
            check_free(folder / FINETUNE_RECORD, by_task[name], folder / "model.safetensors")
        for name, folder in folders.items():
            make_folder(folder)
            remove_temporaries(folder)
            begun = {"state": "running", "command": command, "settings": by_task[name]}
            write_run_record(folder / FINETUNE_RECORD, begun)
    lessons = {
        task.name: Lesson(config, task, teacher, splits_of(source, teacher, config), accelerator)
        for task, source, teacher in parts
    }

    def score() -> Metrics:
        return joint_scores({name: lesson.scores() for name, lesson in lessons.items()})

    def keep() -> None:
        save_sharing(dict(zip(folders.values(), teachers, strict=True)))

    learner = ClassifierLearner(config, list(lessons.values()), accelerator, score, keep)
    history = loop.train(run, learner, learner.schedule(), config.report_to)
    best, encoder = best_of(history), sentence_encoder(config)
    if run.is_main:
        for name, folder in folders.items():
            own = {"history": [entry_of(name, entry) for entry in history], "best": entry_of(name, best)}
            finish_run(folder / FINETUNE_RECORD, own | encoder)
    return run.finish({"history": history, "best": best})


def new_teachers(config: FinetuneTask, tasks: Sequence[Task], targets: Sequence[Target]) -> list[Teacher]:
    """Classifiers with new heads on one encoder, which all of them share."""
    places = (config.model_name_or_path, config.model_revision, config.max_seq_length)
    teachers = [new_classifier(tasks[0], targets[0], *places)]
    for task, target in zip(tasks[1:], targets[1:], strict=True):
        teacher = new_classifier(task, target, *places)
        setattr(teacher.model, teacher.model.base_model_prefix, teachers[0].model.base_model)
        teachers.append(teacher)
    return teachers


def save_sharing(teachers: Mapping[Path, Teacher]) -> None:
    """Writes teachers that share their encoder, each into a folder of its own, the encoder's bytes once."""
    first = next(iter(teachers))
    for folder, teacher in teachers.items():
        model = teacher.model
        weights = state_of(model)
        encoder = {name: t for name, t in weights.items() if name.startswith(f"{model.base_model_prefix}.")}
        head = {name: tensor for name, tensor in weights.items() if name not in encoder}
        if folder == first:
            write_tensors(folder / ENCODER_FILE, encoder, {"format": "pt"})
        else:
            write_atomically(folder / ENCODER_FILE, partial(link_or_copy, first / ENCODER_FILE))
        write_tensors(folder / HEAD_FILE, head, {"format": "pt"})
        _write_index(folder, encoder, head)
        model.config.architectures = [type(model).__name__]
        tokenizer = AutoTokenizer.from_pretrained(teacher.name, revision=teacher.revision)
        with library_writes(folder):
            model.config.save_pretrained(folder)
            tokenizer.save_pretrained(folder)


def targets_of(tasks: Sequence[Task], config: FinetuneTask) -> list[Target]:
    """What the logits of each task mean; an objective is for the tasks with scores, if there are any.

    Raises:
        ConfigError: if no task has that objective, a task is there twice, or labels words.
    """
    names = [task.name for task in tasks]
    problems = [f"{name} is there twice" for name in sorted({name for name in names if names.count(name) > 1})]
    problems += [f"{task.name} labels words (type: tokens); give it alone" for task in tasks if task.type == "tokens"]
    raise_all(ConfigError, "--tasks", problems)
    assert config.objective != "mlm", "check() has refused it"
    has_scores = [task.type == "regression" for task in tasks]
    is_for = has_scores if any(has_scores) else [True] * len(tasks)
    return [make_target(task, config.objective if own else None) for task, own in zip(tasks, is_for, strict=True)]


def _load(name: str) -> Task:
    """A shipped task by its name, or one of a manifest by its file."""
    return load_task(manifest=Path(name)) if name.endswith((".yaml", ".yml")) else load_task(name)


def _write_index(folder: Path, encoder: Mapping[str, torch.Tensor], head: Mapping[str, torch.Tensor]) -> None:
    """Says which weights are in which file, as transformers reads it."""
    size = sum(tensor.nbytes for tensor in (*encoder.values(), *head.values()))
    files = dict.fromkeys(encoder, ENCODER_FILE) | dict.fromkeys(head, HEAD_FILE)
    index: dict[str, Any] = {"metadata": {"total_size": size}, "weight_map": files}
    write_text(folder / INDEX_FILE, json.dumps(index, indent=2) + "\n")
