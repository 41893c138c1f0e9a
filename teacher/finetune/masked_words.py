"""Trains a masked LM on a corpus, from an encoder with or without a prediction head. Resumes at any step.

Shapes: P masked positions of a batch, V vocabulary.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch.nn import functional

from pipeline.arrays import Ints
from pipeline.files import make_folder
from pipeline.record_file import Record
from pipeline.sets.kinds.masked_words import perplexity
from pipeline.settings import deciding
from pipeline.tasks.task import TRAIN
from pipeline.training.batches import batch_of, num_rounds, shuffled_batches
from pipeline.training.loop import TrainTask, fit, seed_step
from pipeline.training.run_record import Metrics
from pipeline.training.schedule import Schedule
from teacher.corpus.sequences import Masked, MaskingPlan, mask
from teacher.corpus.text import VALIDATION, Text, masking_plan, nothing_to_mask, open_text, require_known_words
from teacher.finetune.common import (
    AcceleratedOptimizer,
    adamw,
    autocast,
    new_accelerator,
    origin,
    save_teacher,
    start_run,
    training_precision,
)
from teacher.finetune_settings import FinetuneCorpus, FinetuneSettings, StepFlags
from teacher.models.batches import token_budget_batches, tokens_per_batch
from teacher.models.loaded import weights_sha256
from teacher.models.masked_lm import MaskedLm, MlmTokenizer, load_masked_lm, predict_masked
from teacher.settings import Masking

VALIDATION_DOCUMENTS = 1000
BLOCK_DOCUMENTS, BLOCKS_PER_POOL = 256, 32


def finetune_mlm(config: FinetuneSettings, command: str) -> Record:
    """Trains a masked LM into ``config.output_dir``, or resumes it.

    Returns:
        The record that is also written to ``finetune.json``: settings, and the masked accuracy and perplexity on held
        out documents. Empty on other ranks than the first.

    Raises:
        ConfigError: if there is no such corpus.
        DataError: if there is no text to train on.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    corpus, encoder, steps = config.learn, config.encoder, config.steps
    assert isinstance(corpus, FinetuneCorpus), "tasks are handled by `finetune`"
    text = open_text(corpus, steps.max_seq_length)
    accelerator = new_accelerator()
    make_folder(config.output_dir)
    seed_step(steps.seed, 0)
    lm = load_masked_lm(encoder.model_name_or_path, encoder.model_revision, steps.max_seq_length, new_head=True)
    require_known_words(text, lm.tokens, lm.name)
    settings = deciding(config) | {
        "corpus": f"{text.corpus.name} version {text.corpus.version}",
        "documents": text.documents.sha256,
        "encoder": weights_sha256(lm.model.base_model),
        "precision": training_precision(),
        "processes": accelerator.num_processes,
    }
    run, finished = start_run(config.output_dir, settings, command, accelerator)
    if finished is not None:
        return finished
    schedule = Schedule(
        total_steps=corpus.max_steps,
        entry_steps=steps.save_steps,
        unit="step",
        seed=steps.seed,
        warmup_steps=steps.warmup_steps,
        save_best=False,
    )
    prepared, inner = accelerator.prepare(lm.model, adamw(lm.model, config.optimizer))
    task = MaskedWordTask(steps, corpus.masking, text, lm, accelerator, prepared)
    optimizer = AcceleratedOptimizer(accelerator, prepared, inner, config.optimizer.max_grad_norm)
    history = fit(run, task, optimizer, schedule, config.report_to)
    return run.finish({"history": history, "best": history[-1], **origin(encoder)})


class MaskedWordTask(TrainTask["MaskedBatch"]):
    """A masked LM with its corpus for training and scores."""

    def __init__(
        self,
        steps: StepFlags,
        masking: Masking,
        text: Text,
        lm: MaskedLm,
        accelerator: Accelerator,
        prepared: torch.nn.Module,
    ) -> None:
        self.model, self._lm, self._prepared = lm.model, lm, prepared
        plan = masking_plan(text, lm.tokens, masking)
        batches = (steps.per_device_train_batch_size, steps.seed)
        processes = (accelerator.num_processes, accelerator.process_index)
        self.batches = TextBatches(text, lm.tokens, plan, *batches, *processes)
        self._validation = _validation(text, lm, plan)

    def loss(self, batch: "MaskedBatch") -> torch.Tensor:
        """Returns the mean loss of a masked position, in nats."""
        device = self.model.device
        target_P = torch.from_numpy(batch.targets_P).to(device)
        with autocast(device):
            _, logits_PV = predict_masked(self._lm, batch.pool.ids, batch.pool.positions, batch.rows, self._prepared)
        return functional.cross_entropy(logits_PV, target_P)

    def evaluate(self) -> Metrics:
        """Returns the scores on held-out documents. Every process computes all of them. See `evaluate_mlm`."""
        return {} if self._validation is None else {VALIDATION: evaluate_mlm(self._lm, self._validation)}

    def save(self, folder: Path) -> None:
        """Writes the masked LM."""
        save_teacher(self.model, self._lm.name, self._lm.revision, folder)


