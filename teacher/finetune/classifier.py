"""Fine-tunes a BERT as the teacher of one task, or of several tasks that share one encoder.

With several tasks, the run's folder contains a model folder for each, with weights in two files as transformers writes
them for large models. The encoder's file is hard-linked into every folder, so its bytes are stored once.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn
from transformers import AutoTokenizer

from pipeline.errors import ConfigError, raise_all
from pipeline.file_names import FINETUNE_RECORD
from pipeline.files import library_writes, link_or_copy, make_folder, write_atomically, write_text
from pipeline.record_file import Record
from pipeline.sources import Source
from pipeline.tasks.target import Target, make_target
from pipeline.tasks.task import Objective, Task, load_task
from pipeline.training.best_epoch import best_of
from pipeline.training.checkpoint import state_of, write_tensors
from pipeline.training.joint import BatchedTask, JointTask, entry_of, joint_settings, start_parts
from pipeline.training.loop import fit, seed_step
from pipeline.training.run import Run
from pipeline.training.run_record import Entry
from pipeline.training.schedule import Schedule
from teacher.finetune.common import (
    AcceleratedOptimizer,
    adamw,
    classifier_settings,
    new_accelerator,
    origin,
    start_run,
)
from teacher.finetune.tasks import ExampleTask, TokenLabelTask, hold_out, training_source
from teacher.finetune_settings import (
    AdamwFlags,
    Encoder,
    FinetuneCorpus,
    FinetuneGold,
    FinetuneSettings,
    FinetuneTask,
    FinetuneTasks,
    StepFlags,
)
from teacher.models.classifier import Teacher, new_classifier

INDEX_FILE = "model.safetensors.index.json"


ENCODER_FILE, HEAD_FILE = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


class Classifiers(nn.Module):
    """Classifiers that may share an encoder, as one module. A forward pass uses one of them, by its number."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, number: int, **inputs: torch.Tensor) -> torch.Tensor:
        """Returns logits_BC of the classifier of this number."""
        return self.models[number](**inputs).logits  # type: ignore[no-any-return]


