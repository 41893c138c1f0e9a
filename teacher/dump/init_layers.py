"""Weights of a teacher's layers in its set, so that students start from them where the teacher's folder is not."""

from pathlib import Path
from typing import Any

from pipeline.errors import FingerprintMismatchError, IntegrityError, TeacherError
from pipeline.files import link_or_copy, remove_temporaries, sha256
from pipeline.sets.card import write_card_and_record
from pipeline.sets.reader import LogitSet
from pipeline.sets.record import FILE_NAME, SetRecord, changed, read_set_record
from pipeline.sets.signals.init import INIT_FILE, InitLayers, InitShape
from pipeline.training.checkpoint import write_tensors
from teacher.config import DumpTask
from teacher.dump.layer_flags import LayerFlags
from teacher.models.classifier import Teacher

WHOLE = ("embeddings.", "pooler.")  # what a start has beside layers


def init_bytes(config: LayerFlags, name: str, shape: Any) -> int:
    """Bytes of the weights that the flags ask for, of a teacher with this transformers config; 0 without.

    Raises:
        ConfigError: if the teacher has not such layers.
        TeacherError: if it is no BERT, as which alone a student can start.
    """
    layers = config.init_numbers(int(shape.num_hidden_layers))
    if not layers:
        return 0
    activation = getattr(shape, "hidden_act", "another activation")
    if shape.model_type != "bert" or activation != "gelu":
        raise TeacherError(
            f"teacher {name}: --init-layers stores layers of BERTs alone, and its model_type is {shape.model_type!r} "
            f"with {activation}; leave it out"
        )
    return _shape(shape).num_bytes(len(layers))


def check_same_init(root: Path, layers: tuple[int, ...]) -> None:
    """Raises FingerprintMismatchError if the set in ``root`` carries weights of layers but those asked for."""
    is_there = (root / INIT_FILE).exists() and (root / FILE_NAME).exists()
    recorded = read_set_record(root).signals.init if is_there else None
    if recorded is not None and layers and layers != recorded.layers:
        there, now = (",".join(map(str, numbers)) for numbers in (recorded.layers, layers))
        raise FingerprintMismatchError(
            f"{root} carries weights of layers {there}, not of {now}: what has started from them would lose them\n"
            f"Repeat the command with --init-layers {there} or without the flag, or remove {INIT_FILE}"
        )


def add_init_layers(
    root: Path, record: SetRecord | None, config: DumpTask, teacher: Teacher, old: LogitSet | None
) -> SetRecord | None:
    """Puts weights into a set once it is verified: those asked for, or that it had and lost, or those of an old set.

    Args:
        root: the set's folder.
        record: its record; None in all processes but one.
        config: the flags.
        teacher: its teacher.
        old: a set of the same teacher, whose weights are taken over unless other layers are asked for.

    Returns:
        The record on disk.

    Raises:
        DataError: if the disk is full or the folder cannot be written.
    """
    if record is None or record.state != "verified":
        return record
    recorded, theirs = record.signals.init, old.record.signals.init if old is not None else None
    known = recorded or theirs
    layers = config.init_numbers(teacher.model.config.num_hidden_layers) or (known.layers if known else ())
    if not layers or (recorded is not None and recorded.layers == layers and _is_there(root, recorded)):
        return record
    if old is not None and theirs is not None and theirs.layers == layers and _is_there(old.root, theirs):
        init = theirs
        if not _is_there(root, init):
            (root / INIT_FILE).unlink(missing_ok=True)
            link_or_copy(old.root / INIT_FILE, root / INIT_FILE)
    else:
        init = _written(root, layers, teacher)
    if config.job().count == 1:  # another job may be writing the same
        remove_temporaries(root)
    told = changed(record, signals=record.signals.model_copy(update={"init": init}))
    write_card_and_record(root, told)
    return told


def _written(root: Path, layers: tuple[int, ...], teacher: Teacher) -> InitLayers:
    """Writes the weights of the teacher's layers."""
    wanted = (*WHOLE, *(f"encoder.layer.{layer - 1}." for layer in layers))
    weights = teacher.model.base_model.state_dict()
    path = root / INIT_FILE
    write_tensors(path, {name: w.float().cpu().contiguous() for name, w in weights.items() if name.startswith(wanted)})
    shape = _shape(teacher.model.config)
    return InitLayers(layers=layers, shape=shape, bytes=path.stat().st_size, sha256=sha256(path))


def _is_there(root: Path, recorded: InitLayers) -> bool:
    try:
        recorded.check_files(root)
    except IntegrityError:
        return False
    return True


def _shape(config: Any) -> InitShape:
    return InitShape(**{name: getattr(config, name) for name in InitShape.model_fields})