@dataclass(frozen=True)
class MaskedBatch:
    """The numbers of some sequences of a pool."""

    pool: Masked
    rows: list[int]

    @property
    def targets_P(self) -> Ints:
        """Returns the tokens at the masked positions of these rows."""
        return self.pool.targets.take(self.rows).flat

    def __len__(self) -> int:
        return len(self.targets_P)


class TextBatches:
    """The batches of a training. Each pass over the corpus has a new order and new masks of its documents.

    The number of batches of a pool is only known after reading it, so the ``state`` is the number of a pool and of its
    first step. None at the beginning.
    """

    state: tuple[int, int] | None = None

    def __init__(
        self,
        text: Text,
        tokens: MlmTokenizer,
        plan: MaskingPlan,
        batch_size: int,
        seed: int,
        num_processes: int = 1,
        rank: int = 0,
    ) -> None:
        self._text, self._tokens, self._plan = text, tokens, plan
        self._batch_size, self._seed, self._num_processes, self._rank = batch_size, seed, num_processes, rank
        self._num_blocks = -(-text.documents.num_documents // BLOCK_DOCUMENTS)
        self._pools_per_pass = -(-self._num_blocks // BLOCKS_PER_POOL)
        self._masked: Masked | None = None

    def at(self, step: int) -> MaskedBatch:
        """Returns the batch of this process at a step, not before the first step of the current pool."""
        number, first = self.state or (0, 0)
        if self._masked is None:
            self._read(number)
        num_empty = 0
        while step - first >= (rounds := num_rounds(len(self._batches), self._num_processes)):
            num_empty = 0 if rounds else num_empty + 1
            # So many consecutive empty pools contain a complete pass, wherever they begin.
            if num_empty == 2 * self._pools_per_pass - 1:
                raise nothing_to_mask(self._text, "its training split")
            number, first = number + 1, first + rounds
            self._read(number)
        assert self._masked is not None
        self.state = number, first
        return MaskedBatch(self._masked, batch_of(self._batches, step - first, self._num_processes, self._rank))

    def _read(self, number: int) -> None:
        """Reads a pool into memory. A pool whose documents are too short, or have nothing to mask, has no batch."""
        parts = self._pool(number)
        self._masked = Masked.joined(parts) if parts else None
        lengths = self._masked.ids.lengths if self._masked is not None else np.empty(0, np.int64)
        self._batches = shuffled_batches(lengths, self._batch_size, self._seed, number)

    def _pool(self, number: int) -> list[Masked]:
        """Returns masked sequences of random blocks of documents."""
        total = self._text.documents.num_documents
        passes, part = divmod(number, self._pools_per_pass)
        # The order is a function of seed and pass, so a resumed run needs no generator state.
        order = np.random.default_rng([self._seed, passes]).permutation(self._num_blocks)
        starts = [int(k) * BLOCK_DOCUMENTS for k in order[part * BLOCKS_PER_POOL : (part + 1) * BLOCKS_PER_POOL]]
        return [
            # The pass is the number of the copy, so that every pass masks other positions (dynamic masking, as in
            # RoBERTa).
            mask(sequences, self._plan, passes)
            for start in starts
            for sequences in self._text.sequences(self._tokens, TRAIN, start, min(total, start + BLOCK_DOCUMENTS))
        ]


def _validation(text: Text, lm: MaskedLm, plan: MaskingPlan) -> Masked | None:
    """Returns masked sequences of at most so many evenly spread held-out documents, or None."""
    every, total = text.flags.validation_every, text.documents.num_documents
    # A multiple of `every`, so that each chosen document is in the validation split.
    step = every * -(-total // (every * VALIDATION_DOCUMENTS))
    rows = range(0, total, step)
    parts = [part for row in rows for part in text.sequences(lm.tokens, VALIDATION, row, row + 1)]
    masked = Masked.joined([mask(part, plan) for part in parts]) if parts else None
    return masked if masked is not None and len(masked.sequence_R) else None


@torch.no_grad()
def evaluate_mlm(lm: MaskedLm, masked: Masked) -> dict[str, float]:
    """Returns the model's accuracy and perplexity on masked tokens."""
    lm.model.eval()
    device = lm.model.device
    right, nats, positions = 0, 0.0, 0
    for rows in token_budget_batches(masked.ids.lengths.tolist(), tokens_per_batch(device)):
        _, logits_PV = predict_masked(lm, masked.ids, masked.positions, rows)
        target_P = torch.from_numpy(masked.targets.take(rows).flat).to(device)
        right += int((logits_PV.argmax(dim=1) == target_P).sum())
        nats += float(functional.cross_entropy(logits_PV, target_P, reduction="sum"))
        positions += len(target_P)
    return {"masked_accuracy": right / positions, "perplexity": perplexity(nats / positions)}
