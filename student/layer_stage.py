"""Learning from the teacher's stored layers: the choice of layers and signals, and the stage before the logits.

That stage trains only a student's layers, before its logits (How to Distill your BERT, section 3). The second stage
starts from its weights, with a separate learning rate and optimizer.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline.arrays import Floats
from pipeline.devices import to_device
from pipeline.errors import ConfigError, DataError, raise_all
from pipeline.files import sha256
from pipeline.record_file import read_work_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.layers import open_layers
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import LayersName
from pipeline.training.loop import TrainOptimizer, TrainTask, fit
from pipeline.training.run import Run
from pipeline.training.run_record import Entry, Metrics
from pipeline.training.schedule import Schedule
from student.data import Examples, make_batches
from student.encoders.bert import BertEncoder
from student.encoders.specs import Bert
from student.losses.layer_losses import LayerLoss
from student.losses.layers import LAYER_LOSSES, Frame, LayerTargets, first_signal, kinds, named_layers, stored_layers
from student.losses.ted_filters import FILTERS_FILE, read_filters
from student.model.architecture import SpecialIds, StudentConfig
from student.model.heads import HEADS
from student.model.student import Student
from student.model.weights import load_weights
from student.row_adam import make_optimizer, rows_of_batch
from student.settings import LayerLosses, LayerLossName, TrainSettings

CONTRAST: LayerLossName = "hid-cls-contrast"
# The stage's record has its own name, so that commands do not take its folder for a run.
FOLDER, RECORD = "intermediate", "stage.json"


def check_layers(losses: LayerLosses, config: StudentConfig, record: SetRecord) -> None:
    """Raises ConfigError, naming every flag about layers that does not fit the student or its set."""
    problems = [
        f"--layer-loss {name}: compares attention, which --embedding {config.embedding} lacks. Use --embedding bert"
        for name in losses.names
        if LAYER_LOSSES[name].needs_attention and not isinstance(config.encoder, Bert)
    ]
    if CONTRAST in losses.names and config.target.is_score:
        problems.append(f"--layer-loss {CONTRAST}: negatives are rows of other labels, but a score has no labels")
    if HEADS[config.head].reads_tokens:
        problems.append(f"--layer-loss: is not supported by --head {config.head}, which reads tokens. Use another head")
    if losses.filters is not None:
        known = {int(layer) for layer in read_filters(losses.filters, record.fingerprint).maps}
        missing = [str(layer) for layer in _layers(losses, config, record) if layer not in known]
        problems += [f"--filters {losses.filters}: has no filter of layer {', '.join(missing)}"] if missing else []
    if "hid-seq" in losses.names and not config.encoder.has_token_features:
        problems.append(f"--layer-loss hid-seq: --embedding {config.embedding} has no features per token")
    # Dropped tokens would shift the student's states against the stored ones.
    if "hid-seq" in losses.names and config.token_dropout:
        problems.append("--token-dropout: --layer-loss hid-seq compares every token")
    raise_all(ConfigError, "wrong flags", problems + _layer_problems(losses, config, record))


def _layer_problems(losses: LayerLosses, config: StudentConfig, record: SetRecord) -> list[str]:
    stored, layers, problems = stored_layers(record), _layers(losses, config, record), []
    for name in losses.names:
        signal = _signal(name, record)
        missing = [str(layer) for layer in layers if layer not in stored.get(signal, ())]
        if missing or not layers:
            wanted = ",".join(map(str, layers)) or "LAYERS"
            what = f"has no {signal} of layer {', '.join(missing)}" if signal in stored else f"has no {signal}"
            advice = f"Repeat its command with --keep {signal}={wanted}: {record.command}"
            problems.append(f"--layer-loss {name}: the set {what}. {advice}")
    if list(layers) != sorted(set(layers)):
        problems.append(f"--layers {','.join(map(str, layers))}: name each layer once, the lowest first")
    # The embedding output counts as a layer for states, but it has no attention.
    has_squares = any(LAYER_LOSSES[name].needs_attention for name in losses.names)
    encoder = config.encoder
    most = encoder.num_hidden_layers + (not has_squares) if isinstance(encoder, Bert) else 1
    if len(layers) > most:
        problems.append(f"--layers {','.join(map(str, layers))}: the student has only {most} layers for them")
    return problems


def layer_loss(
    losses: LayerLosses,
    student: Student,
    logit_set: ExampleSet,
    special_ids: SpecialIds,
    examples: Examples,
    weight_N: Floats,
) -> LayerLoss:
    """Returns the loss between a student's layers and its teacher's stored ones.

    Args:
        losses: the losses, after `check_layers`.
        student: the student.
        logit_set: its training set.
        special_ids: the teacher's special tokens around sentences.
        examples: the training rows in the student's form.
        weight_N: float32, the weight of each row's loss.

    Raises:
        ConfigError: if the teacher's attention has another number of heads.
        DataError: if no row has stored layers, or `Contrast` has only one label.
        IntegrityError: if a file was changed.
    """
    config, record = student.config, logit_set.record
    layers = _layers(losses, config, record)
    reads_frame = config.is_joint or isinstance(student.encoder, BertEncoder)
    # A BERT or a joint student reads the special tokens as its teacher does, so no position is shifted.
    frame = None if reads_frame else Frame.of(special_ids, config.is_pair)
    # A BERT's rows contain the special tokens already, and other students' rows do not.
    lengths_N = examples.lengths if frame is None else frame.lengths(examples)
    signals = {name: _signal(name, record) for name in losses.names}
    targets = {
        # Several layer losses may read one signal, whose files are then opened and joined only once.
        signal: LayerTargets(open_layers(logit_set, signal, "train", layers), examples, lengths_N, frame)
        for signal in dict.fromkeys(signals.values())
    }
    for signal, target in targets.items():
        if not target.is_known_N.any():
            raise DataError(f"{logit_set.root}: has no {signal} of the training rows")
        encoder = config.encoder
        own = encoder.num_attention_heads if isinstance(encoder, Bert) and signal in ("attention", "values") else None
        if own is not None and target.width != own:
            raise ConfigError(f"--num-attention-heads {own}: the teacher's {signal} has {target.width} heads")
    # Filters fit only the states of the set that they were trained on, which the fingerprint checks.
    filters = read_filters(losses.filters, record.fingerprint) if losses.filters else None
    kind_N = kinds(config.target, examples) if CONTRAST in signals else None
    if kind_N is not None and len(np.unique(kind_N[targets[signals[CONTRAST]].is_known_N])) < 2:
        raise DataError(f"--layer-loss {CONTRAST}: negatives are rows of other labels, but all rows have the same one")
    distances = [(LAYER_LOSSES[name], signals[name]) for name in losses.names]
    return LayerLoss(distances, layers, student, targets, weight_N, filters, kind_N).to(student.device)


def layer_loss_settings(losses: LayerLosses | None, config: StudentConfig, record: SetRecord) -> dict[str, Any]:
    """Returns the settings of layer losses for the record: layers, hashes of their files, and filters."""
    if losses is None:
        return {}
    signals = {_signal(name, record) for name in losses.names}
    files = [shard.sha256 or "" for one in record.signals.layer_signals if one.name in signals for shard in one.shards]
    return {
        "layer_loss": list(losses.names),
        "layers": list(_layers(losses, config, record)),
        "intermediate_epochs": losses.intermediate_epochs,
        # None means the default, and the record must be equal for both spellings.
        "layer_loss_weight": losses.layer_loss_weight or 1.0,
        "layers_sha256": hashlib.sha256("".join(files).encode()).hexdigest(),
        "filters_sha256": sha256(losses.filters / FILTERS_FILE) if losses.filters else None,
    }


def _signal(name: LayerLossName, record: SetRecord) -> LayersName:
    """Returns the signal that a layer loss reads. The states of all tokens include the first token's."""
    signal = LAYER_LOSSES[name].signal
    return first_signal(record) if signal == "cls" else signal


