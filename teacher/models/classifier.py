"""Loads classifiers as teachers, checks that they fit the task, and computes their logits of texts or tokens.

Shapes: N inputs, W windows, B batch, L tokens with special ones, T tokens of all inputs, C logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from pipeline import console
from pipeline.arrays import Floats
from pipeline.errors import ConfigError, TeacherError
from pipeline.sets.kinds.token_labels import LabelledWords
from pipeline.sets.record_parts import WindowsRecord
from pipeline.tasks.target import TARGET_TYPES, Target, target_of_width
from pipeline.tasks.task import Task
from pipeline.text.tokenizer import Tokenized
from pipeline.text.windows import Windows
from pipeline.text.word_pieces import Pieces, read_pieces
from teacher.models.batches import NotFiniteError, collate, framed, naming_rows, run_batches
from teacher.models.label_order import label_places, stated_labels
from teacher.models.loaded import (
    LoadedModel,
    LoadedTokenizer,
    load_config,
    load_tokenizer,
    load_weights,
    require_encoder,
)

MULTI_LABEL = TARGET_TYPES["labels"].problem_type
TEXTS, WORDS = "texts", "words"
Advance = Callable[[int], None]  # called with the number of finished rows
HEADS = {TEXTS: AutoModelForSequenceClassification, WORDS: AutoModelForTokenClassification}
SUFFIXES = {TEXTS: "ForSequenceClassification", WORDS: "ForTokenClassification"}  # of transformers' class names


@dataclass(frozen=True)
class Teacher(LoadedModel):
    """A classifier of a task.

    Attributes:
        target: the meaning of its reordered logits.
        labels: the names of its outputs in its own order.
        order: for each logit of the task, the number of the teacher's output.
        windows: how it reads longer inputs. None: inputs are truncated.
    """

    target: Target
    labels: tuple[str, ...]
    order: tuple[int, ...]
    windows: Windows | None = None


def load_teacher(
    task: Task,
    name: str,
    revision: str | None,
    teacher_labels: Sequence[str],
    max_seq_length: int,
    windows: WindowsRecord | None = None,
) -> Teacher:
    """Loads a fine-tuned classifier and its tokenizer.

    Args:
        task: the task of the logits.
        name: hub id or folder.
        revision: hub revision.
        teacher_labels: its order of labels by the user. Empty if not given.
        max_seq_length: maximum input length in tokens.
        windows: how it reads inputs longer than a window, independent of ``max_seq_length``.

    Raises:
        ConfigError: if the model does not support such long inputs, or windows have no space for a text.
        DataError: if the model cannot be found or read.
        TeacherError: if its outputs, its tokenizer or its length do not fit the task.
    """
    console.note(f"loading teacher {name}")
    config = load_config(name, revision)
    target, labels, order = outputs(task, name, config, teacher_labels)
    tokens = load_tokenizer(name, revision, config, windows.size if windows else max_seq_length)
    _require_padding(_labels(task), name, config, tokens)
    cut = Windows.of(tokens.tokenizer, task.is_pair, windows.size, windows.stride) if windows else None
    model = _fine_tuned(HEADS[_labels(task)], name, revision)
    return Teacher(name, revision, model, tokens, target, labels, order, cut)


def _fine_tuned(auto_model: Any, name: str, revision: str | None) -> Any:
    """The model with all of its weights. Raises TeacherError if one is missing, as that of a new head."""
    model, missing = load_weights(auto_model, name, revision)
    if missing:
        raise TeacherError(
            f"teacher {name}: has no weights for {', '.join(missing[:3])}: it is not fine-tuned. "
            "Fine-tune it first with `distill finetune-teacher`"
        )
    return model


def _stated_names(config: Any) -> tuple[str, ...]:
    """The names of a model's outputs in their order, as its config gives them."""
    return tuple(str(config.id2label.get(k, f"LABEL_{k}")) for k in range(config.num_labels))


