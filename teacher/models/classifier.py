"""Loads classifiers as teachers, and checks that they fit the task before they run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from pipeline import console
from pipeline.errors import ConfigError, TeacherError
from pipeline.sets.record_parts import WindowsRecord
from pipeline.tasks.target import TARGET_TYPES, Target, target_of_width
from pipeline.tasks.task import Task
from pipeline.text.windows import Windows
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


def load_any_teacher(name: str, max_seq_length: int) -> Teacher:
    """Loads a fine-tuned classifier of texts without its task: its labels are named and ordered by its config.

    Args:
        name: hub id or folder.
        max_seq_length: longest input that it will be given, in tokens.

    Raises:
        ConfigError: if the model does not read such long inputs.
        DataError: if the model cannot be found or read.
        TeacherError: if its labels are numbered in two ways, or its tokenizer or weights do not fit.
    """
    config = load_config(name, None)
    labels = _stated_names(config)
    _check_label_numbers(name, config, labels)
    tokens = load_tokenizer(name, None, config, max_seq_length)
    _require_padding(TEXTS, name, config, tokens)
    model = _fine_tuned(HEADS[TEXTS], name, None)
    target = Target(kind="classes", names=labels)
    return Teacher(name, None, model, tokens, target, labels, tuple(range(len(labels))))


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
    """Returns the meaning of a teacher's outputs, their names in its own order, and the output for each logit.

    Args:
        task: the task of the logits.
        name: the name of the teacher.
        config: the teacher's transformers config.
        teacher_labels: its order of labels by the user. Empty if not given.

    Raises:
        ConfigError: if the given labels differ from the task's.
        TeacherError: if the outputs do not fit the task.
    """
    _check_head(task, name, config)
    _check_problem_type(task, name, getattr(config, "problem_type", None))
    labels = _stated_names(config)
    if not teacher_labels:
        _check_label_numbers(name, config, labels)
    # A regression teacher may have one output or one per bin, so the number of outputs decides what they mean.
    target = target_of_width(task, config.num_labels)
    if target is None:
        raise TeacherError(
            f"teacher {name}: has {config.num_labels} outputs ({', '.join(labels)}), but task {task.name!r} "
            f"needs {_widths(task)}. Use a teacher that was fine-tuned for this task"
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


def _check_head(task: Task, name: str, config: Any) -> None:
    """Refuses a teacher of texts for a task of words and vice versa, because the weights of one load into the other."""
    needs = _labels(task)
    for has in HEADS.keys() - {needs}:
        if _is_called(config, SUFFIXES[has]):
            raise TeacherError(
                f"teacher {name}: labels {has} ({config.architectures[0]}), but {task.name!r} labels {needs}"
            )


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


def _check_problem_type(task: Task, name: str, problem_type: str | None) -> None:
    """Refuses a teacher whose config has another problem type than the task. A missing problem type is accepted."""
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


def _widths(task: Task) -> str:
    if task.type != "regression":
        return f"{len(task.labels)} ({', '.join(task.labels)})"
    return "1 (the score)" + (f" or {task.bins.count} (its bins)" if task.bins else "")