def _layers(losses: LayerLosses, config: StudentConfig, record: SetRecord) -> tuple[int, ...]:
    """Returns the teacher's layers to compare: the named ones, a BERT's stored ones, or the last stored one."""
    named = named_layers(losses.layers)
    if named:
        return named
    stored = stored_layers(record).get(_signal(losses.names[0], record), ())
    # A student without layers has a single state per token, which the teacher's last layer describes best.
    return stored if isinstance(config.encoder, Bert) else stored[-1:]


class LayerTask(TrainTask[list[int]]):
    """A student whose layers are trained to match its teacher's.

    Args:
        student: the student, which is trained in place except for its head.
        layers: the loss, whose maps are trained, too.
        examples: the training rows. Those without stored layers are left out.
        optimizer: receives the gradients of the used rows of tables.
        batch_size: rows per step.
        seed: the seed of their order.
    """

    def __init__(
        self,
        student: Student,
        layers: LayerLoss,
        examples: Examples,
        optimizer: TrainOptimizer,
        batch_size: int,
        seed: int,
    ) -> None:
        self.model = nn.ModuleDict({"student": student, "layers": layers})
        self._student, self._layers, self.optimizer = student, layers, optimizer
        # Rows without stored layers would add steps of loss 0, which still move weights by momentum.
        self._examples, self._known = examples, np.flatnonzero(layers.is_known_N)
        self.batches = make_batches(student.config.head, examples.lengths[self._known], batch_size, seed)

    def loss(self, batch: list[int]) -> torch.Tensor:
        """Returns the mean loss of the layers, a scalar."""
        rows, device = self._known[batch], self._student.device
        ids_T, starts_S = (to_device(part, device) for part in self._examples.batch(rows))
        used = rows_of_batch(self.optimizer, self._student.encoder, ids_T, starts_S)
        return self._layers(*self._layers.read(self._student, ids_T, starts_S, used), starts_S, rows)  # type: ignore[no-any-return]

    def evaluate(self) -> Metrics:
        """Returns no scores: the head has not been trained yet."""
        return {}

    def save(self, folder: Path) -> None:
        self._student.save(folder)


