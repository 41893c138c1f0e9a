"""Fine-tuning a BERT into a teacher: Accelerate loop, dynamic padding, best checkpoint by the dev metric, resumable.

Shapes: B batch, C logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch.nn import functional

from pipeline.arrays import Floats, Ints
from pipeline.device import has_fast_bf16
from pipeline.errors import DataError
from pipeline.files import make_folder
from pipeline.processes import processes
from pipeline.sources import ROWS_AT_ONCE, Source, load_source, rows_sha256, sentences
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import Target, gold_arrays, gold_classes, has_gold, make_target
from pipeline.tasks.task import Task, load_task
from pipeline.text.known import ROWS as KNOWN_ROWS
from pipeline.text.known import require_known
from pipeline.text.tokenizer import Tokenized
from pipeline.training import loop
from pipeline.training.run_record import Metrics, RunRecord, best_of
from pipeline.training.steps import EpochBatches, seed_step
from teacher.config import FinetuneTask
from teacher.finetune.common import adamw, save_teacher, start_run
from teacher.inference.batches import collate, default_tokens_per_batch, teacher_logits
from teacher.inference.classifier import Teacher, new_classifier
from teacher.inference.loaded import SENTENCE_ENCODER, is_sentence_encoder, weights_sha256

HELD_OUT = "held-out"  # which no manifest can call a split of its own


@dataclass(frozen=True)
class Split:
    """Rows of a split; as tokens, which take far more memory than their texts, only those of a batch.

    Attributes:
        rows: the source rows, N of them.
        lengths_N: tokens per row.
        label_N: int64 gold classes, or label_NC, ``NO_LABEL`` where there is none; see `gold_arrays`.
        score_N: float32 gold scores, NaN where there is none.
    """

    rows: pa.Table
    lengths_N: Ints
    label_N: Ints
    score_N: Floats


class ClassifierLearner(loop.Learner):
    """A classifier and the rows that it is trained and scored on.

    Args:
        config: the settings.
        task: whose metrics score it.
        teacher: is trained in place.
        splits: ``train``, and dev splits.
        accelerator: this process and the others.

    Raises:
        DataError: if no training row has gold.
    """

    def __init__(
        self, config: FinetuneTask, task: Task, teacher: Teacher, splits: dict[str, Split], accelerator: Accelerator
    ) -> None:
        self._config, self._task, self._teacher, self._accelerator = config, task, teacher, accelerator
        self._train = splits["train"]
        self._dev = {name: split for name, split in splits.items() if name != "train"}
        self._gold_N, self._rows = _gold(teacher, self._train)
        if not len(self._rows):
            raise DataError("the train split has no row with gold, nothing to fine-tune on")
        optimizer = adamw(teacher.model, config.learning_rate, config.weight_decay)
        self.model = teacher.model
        self._wrapped, self.optimizer = accelerator.prepare(teacher.model, optimizer)
        lengths, processes = self._train.lengths_N[self._rows], (accelerator.num_processes, accelerator.process_index)
        self._batches = EpochBatches(lengths, config.per_device_train_batch_size, config.seed, *processes)

    def schedule(self) -> loop.Schedule:
        """An entry for each epoch, and checkpoints within it."""
        steps = self._batches.steps_per_epoch
        return loop.Schedule(
            total_steps=steps * self._config.num_train_epochs,
            entry_steps=steps,
            unit="epoch",
            seed=self._config.seed,
            warmup_steps=self._config.warmup_steps,
            save_steps=self._config.save_steps,
        )

    def train_step(self, step: int) -> tuple[torch.Tensor, int]:
        """Takes one step; returns this process's mean loss and number of rows."""
        accelerator, rows = self._accelerator, self._rows[self._batches.at(step)]
        inputs = collate(self._teacher, self._inputs(self._train, rows.tolist()))
        batch = {key: value.to(accelerator.device) for key, value in inputs.items()}
        gold = torch.as_tensor(self._gold_N[rows], device=accelerator.device)
        with torch.autocast(accelerator.device.type, torch.bfloat16, enabled=has_fast_bf16()):
            logits_BC = self._wrapped(**batch).logits.float()
        loss = classifier_loss(self._teacher.target, logits_BC, gold)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(self._wrapped.parameters(), self._config.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss, len(rows)

    def evaluate(self) -> Metrics:
        """The task's metrics on each dev split."""
        return {name: self._score(split) for name, split in self._dev.items()}

    def keep(self) -> None:
        """Writes the classifier."""
        save_teacher(self.model, self._teacher.name, self._teacher.revision, self._config.output_dir)

    def _score(self, split: Split) -> dict[str, float]:
        """Metrics on a dev split, in fp32 as a dump has them; each process takes every n-th row."""
        accelerator = self._accelerator
        my_rows = range(accelerator.process_index, split.rows.num_rows, accelerator.num_processes)
        with torch.no_grad():
            max_tokens = default_tokens_per_batch(accelerator.device)
            logits = teacher_logits(self._teacher, self._inputs(split, my_rows), max_tokens)
        gathered = dict(gather_object(list(zip(my_rows, logits.tolist(), strict=True))))
        logits_NC = np.array([gathered[row] for row in range(split.rows.num_rows)], dtype=np.float32)
        return score_logits(self._task.metrics, self._teacher.target, logits_NC, split.label_N, split.score_N)

    def _inputs(self, split: Split, numbers: Sequence[int]) -> list[Tokenized]:
        """The rows of these numbers in tokens."""
        rows = split.rows.take(pa.array(numbers, pa.int64()))
        return self._teacher.reader.tokenize(*sentences(rows), self._config.max_seq_length)


def finetune(config: FinetuneTask, command: str) -> RunRecord:
    """Fine-tunes a teacher into ``config.output_dir``, or goes on with it.

    Returns:
        The record that is also written to ``finetune.json``: settings, metrics per epoch, and the best epoch, whose
        weights are kept.

    Raises:
        DataError: if there is no train split.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    config.check()
    task = load_task(config.task, config.manifest)
    source = load_source(task, config.data)
    if "train" not in source.splits:
        raise DataError(f"task {task.name!r}: no train split in {source.description}, nothing to fine-tune on")
    assert config.objective != "mlm", "check() has refused it"
    target = make_target(task, config.objective)
    make_folder(config.output_dir)
    accelerator = Accelerator(cpu=processes().device.type == "cpu")
    seed_step(config.seed, 0)
    teacher = new_classifier(task, target, config.model_name_or_path, config.model_revision, config.max_seq_length)
    settings = _settings(config, task, source, teacher) | {"processes": accelerator.num_processes}
    run, finished = start_run(config.output_dir, settings, command, accelerator)
    if finished is not None:
        return finished
    rows = source.splits if config.held_out is None else hold_out(source.splits, config.held_out)
    splits = {name: _split(teacher, part, config.max_seq_length) for name, part in rows.items()}
    learner = ClassifierLearner(config, task, teacher, splits, accelerator)
    history = loop.train(run, learner, learner.schedule(), config.report_to)
    result = {"history": history, "best": best_of(history)}
    if is_sentence_encoder(config.model_name_or_path, config.model_revision):
        result[SENTENCE_ENCODER] = config.model_name_or_path
    return run.finish(result)


def classifier_loss(target: Target, logits_BC: torch.Tensor, gold_B: torch.Tensor) -> torch.Tensor:
    """The mean loss against gold that a target asks for, a scalar; of labels apart also the mean over labels."""
    if target.kind == "score":
        return functional.mse_loss(logits_BC[:, 0], gold_B)
    if target.kind == "labels":
        return functional.binary_cross_entropy_with_logits(logits_BC, gold_B.float())
    return functional.cross_entropy(logits_BC, gold_B)


def hold_out(splits: dict[str, pa.Table], share: float) -> dict[str, pa.Table]:
    """The splits with some training rows, always the same, as the first of the dev splits, which decides what is best.

    Args:
        splits: rows by split, with ``train``.
        share: of the training rows, which becomes the split ``held-out``.

    Raises:
        DataError: if no row would be held out, or none left.
    """
    train = splits["train"]
    order = np.random.default_rng(0).permutation(train.num_rows)
    count = round(share * train.num_rows)
    if not 0 < count < train.num_rows:
        raise DataError(f"--held-out {share:g}: that is {count} of {train.num_rows} training rows; choose another")
    parts = {"train": train.take(np.sort(order[count:])), HELD_OUT: train.take(np.sort(order[:count]))}
    return parts | {name: rows for name, rows in splits.items() if name != "train"}


def _settings(config: FinetuneTask, task: Task, source: Source, teacher: Teacher) -> dict[str, Any]:
    """What decides the result; where rows and encoder lie does not, only what is in them."""
    places = {"task", "data", "manifest", "model_name_or_path", "model_revision", "output_dir", "save_steps"}
    settings = config.model_dump(mode="json", exclude={*places, "objective", "report_to", "json_output"})
    settings |= {
        "task": f"{task.name} version {task.version}",
        "target": teacher.target.model_dump(mode="json"),
        "metrics": list(task.metrics),
        "encoder": weights_sha256(teacher.model.base_model),
        "precision": "bf16" if has_fast_bf16() else "fp32",
    }
    return settings | {f"rows.{split}": rows_sha256(rows) for split, rows in source.splits.items()}


def _split(teacher: Teacher, rows: pa.Table, max_seq_length: int) -> Split:
    parts = (rows.slice(start, ROWS_AT_ONCE) for start in range(0, rows.num_rows, ROWS_AT_ONCE))
    first = teacher.reader.tokenize(*sentences(rows.slice(0, KNOWN_ROWS)), max_seq_length)
    require_known(teacher.tokenizer, first, f"model {teacher.name}")
    lengths = [len(row.ids) for part in parts for row in teacher.reader.tokenize(*sentences(part), max_seq_length)]
    return Split(rows, np.array(lengths, dtype=np.int64), *gold_arrays(teacher.target, rows))


def _gold(teacher: Teacher, split: Split) -> tuple[Floats | Ints, Ints]:
    """Training targets [N] of every row, [N, C] for labels apart, and the numbers of the rows that have one."""
    target, label_N, score_N = teacher.target, split.label_N, split.score_N
    gold_rows = np.flatnonzero(has_gold(target, label_N, score_N))
    if target.kind == "score":
        return score_N, gold_rows
    return label_N if target.kind == "labels" else gold_classes(target, label_N, score_N), gold_rows
