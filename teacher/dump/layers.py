"""What a set gets besides logits: what its teacher's layers say of its rows, in files of their own.

Every process and job takes its share of the files, as with those of the rows. A file stands beside one of rows and has
its fingerprint, so a finished set gets them without being asked for logits again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import console
from pipeline.files import make_folder
from pipeline.sets.config import LAYER_CODECS
from pipeline.sets.layer_files import (
    check_same_layers,
    forget_lost_files,
    record_layers,
    share_files,
    unfinished_files,
)
from pipeline.sets.reader import LogitSet
from pipeline.sets.record import FILE_NAME, SetRecord, read_set_record
from pipeline.sets.record_parts import LayersName
from pipeline.sets.signals import Attention, Blocks, Cls, LayerSignal, States, Values
from pipeline.sets.vector_codecs import state_codec
from teacher.dump.driver import Executor
from teacher.dump.layer_basis import with_bases
from teacher.dump.layer_flags import LayerFlags
from teacher.dump.layer_shards import LayerJob
from teacher.dump.rows import Rows
from teacher.models.classifier import Teacher
from teacher.models.layers import require_known_family
from teacher.models.loaded import inference_mode

STATES: dict[LayersName, type[States]] = {"states": States, "cls": Cls}
BLOCKS: dict[LayersName, type[Blocks]] = {"attention": Attention, "values": Values}


def planned_layers(config: LayerFlags, name: str, shape: Any, root: Path) -> tuple[LayerSignal, ...]:
    """The signals that flags ask for, and those that the set in ``root`` has already.

    Args:
        config: the flags.
        name: of the teacher.
        shape: its transformers config.
        root: the set's folder, if it was begun.

    Raises:
        ConfigError: if the teacher has not such layers, or so many numbers.
        FingerprintMismatchError: if the set has such a signal stored in another way.
        TeacherError: if nothing is known of the layers of such a teacher.
    """
    planned = {signal.name: signal for signal in wanted_layers(config, name, shape)}
    for signal in read_set_record(root).signals.layer_signals if (root / FILE_NAME).exists() else ():
        if signal.name not in planned or planned[signal.name].is_stored_as(signal):
            planned[signal.name] = signal
    for signal in planned.values():
        check_same_layers(root, signal)
    return tuple(planned.values())


def wanted_layers(config: LayerFlags, name: str, shape: Any) -> list[LayerSignal]:
    """The signals that flags ask for, of a teacher with this transformers config; see `planned_layers`."""
    if not config.layers:
        return []
    require_known_family(name, shape.model_type)
    signals: list[LayerSignal] = []
    for signal in config.layers:
        layers, codec = config.numbers(signal, int(shape.num_hidden_layers)), getattr(config, LAYER_CODECS[signal])
        if signal in STATES:
            codec = state_codec(codec, int(shape.hidden_size))
            signals.append(STATES[signal](layers=layers, of=config.layers_of, codec=codec))
        else:
            heads = int(shape.num_attention_heads)
            signals.append(BLOCKS[signal](layers=layers, of=config.layers_of, heads=heads, codec=codec))
    return signals


def add_layers(
    root: Path,
    planned: Sequence[LayerSignal],
    teacher: Teacher,
    rows: Rows,
    precision: str,
    max_tokens: int,
    old: LogitSet | None,
    executor: Executor,
) -> SetRecord | None:
    """Writes this process's share of what layers output, and records it if that was the last of it.

    Call it in every process of a command, once the set in ``root`` was begun.

    Args:
        root: the set's folder.
        planned: what is to be stored.
        teacher: on its device.
        rows: of the task, with variants.
        precision: of the teacher's arithmetic.
        max_tokens: most padded tokens per batch.
        old: a set of the same teacher, whose files are taken over where they stand for the same rows.
        executor: who writes.

    Returns:
        The record on disk; None on other ranks than the first.

    Raises:
        TeacherError: if a number is not finite, or too large for its codec.
    """
    record = read_set_record(root)
    for signal in planned:
        make_folder(root / signal.name)
        if executor.is_main:
            _take_over(root, record, signal, old)
    executor.wait()
    with inference_mode(teacher.model.device, precision):
        signals = with_bases(root, planned, teacher, rows.source, record.max_seq_length, max_tokens, executor)
    missing = {signal.name: {file.range for file in unfinished_files(root, record, signal)} for signal in signals}
    executor.wait()  # nobody writes before everybody has looked, or the shares would differ
    if executor.is_main and any(missing.values()):
        forget_lost_files(root)
    executor.wait()
    of_job = record.shards[executor.job.index :: executor.job.count]
    mine = executor.share([shard for shard in of_job if shard.range in set().union(*missing.values())])
    if mine:
        bases = {signal.name: signal.read_bases(root) for signal in signals}
        job = LayerJob(record, teacher, precision, max_tokens, signals, bases, missing)
        executor.run(job, root, rows, mine)
    executor.wait()
    return _finish(root, signals) if executor.is_main else None


def _finish(root: Path, signals: Sequence[LayerSignal]) -> SetRecord:
    record = read_set_record(root)
    # what was not as recorded is gone by now: the footers of the others decide
    unmeasured = [signal.model_copy(update={"shards": ()}) for signal in signals]
    left = sum(len(unfinished_files(root, record, signal)) for signal in unmeasured)
    if left:
        console.note(f"{left} files of layers are left to other jobs")
    return record if left or record.state != "verified" else record_layers(root, record, signals)


def _take_over(root: Path, record: SetRecord, signal: LayerSignal, old: LogitSet | None) -> None:
    """Puts files of an old version, and their basis, into the set, as links where the file system has them."""
    theirs = getattr(old.record.signals, signal.name) if old is not None else None
    if old is None or theirs is None or not theirs.is_stored_as(signal):
        return
    shared = {shard.in_folder(signal.name).path for shard in record.shards if shard.version}
    not_shared = {shard.path for shard in theirs.shards} - shared
    hashes = {path: digest for path, digest in theirs.hashes().items() if path not in not_shared}
    share_files(old.root, root, hashes, signal.hashes())