def stage_history(folder: Path) -> dict[str, list[Entry]]:
    """Returns the losses of the stage's epochs as ``intermediate``, for the record of its run.

    Empty without the stage.
    """
    path = folder / FOLDER / RECORD
    return {"intermediate": read_work_record(path)["result"]["history"]} if path.exists() else {}


def end_stage(folder: Path) -> None:
    """Removes the stage's folder from that of a finished run."""
    # A leftover folder costs disk space only, so a failure to remove it must not fail a finished run.
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def learn_layers(
    settings: TrainSettings, num_epochs: int, student: Student, layers: LayerLoss, train: Examples, whole: Run
) -> None:
    """Trains a student in place only on layers, or loads the result of an earlier try.

    Args:
        settings: the settings of the run.
        num_epochs: the epochs of the stage.
        student: the student of the run.
        layers: the loss.
        train: the training rows.
        whole: the run, in whose folder the stage has a subfolder.
    """
    # The first stage has its own optimizer: the momentum of another loss would start the second stage wrongly.
    optimizer = make_optimizer(settings.optimizer, student.encoder, layers)
    task = LayerTask(student, layers, train, optimizer, settings.epochs.per_device_train_batch_size, settings.seed)
    schedule = Schedule.of_epochs(
        task.batches.steps_per_epoch,
        num_epochs,
        settings.seed,
        warmup_steps=settings.epochs.warmup_steps,
        # The layer loss has no dev metric to choose by, so the last weights go on to the second stage.
        save_best=False,
    )
    record, path = whole.record(), whole.folder / FOLDER / RECORD
    if path.exists() and read_work_record(path)["settings"] != record["settings"]:
        # An abandoned run with other settings may have left its stage here, before it had a checkpoint.
        end_stage(whole.folder)
    run = Run(whole.folder / FOLDER, record["settings"], record["command"], record_name=RECORD)
    if run.start() is None:
        run.finish({"history": fit(run, task, task.optimizer, schedule)})
    # Weights are read from disk even after training here, so a resumed run continues from the same bytes.
    load_weights(run.folder, student)
