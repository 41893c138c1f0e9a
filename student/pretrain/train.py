"""``distill pretrain-student``: a student from a masked LM's stored predictions.

Shapes: P masked positions, V vocabulary.
"""

import json
import math
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import reduce

from pipeline import console
from pipeline.device import to_device
from pipeline.errors import ConfigError, DataError
from pipeline.files import make_folder, remove_temporaries, write_text
from pipeline.logit_set.codecs import CODECS, Decoder, Distribution
from pipeline.logit_set.reader import find_set
from pipeline.logit_set.record import TOKENIZER_FILE
from pipeline.logit_set.token_reader import TokenSet, open_tokens
from pipeline.training.run_record import RUN_RECORD, RunRecord, finish_run, read_run_record, start_run
from pipeline.training.steps import (
    has_fast_bf16,
    linear_decay,
    load_checkpoint,
    save_checkpoint,
    seed_step,
    set_learning_rate,
)
from student.config import PretrainConfig
from student.model.card import CARD_FILE
from student.pretrain.card import card_text
from student.pretrain.data import Batch, Stream
from student.pretrain.evaluate import evaluate_mlm
from student.pretrain.head import HeadPass, TeacherOf
from student.pretrain.model import MlmConfig, MlmStudent, design_mlm
from student.train.optimizer import RowAdam
from student.train.used_rows import count_used_rows, neutralise_unmoved

CHECKPOINT = "checkpoint.safetensors"
BETAS, EPS = (0.9, 0.98), 1e-6  # of the published code
LIBRARIES = ("distill-offline", "torch", "accelerate", "pyarrow", "tokenizers")


@dataclass
class Progress:
    """How far a run has come."""

    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


