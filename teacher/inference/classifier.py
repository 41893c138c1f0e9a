"""Loading a teacher, and making sure that it fits the task before it runs."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as transformers_logging

from pipeline import console
from pipeline.errors import ConfigError, DataError, TeacherError, did_you_mean
from pipeline.tasks.target import Target, target_of_width
from pipeline.tasks.task import Task
from pipeline.text.tokenizer import vocabulary_size
from pipeline.training.run_record import read_run_record

FINETUNE_RECORD = "finetune.json"
LOADING_ERRORS = (OSError, ValueError, KeyError, RuntimeError, SafetensorError)


@dataclass(frozen=True)
class Teacher:
    """A classifier in evaluation mode, ready to be asked.

    Attributes:
        name: hub id or folder it was loaded from.
        revision: hub revision, if one was named.
        model: the transformers model, float32 weights.
        tokenizer: the `tokenizers` tokenizer behind its transformers one.
        pad_id: id that fills up batches.
        reads_token_types: whether the model takes ``token_type_ids``.
        target: what its logits mean once reordered.
        labels: the names of its outputs in its own order.
        order: for each logit of the task, the number of the teacher's output.
    """

    name: str
    revision: str | None
    model: Any
    tokenizer: Tokenizer
    pad_id: int
    reads_token_types: bool
    target: Target
    labels: tuple[str, ...]
    order: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())


def load_teacher(
    task: Task, name: str, revision: str | None, teacher_labels: Sequence[str], max_seq_length: int
) -> Teacher:
    """Loads a fine-tuned classifier and its tokenizer.

    Raises:
        DataError: if the model cannot be found or read.
        TeacherError: if its outputs, its tokenizer or its length do not fit the task.
    """
    console.note(f"loading teacher {name}")
    config = load_config(name, revision)
    labels = tuple(config.id2label[k] for k in range(config.num_labels))
    target = target_of_width(task, config.num_labels)
    if target is None:
        raise TeacherError(
            f"teacher {name}: has {config.num_labels} outputs ({', '.join(labels)}), but task {task.name!r} needs "
            f"{_widths(task)}; was it fine-tuned for this task?"
        )
    labels, order = _label_order(task, target, name, labels, teacher_labels)
    tokenizer, pad, type_ids = load_tokenizer(name, revision)
    check_fit(name, config, tokenizer, max_seq_length)
    model = _load_model(name, revision)
    return Teacher(name, revision, model, tokenizer, pad, type_ids, target, labels, order)


def new_classifier(task: Task, target: Target, name: str, revision: str | None, max_seq_length: int) -> Teacher:
    """Puts a new classification head on an encoder, to be fine-tuned for a task.

    Raises:
        DataError: if the encoder cannot be found or read.
        TeacherError: if tokenizer, model and length do not fit each other.
    """
    config = load_config(name, revision)
    tokenizer, pad, type_ids = load_tokenizer(name, revision)
    check_fit(name, config, tokenizer, max_seq_length)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # it reports the new head as missing weights
    try:
        model = AutoModelForSequenceClassification.from_pretrained(
            name,
            revision=revision,
            dtype=torch.float32,
            num_labels=target.num_logits,
            id2label=dict(enumerate(target.names)),
            label2id={label: number for number, label in enumerate(target.names)},
            problem_type="regression" if target.kind == "score" else "single_label_classification",
            ignore_mismatched_sizes=True,
        )
    except LOADING_ERRORS as error:
        raise not_loaded(name, "weights", error) from error
    order = tuple(range(target.num_logits))
    return Teacher(name, revision, model, tokenizer, pad, type_ids, target, target.names, order)


def load_config(name: str, revision: str | None) -> Any:
    """Reads a model's ``config.json``, from a folder or the hub."""
    if name.startswith((".", "/")) and not Path(name).exists():
        raise DataError(f"model {name}: no such folder")
    if (Path(name) / FINETUNE_RECORD).exists() and read_run_record(Path(name) / FINETUNE_RECORD)["state"] != "finished":
        raise TeacherError(f"teacher {name}: its fine-tuning is not finished; repeat `distill finetune-teacher` first")
    try:
        return AutoConfig.from_pretrained(name, revision=revision)
    except LOADING_ERRORS as error:
        raise not_loaded(name, "config", error) from error


