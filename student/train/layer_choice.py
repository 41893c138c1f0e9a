"""Which of the teacher's stored layers a student learns from, and by which signals."""

import hashlib
from typing import Any

import numpy as np

from pipeline.arrays import Ints
from pipeline.errors import ConfigError, DataError, raise_all
from pipeline.files import sha256
from pipeline.sets.layer_reader import open_layers
from pipeline.sets.reader import ExampleSet
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import LayersName
from pipeline.settings import flag_name
from student.config import TrainConfig
from student.data import Examples
from student.filters.model import FILTERS_FILE, read_filters
from student.model.architecture import SpecialIds, StudentConfig
from student.model.bert import BertEncoder
from student.model.encoders import ENCODERS
from student.model.heads import HEADS
from student.model.model import Student
from student.train.class_weights import row_weights
from student.train.contrast import kinds
from student.train.layer_flags import LayerFlags, ObjectiveName
from student.train.layer_loss import LayerLoss
from student.train.layer_targets import Frame, LayerTargets
from student.train.objectives import OBJECTIVES

CONTRAST: ObjectiveName = "hid-cls-contrast"


def check_objective(flags: TrainConfig, config: StudentConfig, record: SetRecord) -> None:
    """Raises ConfigError, naming every flag about layers that does not fit the others, the student or its set."""
    raise_all(ConfigError, "wrong flags", _problems(flags, config, record))


def layer_loss(
    flags: TrainConfig,
    student: Student,
    logit_set: ExampleSet,
    special_ids: SpecialIds,
    examples: Examples,
) -> LayerLoss:
    """What a student's layers learn by, from what the set holds of the teacher's.

    Args:
        flags: with an objective, for which `check_objective` has found no problem.
        student: the student.
        logit_set: what it is trained from.
        special_ids: what the teacher reads around sentences.
        examples: the training rows, as the student reads them.

    Raises:
        ConfigError: if the teacher's attention has another number of heads.
        DataError: if layers are stored of none of the rows, or `Contrast` has but one label.
        IntegrityError: if a file was changed.
    """
    config, record = student.config, logit_set.record
    layers = _layers(flags, config, record)
    reads_frame = config.is_joint or isinstance(student.encoder, BertEncoder)
    frame = None if reads_frame else Frame.of(special_ids, config.is_pair)
    lengths_N = examples.lengths if frame is None else frame.lengths(examples)
    signals = {name: _signal(name, record) for name in flags.objectives}
    targets = {
        signal: LayerTargets(open_layers(logit_set, signal, "train", layers), examples, lengths_N, frame)
        for signal in dict.fromkeys(signals.values())
    }
    for signal, target in targets.items():
        if not target.is_known_N.any():
            raise DataError(f"{logit_set.root}: has {signal} of none of the training rows")
    if config.bert is not None:
        _check_heads(config.bert.num_attention_heads, targets)
    objectives = [(OBJECTIVES[name], signals[name]) for name in flags.objectives]
    filters = read_filters(flags.filters, record.fingerprint) if flags.filters else None
    kind_N = _kinds(targets[signals[CONTRAST]], config, examples) if CONTRAST in signals else None
    weight_N = row_weights(flags, examples)
    return LayerLoss(objectives, layers, student, targets, weight_N, filters, kind_N).to(student.device)


def _kinds(target: LayerTargets, config: StudentConfig, examples: Examples) -> Ints:
    kind_N = kinds(config.target, examples)
    if len(np.unique(kind_N[target.is_known_N])) < 2:
        raise DataError(f"--objective {CONTRAST}: negatives are rows of other labels, and all rows have the same")
    return kind_N


def objective_settings(flags: TrainConfig, config: StudentConfig, record: SetRecord) -> dict[str, Any]:
    """What decides what a student learns from layers: which, as they are stored, and through which filters."""
    if not flags.objectives:
        return {}
    signals = {_signal(name, record) for name in flags.objectives}
    files = [shard.sha256 or "" for one in record.signals.layer_signals if one.name in signals for shard in one.shards]
    return {
        "objective": list(flags.objectives),
        "layers": list(_layers(flags, config, record)),
        "intermediate_epochs": flags.intermediate_epochs,
        "objective_weight": flags.objective_weight or 1.0,
        "layers_sha256": hashlib.sha256("".join(files).encode()).hexdigest(),
        "filters_sha256": sha256(flags.filters / FILTERS_FILE) if flags.filters else None,
    }


