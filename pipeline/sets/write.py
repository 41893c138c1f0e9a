"""Starts a set, writes its shards in any order from any number of processes, and finishes it.

Repeating the same calls resumes a set. A shard is done when its file exists and its footer carries the set's
fingerprint. ``distill.json`` lists checksums only when all shards are done.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pyarrow as pa

from pipeline import console
from pipeline.errors import FingerprintMismatchError, IntegrityError, setting_changes
from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import make_folder, remove_temporaries, write_atomically, write_text, write_text_once
from pipeline.sets.card import write_card_and_record
from pipeline.sets.files import Statistics, footer_of, is_done, measured, write_rows
from pipeline.sets.kinds import SETS, kind_of
from pipeline.sets.layers import without_lost_layers
from pipeline.sets.open import load_set_tokenizer
from pipeline.sets.record import FILE_NAME, Scores, SetRecord, read_record_of, to_json, write_set_record
from pipeline.sets.record_parts import KindName, Shard, shared_settings
from pipeline.sets.verify import verify_shards
from pipeline.text.text_to_ids import TextReader
from pipeline.text.tokenizer import is_tokenizer


def plan_shards(split: str, num_rows: int, rows_per_shard: int, folder: KindName = "examples") -> list[Shard]:
    """Divides a split into ranges of nearly equal size, independently of the number of processes."""
    count = max(1, -(-num_rows // rows_per_shard))
    bounds = [k * num_rows // count for k in range(count + 1)]
    return [
        Shard(folder=folder, split=split, index=k, count=count, start=bounds[k], stop=bounds[k + 1])
        for k in range(count)
    ]


def start_set(root: Path, planned: SetRecord, tokenizer_json: str) -> SetRecord:
    """Creates the set, or opens the existing one if it was made with the same settings.

    Args:
        root: the set's folder.
        planned: a staged record with all shards.
        tokenizer_json: content for ``tokenizer.json``.

    Returns:
        The record on disk.

    Raises:
        ConfigError: if the folder contains a set of other rows.
        FingerprintMismatchError: if it contains a set with other settings, naming each difference.
        DataError: if the folder cannot be written.
    """
    # Before the record, so that a record never exists in a folder that cannot be written.
    make_folder((root / planned.shards[0].path).parent)
    # The first of several processes writes the record. All of them then read it back and compare it with their own
    # plan.
    write_text_once(root / FILE_NAME, to_json(planned))
    existing = read_record_of(root, planned.kind, "Give the new set another --name, or remove the folder")
    _check_same(root, existing, planned)
    # Checked by hash: a kill between the two files leaves none, and a damaged tokenizer is repaired here.
    if not is_tokenizer(root / TOKENIZER_FILE, existing.tokenizer.sha256):
        write_text(root / TOKENIZER_FILE, tokenizer_json)
    return existing


def _check_same(root: Path, existing: SetRecord, planned: SetRecord) -> None:
    if existing.fingerprint != planned.fingerprint:
        changes = setting_changes(existing.settings, planned.settings)
        only_rows = existing.task is not None and shared_settings(existing.settings) == shared_settings(
            planned.settings
        )
        raise FingerprintMismatchError(
            f"{root} holds a logit set made with other settings:\n{changes}\n"
            "Give the new set another --name, or remove the folder if the old one is not needed"
            + (
                f". The teacher is the same: `teacher-dump --extend {root.name}` predicts only the new rows"
                if only_rows
                else ""
            )
        )
    # The size of shards is not a setting, since the rows do not depend on it. But two layouts in one folder would
    # overlap.
    if [(s.path, s.version) for s in existing.shards] != [(s.path, s.version) for s in planned.shards]:
        raise FingerprintMismatchError(
            f"{root} was started with other shards ({len(existing.shards)} files, now {len(planned.shards)}): "
            "repeat the command with its original --rows-per-shard (and --extend, if any)"
        )


def unfinished_shards(root: Path, record: SetRecord) -> list[Shard]:
    """Returns the shards to write: missing, incomplete, foreign, or different from the record."""
    return [shard for shard in record.shards if not is_done(root, shard, footer_of(record, shard))]


def shards_to_write(root: Path, record: SetRecord) -> tuple[SetRecord, list[Shard]]:
    """Returns the record and its unfinished shards, for a single process.

    A finished set with such shards becomes ``staged``.
    """
    unfinished = unfinished_shards(root, record)
    # A verified record with a missing file would be believed by readers, so the state goes back before the rewrite.
    if unfinished and record.state != "staged":
        record = reopen_set(root, record, unfinished)
    return record, unfinished


def reopen_set(root: Path, record: SetRecord, unfinished: list[Shard]) -> SetRecord:
    """Returns a finished set with lost or damaged shards to ``staged`` and removes their checksums.

    Its token vectors are recorded again at the end, as in a new set. Its layer outputs stay. Lost files of layers are
    rewritten after the rows are verified.
    """
    lost = {shard.path for shard in unfinished}
    shards = tuple(s.unmeasured() if s.path in lost else s for s in record.shards)
    parts = {"state": "staged", "shards": shards, "signals": record.signals.without_token_vectors()}
    staged_again = record.model_copy(update=parts)
    write_set_record(root, staged_again)
    return staged_again


def write_shard(
    root: Path, record: SetRecord, shard: Shard, tables: Iterable[pa.Table], statistics: Statistics | None = None
) -> None:
    """Writes one shard atomically, a row group per table.

    Raises:
        DataError: if the disk is full or the folder cannot be written.
    """
    schema, footer, encodings = record.arrow_schema(), footer_of(record, shard), kind_of(record).encodings(record)
    write_atomically(root / shard.path, lambda path: write_rows(path, schema, footer, encodings, tables, statistics))


def complete_set(root: Path, record: SetRecord) -> SetRecord:
    """Records rows, bytes and checksum of every shard once all exist: state ``complete``."""
    # All footers are read again, because other jobs may have written their shards in the meantime, or lost them.
    missing = unfinished_shards(root, record)
    if missing:
        raise IntegrityError(f"{root}: {len(missing)} of {len(record.shards)} shards are missing")
    for folder in (root, (root / record.shards[0].path).parent):
        remove_temporaries(folder)
    shards = tuple(measured(root, shard) for shard in record.shards)
    signals = without_lost_layers(root, record.signals.measured(root))
    complete = record.model_copy(update={"state": "complete", "shards": shards, "signals": signals})
    write_set_record(root, complete)
    return complete


def complete_and_verify(
    root: Path, record: SetRecord, scores: Callable[[SetRecord], Scores] | None = None
) -> SetRecord:
    """Returns the record of a verified set. All its shards have to exist.

    Args:
        root: the set's folder.
        record: the record of the set, in any state.
        scores: returns the teacher's metrics per split from the complete set. Default: those of the opened set.
    """
    if record.state == "verified":
        return record
    complete = complete_set(root, record)
    return finish_set(root, complete, scores(complete) if scores else SETS[complete.kind](root, complete).scores())


def finish_set(root: Path, record: SetRecord, scores: Scores) -> SetRecord:
    """Verifies a complete set, records the teacher's scores and writes the card: state ``verified``."""
    # Only files that were read back from the disk make a set verified, not what this process believes it has written.
    verify_shards(root, record)
    cut = _note_of_truncated_rows(root, record)
    if cut is not None:
        console.warn(f"{root}: {cut}")
    notes = tuple(dict.fromkeys((*record.notes, *([cut] if cut else []))))
    verified = record.model_copy(update={"state": "verified", "scores": scores, "notes": notes})
    write_card_and_record(root, verified)
    return verified


def _note_of_truncated_rows(root: Path, record: SetRecord) -> str | None:
    """Returns a note about rows of a complete set that are longer than the teacher's input.

    None without such rows or without texts.
    """
    if not kind_of(record).can_be_truncated or not record.has_text:
        return None
    reader = TextReader.of(load_set_tokenizer(root, record.tokenizer))
    size = record.windows.size if record.windows else record.max_seq_length
    room = size - reader.tokenizer.num_special_tokens_to_add(record.is_pair)
    count = partial(kind_of(record).num_truncated, reader=reader, room=room, by_windows=bool(record.windows))
    cut = sum(count(root / shard.path) for shard in record.shards)
    if not cut:
        return None
    share = cut / record.num_rows
    of_all = f"{cut:,} of {record.num_rows:,} rows ({share:.1%})"
    if record.windows:
        return f"of {of_all} both sentences are longer than half a window. The shorter one was truncated to that"
    return f"{of_all} are longer than {size} tokens, and were truncated"