def outputs(
    task: Task, name: str, config: Any, teacher_labels: Sequence[str]
) -> tuple[Target, tuple[str, ...], tuple[int, ...]]:
    """Returns the meaning of a teacher's outputs, their names in its own order, and the output for each logit."""
    needs, problem_type = _labels(task), getattr(config, "problem_type", None)
    # The weights of a teacher of texts load into one of words, and vice versa.
    if any(_is_called(config, SUFFIXES[has]) for has in HEADS.keys() - {needs}):
        has = WORDS if needs == TEXTS else TEXTS
        raise TeacherError(
            f"teacher {name}: labels {has} ({config.architectures[0]}), but {task.name!r} labels {needs}"
        )
    if problem_type == MULTI_LABEL and task.type != "multilabel":
        raise TeacherError(
            f"teacher {name}: decides each label independently ({problem_type}), but {task.name!r} is a "
            f"{task.type} task, so its logits would be misinterpreted. If a row may have any number of labels, "
            "write `type: multilabel` into the manifest"
        )
    if task.type == "multilabel" and problem_type not in (None, MULTI_LABEL):
        raise TeacherError(
            f"teacher {name}: chooses a single label ({problem_type}), but rows of the multilabel task "
            f"{task.name!r} may have any number. Fine-tune a teacher with `distill finetune-teacher`."
        )
    labels = _stated_names(config)
    if not teacher_labels:
        _check_label_numbers(name, config, labels)
    # A regression teacher may have one output or one per bin, so the number of outputs decides what they mean.
    target = target_of_width(task, config.num_labels)
    if target is None:
        needed = f"{len(task.labels)} ({', '.join(task.labels)})"
        if task.type == "regression":
            needed = "1 (the score)" + (f" or {task.bins.count} (its bins)" if task.bins else "")
        raise TeacherError(
            f"teacher {name}: has {config.num_labels} outputs ({', '.join(labels)}), but task {task.name!r} "
            f"needs {needed}. Use a teacher that was fine-tuned for this task"
        )
    return target, *_label_order(task, target, name, labels, teacher_labels)


def new_classifier(task: Task, target: Target, name: str, revision: str | None, max_seq_length: int) -> Teacher:
    """Puts a new classification head on an encoder, to be fine-tuned for a task.

    Raises:
        DataError: if the encoder cannot be found or read.
        TeacherError: if tokenizer, model and length do not fit together, or the encoder lacks weights.
    """
    config = load_config(name, revision)
    tokens = load_tokenizer(name, revision, config, max_seq_length)
    _require_padding(_labels(task), name, config, tokens)
    model, missing = load_weights(
        HEADS[_labels(task)],
        name,
        revision,
        num_labels=target.num_logits,
        id2label=dict(enumerate(target.names)),
        label2id={label: number for number, label in enumerate(target.names)},
        problem_type=target.type.problem_type,
        # A fine-tuned model may have a head of another size, which the new head replaces.
        ignore_mismatched_sizes=True,
    )
    require_encoder(name, missing, f"{model.base_model_prefix}.")
    return Teacher(name, revision, model, tokens, target, target.names, tuple(range(target.num_logits)))


def _check_label_numbers(name: str, config: Any, labels: Sequence[str]) -> None:
    """Raises TeacherError for a config that numbers its labels in two ways, of which either may be right."""
    for number, label in enumerate(labels):
        other = (config.label2id or {}).get(label, number)
        if other != number:
            raise TeacherError(
                f"teacher {name}: its config.json names output {number} {label!r} in id2label, but has number "
                f"{other} for {label!r} in label2id. Correct one, or give the order with --teacher-labels."
            )


def _labels(task: Task) -> str:
    """Returns what the classifiers of a task label, as a key of `HEADS`."""
    return WORDS if task.type == "token_labels" else TEXTS


def warn_of_missing_head(task: Task, name: str, config: Any) -> None:
    """Warns about a model without a head for a task according to its config, before its weights are loaded."""
    if config.architectures and not _is_called(config, SUFFIXES[_labels(task)]):
        console.warn(
            f"teacher {name}: is a {config.architectures[0]} according to its config.json, which has no "
            "classifier. The dump will refuse it unless it was fine-tuned nevertheless. Use `distill "
            "finetune-teacher` first"
        )