def _check_heads(num_heads: int, targets: dict[LayersName, LayerTargets]) -> None:
    for signal in ("attention", "values"):
        if signal in targets and targets[signal].width != num_heads:
            raise ConfigError(
                f"--num-attention-heads {num_heads}: the teacher's {signal} is of {targets[signal].width} heads"
            )


def _signal(name: ObjectiveName, record: SetRecord) -> LayersName:
    """What of the teacher an objective reads; the states of all tokens have the first one's, too."""
    signal = OBJECTIVES[name].signal
    return first_signal(record) if signal == "cls" else signal


def first_signal(record: SetRecord) -> LayersName:
    """Which signal has the first token's states: its own, or that of all tokens."""
    return "cls" if "cls" in stored_layers(record) else "states"


def named_layers(flag: str | None) -> tuple[int, ...]:
    """The numbers in a flag such as 2,4,6; none without it."""
    return tuple(int(layer) for layer in flag.split(",")) if flag else ()


def stored_layers(record: SetRecord) -> dict[LayersName, tuple[int, ...]]:
    """The layers of each signal that a set has."""
    return {signal.name: signal.layers for signal in record.signals.layer_signals}


def _layers(flags: TrainConfig, config: StudentConfig, record: SetRecord) -> tuple[int, ...]:
    """Those that were named, else those that a BERT starts from, else those that are stored; of others the last."""
    named = named_layers(flags.layers or (flags.init_layers if config.bert else None))
    if named:
        return named
    stored = stored_layers(record).get(_signal(flags.objectives[0], record), ())
    return stored if config.bert else stored[-1:]


def _problems(flags: TrainConfig, config: StudentConfig, record: SetRecord) -> list[str]:
    if not flags.objectives:
        given = [name for name in LayerFlags.model_fields if getattr(flags, name)]
        return [f"{flag_name(name)}: is for --objective" for name in given]
    problems = []
    if len(flags.logits) > 1:
        problems.append("--objective: layers are those of one teacher; give one --logits")
    if flags.intermediate_epochs and flags.objective_weight is not None:
        problems.append("--objective-weight: is for an objective beside the logits, not with --intermediate-epochs")
    problems += [
        f"--objective {name}: compares attention, which --embedding {flags.embedding} has not; take bert"
        for name in flags.objectives
        if OBJECTIVES[name].needs_attention and not config.bert
    ]
    if CONTRAST in flags.objectives and config.target.kind == "score":
        problems.append(f"--objective {CONTRAST}: negatives are rows of other labels, and a score has none")
    if HEADS[config.head].reads_tokens:
        problems.append(f"--objective: --head {config.head} reads tokens; take another head")
    if flags.filters is not None and "hid-seq" not in flags.objectives:
        problems.append("--filters: are for --objective hid-seq")
    elif flags.filters is not None:
        known = {int(layer) for layer in read_filters(flags.filters, record.fingerprint).maps}
        missing = [str(layer) for layer in _layers(flags, config, record) if layer not in known]
        problems += [f"--filters {flags.filters}: has none of layer {', '.join(missing)}"] if missing else []
    if "hid-seq" in flags.objectives and ENCODERS[flags.embedding].reads_pairs:
        problems.append(f"--objective hid-seq: --embedding {flags.embedding} has nothing of each token")
    if "hid-seq" in flags.objectives and flags.token_dropout:
        problems.append("--token-dropout: --objective hid-seq compares every token")
    return problems + _layer_problems(flags, config, record)


def _layer_problems(flags: TrainConfig, config: StudentConfig, record: SetRecord) -> list[str]:
    stored, layers, problems = stored_layers(record), _layers(flags, config, record), []
    for name in flags.objectives:
        signal = _signal(name, record)
        missing = [str(layer) for layer in layers if layer not in stored.get(signal, ())]
        if missing or not layers:
            wanted = ",".join(map(str, layers)) or "LAYERS"
            what = f"has {signal} of no layer {', '.join(missing)}" if signal in stored else f"has no {signal}"
            advice = f"repeat its command with --{signal} {wanted}: {record.command}"
            problems.append(f"--objective {name}: the set {what}; {advice}")
    if list(layers) != sorted(set(layers)):
        problems.append(f"--layers {','.join(map(str, layers))}: name each layer once, the lowest first")
    has_squares = any(OBJECTIVES[name].needs_attention for name in flags.objectives)
    most = config.bert.num_hidden_layers + (not has_squares) if config.bert else 1
    if len(layers) > most:
        problems.append(f"--layers {','.join(map(str, layers))}: the student has {most} that can learn from one")
    return problems
