"""Writing a set with several processes and jobs: who writes which shards, and who finishes it.

Every process comes to the same plan and stages it, or opens what another has staged. Then each takes its share of the
shards that are not there yet. Whoever sees all shards there finishes the set. A shard may be written anywhere, in any
order: what places shards by other rules calls `write` for each of them, between `start_set` and `finish`.
"""

from collections.abc import Callable
from pathlib import Path

from accelerate import PartialState

from pipeline import console
from pipeline.cluster.launchers import Job
from pipeline.sets.record import Scores, SetRecord, read_record_of
from pipeline.sets.record_parts import KindName, Shard
from pipeline.sets.writer import complete_and_verify, reopen_set, start_set, unfinished_shards


def write_set(
    root: Path,
    planned: SetRecord,
    tokenizer_json: str,
    write: Callable[[SetRecord, list[Shard]], None],
    scores: Callable[[SetRecord], Scores],
    job: Job,
    state: PartialState,
    started: Callable[[SetRecord], None],
) -> SetRecord | None:
    """Writes this process's share of a set, and finishes the set if that was the last of it.

    Args:
        root: the set's folder.
        planned: its staged record with all shards.
        tokenizer_json: content for ``tokenizer.json``.
        write: asks the teacher, and writes these shards of the record on disk.
        scores: the teacher's metrics per split, from the complete set.
        job: which of the shards this command may write.
        state: of the processes of this command, which share them.
        started: puts into the folder what the set needs besides its shards, before any is looked for.

    Returns:
        The record; still ``staged`` if other jobs have shards to write. None on other ranks than the first.

    Raises:
        FingerprintMismatchError: if the folder holds a set with other settings.
        DataError: if the folder cannot be written.
    """
    if job.source:
        console.note(f"job {job.index} of {job.count} ({job.source})")
    record = start_set(root, planned, tokenizer_json)
    started(record)
    shards = my_shards(root, record, job, state)
    if shards:
        write(record, shards)
    state.wait_for_everyone()
    if not state.is_main_process:
        return None
    return finish(root, planned.kind, scores)


def my_shards(root: Path, record: SetRecord, job: Job, state: PartialState) -> list[Shard]:
    """This process's share: every n-th shard of this job that is still to be written."""
    state.wait_for_everyone()
    missing = unfinished_shards(root, record)
    state.wait_for_everyone()  # nobody writes before everybody has looked, or the shares would differ
    if missing and record.state != "staged" and state.is_main_process:
        reopen_set(root, record, missing)
    unfinished = {shard.path for shard in missing}
    if len(unfinished) < len(record.shards):
        console.note(f"{len(record.shards) - len(unfinished)} of {len(record.shards)} shards are there already")
    todo = [shard for shard in record.shards[job.index :: job.count] if shard.path in unfinished]
    return todo[state.process_index :: state.num_processes]


def finish(root: Path, kind: KindName, scores: Callable[[SetRecord], Scores]) -> SetRecord:
    """Completes and verifies a set once all its shards are there.

    Args:
        root: the set.
        kind: of its rows.
        scores: the teacher's metrics per split, from the complete set.

    Returns:
        The record: ``verified``, or ``staged`` while shards are missing.
    """
    record = read_record_of(root, kind, "another set has taken its place")
    missing = unfinished_shards(root, record)
    if missing:
        console.note(f"{len(missing)} of {len(record.shards)} shards are left to other jobs")
        return record
    return complete_and_verify(root, record, scores)