def _is_called(config: Any, head: str) -> bool:
    return any(model.endswith(head) for model in config.architectures or ())


def _require_padding(kind: str, name: str, config: Any, tokens: LoadedTokenizer) -> None:
    """Refuses a classifier that uses the last token before the padding, such as GPT-2's, if that is unknown."""
    is_causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) not in MODEL_FOR_MASKED_LM_MAPPING
    if kind == TEXTS and is_causal and config.pad_token_id != tokens.pad_id:
        raise TeacherError(
            f"teacher {name}: uses the last token before the padding, which is {config.pad_token_id} in its "
            f"config.json (pad_token_id), but {tokens.pad_id} in its tokenizer. Set both to the same token and "
            "save them: `tokenizer.pad_token = tokenizer.eos_token`, `model.config.pad_token_id = "
            "tokenizer.pad_token_id`."
        )


def _label_order(
    task: Task, target: Target, name: str, labels: tuple[str, ...], given: Sequence[str]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Finds the label of each output of the teacher: from the flag, the manifest, the config, or by order."""
    if not target.has_labels:
        if given:
            raise ConfigError(f"--teacher-labels: the outputs of this teacher are {target.type.meaning}, not labels")
        return target.names, tuple(range(target.num_logits))
    default = task.teacher
    if given:
        stated = stated_labels(given, task.labels)
        if label_places(task.labels, labels) != label_places(task.labels, stated):
            # Otherwise the config's spelling stays, because it is part of the fingerprint.
            labels = stated
    # The manifest contains the true order of a public teacher whose config lacks it, such as TextAttack's MNLI model.
    elif default is not None and name == default.model and default.labels:
        labels = default.labels
    # transformers writes these placeholders if nobody named the labels. The gold labels are checked later.
    elif all(label.upper() == f"LABEL_{number}" for number, label in enumerate(labels)):
        labels = task.labels
    order = label_places(task.labels, labels)
    if order is None:
        raise TeacherError(
            f"teacher {name}: names its outputs {', '.join(labels)}, but the labels of {task.name!r} are "
            f"{', '.join(task.labels)}. Give the labels in the teacher's order with --teacher-labels."
        )
    return labels, order


def no_progress(rows: int) -> None:
    """Shows nothing."""


def teacher_logits(
    teacher: Teacher, inputs: Sequence[Tokenized], max_tokens: int, advance: Advance = no_progress
) -> Floats:
    """Returns the teacher's logits of inputs, in batches of similar lengths. Call it inside `inference_mode`.

    For an input that the teacher reads by windows, they are the mean over its windows.

    Args:
        teacher: the teacher on its device.
        inputs: tokenised inputs, N of them.
        max_tokens: maximum number of padded tokens per batch.
        advance: called with the number of rows after each batch.

    Returns:
        logits_NC: float32, before softmax, rows as ``inputs``, columns in the task's label order.

    Raises:
        NotFiniteError: if a logit is not finite.
        TeacherError: if a single row does not fit the memory.
    """
    if teacher.windows is None:
        logits_NC = _logits(teacher, inputs, max_tokens, lambda batch: advance(len(batch)))
    else:
        windows_N = [teacher.windows.split(row) for row in inputs]
        starts_N = np.cumsum([0, *map(len, windows_N)])[:-1]
        windows = [window for row in windows_N for window in row]
        logits_WC = _logits(teacher, windows, max_tokens, lambda batch: advance(int(np.isin(batch, starts_N).sum())))
        counts_N = np.diff([*starts_N, len(logits_WC)])
        # Sums in float64 round less than a float32 logit can show, however many windows there are.
        sums_NC = np.add.reduceat(logits_WC.astype(np.float64), starts_N) if len(starts_N) else logits_WC
        logits_NC = (sums_NC / counts_N[:, None]).astype(np.float32)
    finite_N = np.isfinite(logits_NC).all(axis=1)
    if not finite_N.all():
        row = int(np.flatnonzero(~finite_N)[0])
        raise _not_finite(teacher, logits_NC[row], inputs[row])
    return logits_NC


def token_logits(
    teacher: Teacher, inputs: Sequence[Tokenized], max_tokens: int, advance: Advance = no_progress
) -> Floats:
    """Returns the logits_TC of every token of inputs, without special tokens. Call it inside `inference_mode`."""
    starts = np.cumsum([0, *(len(row.ids1) for row in inputs)])
    first = len(teacher.tokens.frame[0])
    logits_TC = np.empty((int(starts[-1]), teacher.target.num_logits), dtype=np.float32)

    def run(batch: list[int]) -> None:
        logits_BLC = forward(teacher, [inputs[row] for row in batch]).cpu().numpy()[:, :, list(teacher.order)]
        for row, logits_LC in zip(batch, logits_BLC, strict=True):
            length = starts[row + 1] - starts[row]
            logits_TC[starts[row] : starts[row + 1]] = logits_LC[first : first + length]
        advance(len(batch))

    run_batches([len(row.ids) for row in inputs], max_tokens, run)
    finite_T = np.isfinite(logits_TC).all(axis=1)
    if not finite_T.all():
        token = int(np.flatnonzero(~finite_T)[0])
        row = int(np.searchsorted(starts, token, side="right")) - 1
        raise _not_finite(teacher, logits_TC[token], inputs[row])
    return logits_TC


def pieces_of(teacher: Teacher, rows: pa.Table, max_seq_length: int) -> Pieces:
    """Returns labelled sentences in the teacher's tokens, truncated to its maximum length."""
    room = max_seq_length - teacher.tokens.num_special
    return read_pieces(teacher.reader, rows.column("sentence1").to_pylist(), room)


def labelled_words(teacher: Teacher, rows: pa.Table, max_seq_length: int, split: str, max_tokens: int) -> LabelledWords:
    """Returns labelled sentences with the teacher's logits. Call it inside `inference_mode`."""
    pieces = pieces_of(teacher, rows, max_seq_length)
    inputs = framed(teacher, pieces.ids)
    with naming_rows(inputs, rows, split):
        logits_TC = token_logits(teacher, inputs, max_tokens)
    return LabelledWords.of(teacher.target.names, rows.column("sentence1"), rows.column("label"), pieces, logits_TC)


def forward(teacher: Teacher, inputs: Sequence[Tokenized]) -> torch.Tensor:
    """Returns the logits of a forward pass, [B, C] or [B, L, C], in the teacher's own order, float32, on its device."""
    logits: torch.Tensor = teacher.model(**collate(teacher, inputs)).logits.float()
    return logits


def _logits(
    teacher: Teacher, inputs: Sequence[Tokenized], max_tokens: int, advance: Callable[[list[int]], None]
) -> Floats:
    """Returns logits of inputs without windows. ``advance`` is called with the row numbers of each batch."""
    logits_NC = np.empty((len(inputs), teacher.target.num_logits), dtype=np.float32)
    # Kept on the device: a copy per batch would stall the GPU.
    outputs: list[tuple[list[int], torch.Tensor]] = []

    def run(batch: list[int]) -> None:
        outputs.append((batch, forward(teacher, [inputs[row] for row in batch])))
        advance(batch)

    run_batches([len(row.ids) for row in inputs], max_tokens, run)
    if outputs:
        rows = [row for batch, _ in outputs for row in batch]
        logits_NC[rows] = torch.cat([part for _, part in outputs]).cpu().numpy()[:, list(teacher.order)]
    return logits_NC


def _not_finite(teacher: Teacher, logits_C: Floats, tokens: Tokenized) -> NotFiniteError:
    return NotFiniteError(f"teacher {teacher.name}: outputs NaN or Inf, {logits_C.tolist()}", tokens)