def pretrain(config: PretrainConfig, command: str) -> RunRecord:
    """Pretrains the student that ``config`` describes, or goes on with it.

    The run folder holds ``run.json`` (settings, hashes, losses), the student and its tokenizer; `distill train-student
    --init-from` starts from it.

    Returns:
        The content of ``run.json``; empty on other ranks than the first.

    Raises:
        ConfigError: naming every flag that does not fit, the temperature included if the set's codec has not kept it.
        DataError: if there is no such set, or it has no row.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    token_set = open_tokens(find_set(config.logits, config.store), config.allow_unverified)
    token_set.check_temperature(config.temperature)
    student_config = design_mlm(config, token_set.record)
    state = PartialState()
    stream = Stream(token_set, "train", config.per_device_train_batch_size, config.seed, state.num_processes)
    if not stream.num_rows:
        raise DataError(f"{token_set.root}: its train split has no row")
    total_steps = stream.num_steps(config.num_train_epochs)
    total_steps = min(config.max_steps or total_steps, total_steps)
    folder = config.output_dir or Path("runs") / token_set.root.name
    make_folder(folder)
    settings = _settings(config, token_set) | {"steps": total_steps, "processes": state.num_processes}
    places = {"logit_set": str(token_set.root.resolve())}
    with state.main_process_first():
        finished = start_run(folder / RUN_RECORD, settings, command, folder / CHECKPOINT, places)
    if finished is not None:
        return finished if state.is_main_process else {}
    student = _initialized(config, student_config).to(state.device)
    history = _train(config, student, token_set, stream, total_steps, folder, state)
    if not state.is_main_process:
        return {}
    remove_temporaries(folder)
    count_used_rows(student)
    student.save(folder)
    write_text(folder / TOKENIZER_FILE, token_set.tokenizer_json())
    result = {"history": history, "versions": {name: version(name) for name in LIBRARIES}}
    record = read_run_record(folder / RUN_RECORD) | {"result": result}
    write_text(folder / CARD_FILE, card_text(student, token_set.record, record))
    record = finish_run(folder / RUN_RECORD, result)
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return record


def _settings(config: PretrainConfig, token_set: TokenSet) -> dict[str, Any]:
    """What decides the weights; where the set and the run lie does not."""
    places = {"logits", "store", "output_dir", "save_steps", "allow_unverified", "json_output"}
    return config.model_dump(mode="json", exclude={*places, "max_steps"}) | {
        "logit_set_fingerprint": token_set.record.fingerprint,
        "codec": json.loads(token_set.record.codec.model_dump_json()),
        "precision": "bf16" if has_fast_bf16() else "fp32",
    }


def _initialized(config: PretrainConfig, student_config: MlmConfig) -> MlmStudent:
    """The student before its first step, on the CPU."""
    seed_step(config.seed, 0)
    return MlmStudent(student_config)


def _train(
    config: PretrainConfig,
    student: MlmStudent,
    token_set: TokenSet,
    stream: Stream,
    total_steps: int,
    folder: Path,
    state: PartialState,
) -> list[dict[str, Any]]:
    optimizer = _optimizer(config, student, state)
    saved = load_checkpoint(folder / CHECKPOINT, student, optimizer)
    progress = Progress(**saved) if saved else Progress()
    head = HeadPass(student.head, torch.bfloat16 if has_fast_bf16() else torch.float32)
    decoder = token_set.decoder()
    pad_id, warmup_steps = student.config.pad_id, int(config.warmup_ratio * total_steps)
    with console.progress(total_steps, "pretraining") as bar:
        bar.advance(progress.step)
        while progress.step < total_steps:
            rate = linear_decay(progress.step, total_steps, warmup_steps)
            set_learning_rate(optimizer, config.learning_rate * rate)
            batch = stream.batch(progress.step, state.process_index, pad_id)
            loss = _step(config, student, head, optimizer, token_set, decoder, batch, state)
            progress.step += 1
            bar.advance()
            if progress.step % config.save_steps == 0 or progress.step == total_steps:
                if not math.isfinite(float(loss)):
                    raise ConfigError(f"the loss at step {progress.step} is {float(loss)}; lower --learning-rate")
                optimizer.catch_up()
                if progress.step == total_steps:
                    neutralise_unmoved(student.encoder, _initialized(config, student.config).encoder)
                metrics = evaluate_mlm(student, token_set, "validation")
                spoken = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
                console.note(f"step {progress.step}: loss {float(loss):.4f}, validation {spoken}")
                progress.history.append({"step": progress.step, "loss": float(loss), "validation": metrics})
                if state.is_main_process:
                    save_checkpoint(folder / CHECKPOINT, student, optimizer, vars(progress))
    return progress.history


def _optimizer(config: PretrainConfig, student: MlmStudent, state: PartialState) -> RowAdam:
    """AdamW. Embeddings do not decay: a matrix near the identity would decay to nothing, not to doing nothing."""
    tables = (table.weight for table in student.encoder.tables())
    rates = (config.learning_rate, config.weight_decay)
    pad_id = student.config.pad_id
    return RowAdam(tables, student.head.parameters(), *rates, padding_idx=pad_id, betas=BETAS, eps=EPS)


def _step(
    config: PretrainConfig,
    student: MlmStudent,
    head: HeadPass,
    optimizer: RowAdam,
    token_set: TokenSet,
    decoder: Decoder | None,
    batch: Batch,
    state: PartialState,
) -> torch.Tensor:
    """One step; returns the mean loss of a position over all processes."""
    device = state.device
    # Processes add up gradients of the same shape: those of whole tables.
    rows = optimizer.use(batch.ids_BL.flatten()) if optimizer.by_rows and state.num_processes == 1 else None
    student.train()
    places = (to_device(part, device) for part in (batch.ids_BL, batch.row_P, batch.place_P))
    features_PF = student(*places, rows)
    counts = torch.tensor(float(len(batch.row_P)), device=device)
    if state.num_processes > 1:
        counts = reduce(counts, reduction="sum")
    teacher_of = stored_teacher(token_set, decoder, batch, config.temperature)
    target_P = to_device(batch.target_P, device)
    mean = head.backward(features_PF, target_P, teacher_of, config.alpha, config.temperature, 1 / counts)
    if state.num_processes > 1:
        for parameter in student.parameters():
            parameter.grad = reduce(parameter.grad, reduction="sum")
        mean = reduce(mean, reduction="sum")
    optimizer.clip_gradients(config.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()
    return mean


def stored_teacher(token_set: TokenSet, decoder: Decoder | None, batch: Batch, temperature: float) -> TeacherOf:
    """The teacher's distributions at some of a batch's positions, from what the set's codec has kept of them."""
    codec = token_set.record.codec

    def teacher_of(part: slice) -> Distribution:
        columns = {name: column[part] for name, column in batch.said.items()}
        return CODECS[codec.name].decode(codec, columns, temperature, decoder)

    return teacher_of
