"""Fine-tunes a BERT as the teacher of one task, or of several tasks that share one encoder.

With several tasks, the run's folder contains a model folder for each, with weights in two files as transformers writes
them for large models. The encoder's file is hard-linked into every folder, so its bytes are stored once.

Teachers of word labels learn the gold label of each word at the word's first token.

Shapes: B sentences of a batch, L tokens, T tokens of all sentences, C logits.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn
from torch.nn import functional
from transformers import AutoTokenizer

from pipeline.arrays import Ragged
from pipeline.errors import ConfigError, DataError, raise_all
from pipeline.file_names import FINETUNE_RECORD
from pipeline.files import library_writes, link_or_copy, make_folder, write_atomically, write_text
from pipeline.record_file import Record
from pipeline.sets.kinds.token_labels import LabelledWords
from pipeline.sources import Source
from pipeline.tasks.spans import word_scores
from pipeline.tasks.target import NO_LABEL, Target, make_target
from pipeline.tasks.task import Objective, Task, load_task
from pipeline.text.tokenizer import require_known_ids
from pipeline.training.batches import EpochBatches
from pipeline.training.best_epoch import best_of
from pipeline.training.checkpoint import state_of, write_tensors
from pipeline.training.joint import BatchedTask, JointTask, entry_of, joint_settings, start_parts
from pipeline.training.loop import fit, seed_step
from pipeline.training.run import Run
from pipeline.training.run_record import Entry, Metrics
from pipeline.training.schedule import Schedule
from teacher.finetune.common import (
    AcceleratedOptimizer,
    adamw,
    autocast,
    classifier_settings,
    new_accelerator,
    origin,
    save_teacher,
    start_run,
)
from teacher.finetune.examples import ExampleTask, Forward, rows_of, training_source
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
from teacher.models.batches import collate, tokens_per_batch
from teacher.models.classifier import Teacher, new_classifier
from teacher.models.teacher_logits import framed, labelled_words, pieces_of

INDEX_FILE = "model.safetensors.index.json"


class TokenLabelTask(BatchedTask):
    """A classifier of words with its sentences for training and scores.

    Args:
        steps: the settings of a step.
        task: the task, with its metrics.
        teacher: the teacher, which is trained in place.
        rows: the rows of ``train`` and of dev splits.
        accelerator: this process and the others.
        forward: returns logits_BLC of the classifier for its inputs as keywords, in all processes.

    Raises:
        DataError: if no training row has gold and a token, or the teacher's tokenizer lacks the words.
    """

    def __init__(
        self,
        steps: StepFlags,
        task: Task,
        teacher: Teacher,
        rows: dict[str, pa.Table],
        accelerator: Accelerator,
        forward: Forward,
    ) -> None:
        self.model, self._teacher, self._task, self._forward = teacher.model, teacher, task, forward
        self._max_seq_length, self._accelerator = steps.max_seq_length, accelerator
        self._dev_rows = {name: part for name, part in rows.items() if name != "train"}
        train = rows["train"].filter(rows["train"].column("label").is_valid())
        pieces = pieces_of(teacher, train, steps.max_seq_length)
        no_logits_TC = np.empty((len(pieces.ids.flat), 0), dtype=np.float32)
        labelled_words = LabelledWords.of(
            task.labels, train.column("sentence1"), train.column("label"), pieces, no_logits_TC
        )
        # The mean loss of a batch without tokens would be NaN.
        self._ids = pieces.ids.not_empty
        self._gold = Ragged(labelled_words.gold_T, self._ids.offsets)
        if not len(self._ids):
            raise DataError(
                f"task {task.name!r}: no row of the train split has gold and a token, so there is nothing to "
                "fine-tune on"
            )
        require_known_ids(teacher.tokenizer, self._ids, f"model {teacher.name}")
        processes = (accelerator.num_processes, accelerator.process_index)
        self.batches = EpochBatches(self._ids.lengths, steps.per_device_train_batch_size, steps.seed, *processes)

    def loss(self, batch: list[int]) -> torch.Tensor:
        """Returns the mean loss of the words of a batch, a scalar."""
        device, first = self._accelerator.device, len(self._teacher.tokens.frame[0])
        inputs = collate(self._teacher, framed(self._teacher, self._ids.take(batch)))
        # Special tokens and padding keep NO_LABEL, which the loss ignores.
        gold_BL = torch.full(inputs["input_ids"].shape, NO_LABEL)
        gold = self._gold.padded(batch, NO_LABEL)
        gold_BL[:, first : first + gold.shape[1]] = torch.from_numpy(gold)
        with autocast(device):
            logits_BLC = self._forward(**{key: value.to(device) for key, value in inputs.items()}).float()
        return functional.cross_entropy(logits_BLC.flatten(0, 1), gold_BL.flatten().to(device), ignore_index=NO_LABEL)

    def evaluate(self) -> Metrics:
        """Returns the task's metrics on each dev split in fp32, like those of a dump.

        Every process computes all of them.
        """
        return {name: self._score(name, rows) for name, rows in self._dev_rows.items()}

    def save(self, folder: Path) -> None:
        """Writes the teacher."""
        save_teacher(self._teacher.model, self._teacher.name, self._teacher.revision, folder)

    def _score(self, split: str, rows: pa.Table) -> dict[str, float]:
        max_tokens = tokens_per_batch(self._accelerator.device)
        with torch.no_grad():
            predicted = labelled_words(self._teacher, rows, self._max_seq_length, split, max_tokens)
        return word_scores(self._task.metrics, predicted.tallies(predicted.teacher_TC))


ENCODER_FILE, HEAD_FILE = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
TASKS: dict[str, type[ExampleTask | TokenLabelTask]] = {
    "token_labels": TokenLabelTask
}  # by `Task.type`, with examples as the default


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
    accelerator = new_accelerator(*_handlers(are_several))
    make_folder(config.output_dir)
    # Before the models are made, because new heads start from random weights.
    seed_step(config.steps.seed, 0)
    teachers = new_teachers(config.encoder, config.steps.max_seq_length, tasks, targets)
    parts = list(zip(tasks, sources, teachers, strict=True))
    if not are_several:
        (part,) = parts
        settings = classifier_settings(config, *part, accelerator)
        run, finished = start_run(config.output_dir, settings, command, accelerator)
        if finished is not None:
            return finished
        history = _train(config, learn, parts, accelerator, run)
        return run.finish({"history": history, "best": best_of(history), **origin(config.encoder)})
    return _finetune_several(config, learn, command, parts, accelerator)


def _finetune_several(
    config: FinetuneSettings,
    learn: FinetuneGold,
    command: str,
    parts: Sequence[tuple[Task, Source, Teacher]],
    accelerator: Accelerator,
) -> Record:
    names = [task.name for task, _, _ in parts]
    by_task = {part[0].name: {"tasks": names} | classifier_settings(config, *part, accelerator) for part in parts}
    run, finished = start_run(config.output_dir, joint_settings(by_task), command, accelerator)
    if finished is not None:
        return finished
    folders = {name: config.output_dir / name for name in names}
    works = (
        start_parts({folders[name]: by_task[name] for name in names}, command, FINETUNE_RECORD) if run.is_main else []
    )
    history = _train(config, learn, parts, accelerator, run)
    best, start = best_of(history), origin(config.encoder)
    for name, work in zip(names, works, strict=run.is_main):
        own = {"history": [entry_of(name, entry) for entry in history], "best": entry_of(name, best)}
        work.finish(own | start)
    return run.finish({"history": history, "best": best})


def _train(
    config: FinetuneSettings,
    learn: FinetuneGold,
    parts: Sequence[tuple[Task, Source, Teacher]],
    accelerator: Accelerator,
    run: Run,
) -> list[Entry]:
    """Trains the classifiers in place."""
    steps = config.steps
    model, tasks, optimizer = train_tasks(config.optimizer, steps, learn.held_out, parts, accelerator)

    def schedule(steps_per_epoch: int) -> Schedule:
        others = {"warmup_steps": steps.warmup_steps, "save_steps": steps.save_steps}
        return Schedule.of_epochs(steps_per_epoch, learn.num_train_epochs, steps.seed, **others)

    if not isinstance(learn, FinetuneTasks):
        (task,) = tasks.values()
        return fit(run, task, optimizer, schedule(task.batches.steps_per_epoch), config.report_to)
    teachers = {task.name: teacher for task, _, teacher in parts}
    joint = JointTask(model, tasks, steps.seed, partial(_save, teachers))
    return fit(run, joint, optimizer, schedule(joint.batches.steps_per_epoch), config.report_to)


def train_tasks(
    optimizer: AdamwFlags,
    steps: StepFlags,
    held_out: float | None,
    parts: Sequence[tuple[Task, Source, Teacher]],
    accelerator: Accelerator,
) -> tuple[nn.Module, dict[str, BatchedTask], AcceleratedOptimizer]:
    """Returns the classifiers as one model, their tasks by name, and their optimizer.

    Raises:
        DataError: if no training row of a task has gold, or a teacher's tokenizer lacks its words.
    """
    model = Classifiers([teacher.model for _, _, teacher in parts])
    prepared, inner = accelerator.prepare(model, adamw(model, optimizer))
    tasks: dict[str, BatchedTask] = {
        task.name: TASKS.get(task.type, ExampleTask)(
            steps, task, teacher, rows_of(source, held_out), accelerator, partial(prepared, number)
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


def _handlers(are_several: bool) -> list[DistributedDataParallelKwargs]:
    # A step trains one task's head. Without this flag DDP would also expect gradients of the other heads.
    return [DistributedDataParallelKwargs(find_unused_parameters=True)] if are_several else []


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
        _write_index(own, encoder, head)
        model.config.architectures = [type(model).__name__]
        tokenizer = AutoTokenizer.from_pretrained(teacher.name, revision=teacher.revision)
        with library_writes(own):
            model.config.save_pretrained(own)
            tokenizer.save_pretrained(own)


def _write_index(folder: Path, encoder: Mapping[str, torch.Tensor], head: Mapping[str, torch.Tensor]) -> None:
    """Returns the index of weights and files, in the format of transformers."""
    size = sum(tensor.nbytes for tensor in (*encoder.values(), *head.values()))
    files = dict.fromkeys(encoder, ENCODER_FILE) | dict.fromkeys(head, HEAD_FILE)
    index: dict[str, Any] = {"metadata": {"total_size": size}, "weight_map": files}
    write_text(folder / INDEX_FILE, json.dumps(index, indent=2) + "\n")
