"""Training a masked LM on a corpus, from an encoder with or without a prediction head; resumable at any step."""

from typing import Any

import torch
from accelerate import Accelerator
from torch.nn import functional

from pipeline.files import make_folder
from pipeline.sets.tokens import perplexity
from pipeline.training import loop
from pipeline.training.run_record import Metrics, RunRecord
from pipeline.training.steps import seed_step
from teacher.config import FinetuneCorpus
from teacher.corpus.masking import Masked, MaskingPlan, mask
from teacher.corpus.text import VALIDATION, Text, masking_plan, open_text, require_known_words
from teacher.finetune.common import (
    adamw,
    autocast,
    new_accelerator,
    save_teacher,
    start_run,
    take_step,
    training_precision,
)
from teacher.finetune.text_stream import TextStream
from teacher.models.batches import token_budget_batches, tokens_per_batch
from teacher.models.loaded import weights_sha256
from teacher.models.masked_lm import MaskedLm, load_masked_lm, predict_masked

VALIDATION_DOCUMENTS = 1000


class MaskedLmLearner(loop.Learner):
    """A masked LM and the corpus that it is trained and scored on.

    Args:
        config: the settings.
        text: the corpus; the documents it holds out are scored.
        lm: is trained in place.
        accelerator: this process and the others.
    """

    def __init__(self, config: FinetuneCorpus, text: Text, lm: MaskedLm, accelerator: Accelerator) -> None:
        self._config, self._lm, self._accelerator = config, lm, accelerator
        optimizer = adamw(lm.model, config.learning_rate, config.weight_decay)
        self.model = lm.model
        self._wrapped, self.optimizer = accelerator.prepare(lm.model, optimizer)
        plan = masking_plan(text, lm.tokens, config.seed, num_copies=1)
        batches = (config.per_device_train_batch_size, config.seed)
        processes = (accelerator.num_processes, accelerator.process_index)
        self._stream = TextStream(text, lm.tokens, plan, *batches, *processes)
        self._validation = _validation(text, lm, plan)

    def train_step(self, step: int) -> tuple[torch.Tensor, int]:
        """Takes one step; returns the mean loss of a masked position, nats, and the number of them."""
        masked, rows, self.data_state = self._stream.batch(step, self.data_state or (0, 0))
        device = self.model.device
        target_P = torch.from_numpy(masked.targets.take(rows).flat).to(device)
        with autocast(device):
            _, logits_PV = predict_masked(self._lm, masked.ids, masked.positions, rows, self._wrapped)
        loss = functional.cross_entropy(logits_PV, target_P)
        take_step(self._accelerator, self._wrapped, self.optimizer, loss, self._config.max_grad_norm)
        return loss, len(target_P)

    def evaluate(self) -> Metrics:
        """Scores on the documents held out, see `evaluate_mlm`; every process works them all out."""
        return {} if self._validation is None else {VALIDATION: evaluate_mlm(self._lm, self._validation)}

    def keep(self) -> None:
        """Writes the masked LM."""
        save_teacher(self.model, self._lm.name, self._lm.revision, self._config.output_dir)


def finetune_mlm(config: FinetuneCorpus, command: str) -> RunRecord:
    """Trains a masked LM into ``config.output_dir``, or goes on with it.

    Returns:
        The record that is also written to ``finetune.json``: settings, and the masked accuracy and perplexity on held
        out documents. Empty on other ranks than the first.

    Raises:
        ConfigError: for flags that do not fit a corpus.
        DataError: if there is no text to train on.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    config.check()
    text = open_text(config, config.max_seq_length)
    accelerator = new_accelerator()
    make_folder(config.output_dir)
    seed_step(config.seed, 0)
    lm = load_masked_lm(config.model_name_or_path, config.model_revision, config.max_seq_length, new_head=True)
    require_known_words(text, lm.tokens, lm.name)
    settings = _settings(config, text, lm) | {"processes": accelerator.num_processes}
    run, finished = start_run(config.output_dir, settings, command, accelerator)
    if finished is not None:
        return finished
    schedule = loop.Schedule(
        total_steps=config.max_steps,
        entry_steps=config.save_steps,
        unit="step",
        seed=config.seed,
        warmup_steps=config.warmup_steps,
        keep_best=False,
    )
    history = loop.train(run, MaskedLmLearner(config, text, lm, accelerator), schedule, config.report_to)
    return run.finish({"history": history, "best": history[-1]})


def _settings(config: FinetuneCorpus, text: Text, lm: MaskedLm) -> dict[str, Any]:
    """What decides the result; where text and encoder lie does not."""
    places = {"data", "manifest", "model_name_or_path", "model_revision", "output_dir", "save_steps", "report_to"}
    others = {"max_documents", "json_output"}
    return config.model_dump(mode="json", exclude={*places, *others}) | {
        "corpus": f"{text.corpus.name} version {text.corpus.version}",
        "documents": text.documents.sha256,
        "encoder": weights_sha256(lm.model.base_model),
        "precision": training_precision(),
    }


def _validation(text: Text, lm: MaskedLm, plan: MaskingPlan) -> Masked | None:
    """Masked sequences of held-out documents, at most so many documents, evenly spread; None if there is none."""
    every, total = text.config.validation_every, text.documents.num_documents
    step = every * -(-total // (every * VALIDATION_DOCUMENTS))
    rows = range(0, total, step)
    parts = [part for row in rows for part in text.sequences(lm.tokens, VALIDATION, row, row + 1)]
    masked = Masked.joined([mask(part, plan) for part in parts]) if parts else None
    return masked if masked is not None and len(masked.sequence_R) else None


@torch.no_grad()
def evaluate_mlm(lm: MaskedLm, masked: Masked) -> dict[str, float]:
    """Share of masked tokens that the model guesses, and its perplexity on them."""
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