def load_tokenizer(name: str, revision: str | None) -> tuple[Tokenizer, int, bool]:
    """Loads a tokenizer; returns it, its padding id and whether its model takes token types."""
    try:
        wrapped = AutoTokenizer.from_pretrained(name, revision=revision)
    except LOADING_ERRORS as error:
        raise not_loaded(name, "tokenizer", error) from error
    backend = getattr(wrapped, "backend_tokenizer", None)
    if backend is None:
        raise TeacherError(f"teacher {name}: its tokenizer has no fast version (tokenizer.json), which distill needs")
    return backend, int(wrapped.pad_token_id or 0), "token_type_ids" in wrapped.model_input_names


def check_fit(name: str, config: Any, tokenizer: Tokenizer, max_seq_length: int) -> None:
    """Checks that the model has a row for every token and a place for every position.

    Raises:
        TeacherError: if it has not.
    """
    tokens = vocabulary_size(tokenizer)
    if tokens > config.vocab_size:
        raise TeacherError(
            f"teacher {name}: its tokenizer has ids up to {tokens - 1}, but the model knows only {config.vocab_size}; "
            "tokenizer and model do not belong together"
        )
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and max_seq_length > positions:
        raise ConfigError(f"--max-seq-length: {max_seq_length} tokens, but {name} reads at most {positions}")


def weights_sha256(model: torch.nn.Module) -> str:
    """Hash of all weights and buffers by name, independent of the files they came from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _load_model(name: str, revision: str | None) -> Any:
    transformers_logging.disable_progress_bar()
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            name, revision=revision, dtype=torch.float32, output_loading_info=True
        )
    except LOADING_ERRORS as error:
        raise not_loaded(name, "weights", error) from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise TeacherError(
            f"teacher {name}: has no weights for {', '.join(missing[:3])}: it is not fine-tuned. "
            "Fine-tune it first with `distill finetune-teacher`"
        )
    return model.eval()


def _label_order(
    task: Task, target: Target, name: str, labels: tuple[str, ...], given: Sequence[str]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Finds which output of the teacher is which label: as told, as the manifest or the config says, or in order."""
    if target.kind != "classes":
        if given:
            raise ConfigError(f"--teacher-labels: the outputs of this teacher are {target.kind}, not labels")
        return target.names, tuple(range(target.num_logits))
    default = task.teacher
    if given:
        labels = tuple(given)
        wrong = [label for label in labels if label not in task.labels]
        if wrong:
            raise ConfigError(f"--teacher-labels: unknown label {wrong[0]!r}: {did_you_mean(wrong[0], task.labels)}")
        if sorted(labels) != sorted(task.labels):
            raise ConfigError(f"--teacher-labels: name each of {', '.join(task.labels)} once, in the teacher's order")
    elif default is not None and name == default.model and default.labels:
        labels = default.labels
    elif all(label.upper() == f"LABEL_{number}" for number, label in enumerate(labels)):
        labels = task.labels
    names = {label.lower(): number for number, label in enumerate(labels)}
    if set(names) != {label.lower() for label in task.labels}:
        raise TeacherError(
            f"teacher {name}: calls its outputs {', '.join(labels)}, but the labels of {task.name!r} are "
            f"{', '.join(task.labels)}; say which is which with --teacher-labels, in the teacher's order"
        )
    return labels, tuple(names[label.lower()] for label in task.labels)


def _widths(task: Task) -> str:
    if task.type == "classification":
        return f"{len(task.labels)} ({', '.join(task.labels)})"
    return "1 (the score)" + (f" or {task.bins.count} (its bins)" if task.bins else "")


def not_loaded(name: str, part: str, error: Exception) -> DataError:
    """Says that a part of a model cannot be loaded, and why."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return DataError(f"model {name}: its {part} cannot be loaded: {reason}")