def finetune(config: FinetuneSettings, command: str) -> Record:
    """Fine-tunes a teacher into ``config.output_dir``, or one for each of several tasks into a folder in it.

    With several tasks, a step is a batch of one of them, and an epoch has all batches of all tasks in random order. The
    best epoch has the best first metric on the first dev split, or the best mean over several tasks.

    Returns: The record that is also written to ``finetune.json``: settings, metrics per epoch, and the best epoch,
        whose weights are saved. Each of several tasks also has its own record.

    Raises:
        ConfigError: for an unknown task, a task that cannot be one of several, or an objective that no task supports.
        DataError: if there is no train split.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    learn = config.learn
    assert not isinstance(learn, FinetuneCorpus), "handled by `finetune_mlm`"
    are_several = isinstance(learn, FinetuneTasks)
    tasks = load_tasks(learn)
    targets = targets_of(tasks, learn.objective) if are_several else [make_target(tasks[0], learn.objective)]
    sources = [training_source(task, learn.data) for task in tasks]
    # A step trains one task's head. Without this flag DDP would also expect gradients of the other heads.
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = new_accelerator(*([unused] if are_several else []))
    make_folder(config.output_dir)
    # Before the models are made, because new heads start from random weights.
    seed_step(config.steps.seed, 0)
    teachers = new_teachers(config.encoder, config.steps.max_seq_length, tasks, targets)
    parts = list(zip(tasks, sources, teachers, strict=True))
    names = [task.name for task in tasks]
    several = {"tasks": names} if are_several else {}
    by_task = {part[0].name: several | classifier_settings(config, *part, accelerator) for part in parts}
    settings = joint_settings(by_task) if are_several else by_task[names[0]]
    run, finished = start_run(config.output_dir, settings, command, accelerator)
    if finished is not None:
        return finished
    folders = {config.output_dir / name: by_task[name] for name in names} if are_several and run.is_main else {}
    works = start_parts(folders, command, FINETUNE_RECORD) if folders else []
    history = _train(config, learn, parts, accelerator, run)
    best, start = best_of(history), origin(config.encoder)
    for name, work in zip(names, works, strict=bool(works)):
        own = {"history": [entry_of(name, entry) for entry in history], "best": entry_of(name, best)}
        work.finish(own | start)
    return run.finish({"history": history, "best": best, **({} if are_several else start)})


def _train(
    config: FinetuneSettings,
    learn: FinetuneGold,
    parts: Sequence[tuple[Task, Source, Teacher]],
    accelerator: Accelerator,
    run: Run,
) -> list[Entry]:
    steps = config.steps
    model, tasks, optimizer = train_tasks(config.optimizer, steps, learn, parts, accelerator)
    trained: Any  # several tasks are one task
    if isinstance(learn, FinetuneTasks):
        trained = JointTask(model, tasks, steps.seed, partial(_save, {task.name: part for task, _, part in parts}))
    else:
        (trained,) = tasks.values()
    others = {"warmup_steps": steps.warmup_steps, "save_steps": steps.save_steps}
    schedule = Schedule.of_epochs(trained.batches.steps_per_epoch, learn.num_train_epochs, steps.seed, **others)
    return fit(run, trained, optimizer, schedule, config.report_to)


def train_tasks(
    optimizer: AdamwFlags,
    steps: StepFlags,
    learn: FinetuneGold,
    parts: Sequence[tuple[Task, Source, Teacher]],
    accelerator: Accelerator,
) -> tuple[nn.Module, dict[str, BatchedTask], AcceleratedOptimizer]:
    """Returns the classifiers as one model, their tasks by name, and their optimizer."""
    model = Classifiers([teacher.model for _, _, teacher in parts])
    prepared, inner = accelerator.prepare(model, adamw(model, optimizer))
    tasks: dict[str, BatchedTask] = {
        task.name: (TokenLabelTask if task.type == "token_labels" else ExampleTask)(
            steps, task, teacher, hold_out(source, learn.held_out, learn.group), accelerator, partial(prepared, number)
        )
        for number, (task, source, teacher) in enumerate(parts)
    }
    return model, tasks, AcceleratedOptimizer(accelerator, prepared, inner, optimizer.max_grad_norm)


def new_teachers(
    encoder: Encoder, max_seq_length: int, tasks: Sequence[Task], targets: Sequence[Target]
) -> list[Teacher]:
    """Returns classifiers with new heads on one shared encoder."""
    places = (encoder.model_name_or_path, encoder.model_revision, max_seq_length)
    teachers = [new_classifier(tasks[0], targets[0], *places)]
    for task, target in zip(tasks[1:], targets[1:], strict=True):
        teacher = new_classifier(task, target, *places)
        # One encoder object in all classifiers: its gradients from all tasks add up in the same parameters.
        setattr(teacher.model, teacher.model.base_model_prefix, teachers[0].model.base_model)
        teachers.append(teacher)
    return teachers


def targets_of(tasks: Sequence[Task], objective: Objective | None) -> list[Target]:
    """Returns what the logits of several tasks mean. An objective applies to the tasks with scores.

    Raises:
        ConfigError: if no task supports the objective, a task is repeated, or one of several labels words.
    """
    names = [task.name for task in tasks]
    problems = [f"{name} is repeated" for name in sorted({name for name in names if names.count(name) > 1})]
    problems += [
        f"{task.name} labels words (type: token_labels). Train it alone"
        for task in tasks
        if task.type == "token_labels"
    ]
    raise_all(ConfigError, "--tasks", problems)
    has_scores = [task.type == "regression" for task in tasks]
    is_for = has_scores if any(has_scores) else [True] * len(tasks)
    return [make_target(task, objective if own else None) for task, own in zip(tasks, is_for, strict=True)]


def load_tasks(learn: FinetuneTask | FinetuneTasks) -> list[Task]:
    """Returns the one task, or several: shipped ones by name, and the user's by manifest."""
    if isinstance(learn, FinetuneTask):
        return [load_task(learn.task, learn.manifest)]
    return [
        load_task(manifest=Path(name)) if name.endswith((".yaml", ".yml")) else load_task(name) for name in learn.names
    ]


def _save(teachers: Mapping[str, Teacher], folder: Path) -> None:
    """Writes teachers that share their encoder, each into its own folder."""
    first, *_ = (folder / name for name in teachers)
    for name, teacher in teachers.items():
        model, own = teacher.model, folder / name
        weights = state_of(model)
        encoder = {name: t for name, t in weights.items() if name.startswith(f"{model.base_model_prefix}.")}
        head = {name: tensor for name, tensor in weights.items() if name not in encoder}
        if own == first:
            write_tensors(own / ENCODER_FILE, encoder, {"format": "pt"})
        else:
            # A link under a temporary name replaces an old file atomically. Linking directly would fail if one exists.
            write_atomically(own / ENCODER_FILE, partial(link_or_copy, first / ENCODER_FILE))
        write_tensors(own / HEAD_FILE, head, {"format": "pt"})
        # The index of weights and files, in the format of transformers.
        files = dict.fromkeys(encoder, ENCODER_FILE) | dict.fromkeys(head, HEAD_FILE)
        size = sum(tensor.nbytes for tensor in weights.values())
        index = {"metadata": {"total_size": size}, "weight_map": files}
        write_text(own / INDEX_FILE, json.dumps(index, indent=2) + "\n")
        model.config.architectures = [type(model).__name__]
        tokenizer = AutoTokenizer.from_pretrained(teacher.name, revision=teacher.revision)
        with library_writes(own):
            model.config.save_pretrained(own)
            tokenizer.save_pretrained(own)
