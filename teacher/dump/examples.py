"""Stage one: a teacher's logits over a task, written as a logit set.

Every process does the same up to the first shard: reads and checks the rows, loads the teacher, and tries it on a few
rows with gold. Then each takes its share of the shards that are not there yet. Whoever sees all shards there finishes
the set.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from accelerate import PartialState

from pipeline import console
from pipeline.arrays import Floats
from pipeline.errors import TeacherError
from pipeline.files import make_folder, require_space
from pipeline.logit_set.examples import shard_table, text_hashes
from pipeline.logit_set.reader import LogitSet
from pipeline.logit_set.record import ExamplesRecord, M, Scores, SetRecord, Shard, read_kind
from pipeline.logit_set.writer import (
    complete_set,
    finish_set,
    reopen_set,
    start_set,
    unfinished_shards,
    write_shard,
)
from pipeline.sources import Source, load_source, sentences
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import gold_arrays
from pipeline.tasks.task import Task, load_task
from pipeline.text.tokenizer import Tokenized
from teacher.augment.folder import Variants
from teacher.augment.methods import METHODS
from teacher.augment.run import sides_for, training_rows, variants_for
from teacher.config import DumpConfig
from teacher.dump.answers import Known, ask_ahead, ask_once, hashes_by_shard, nothing_known
from teacher.dump.examples_record import amount, staged_record
from teacher.dump.extend import answers, extended, open_old, take_over
from teacher.dump.prefetch import ahead, behind
from teacher.dump.rows import Rows
from teacher.inference.batches import default_tokens_per_batch, teacher_logits
from teacher.inference.classifier import Teacher, load_teacher
from teacher.inference.label_order import check_label_order
from teacher.inference.precision import inference_mode, keep_head_in_float32

PROBE_ROWS = 256


def dump(config: DumpConfig, command: str) -> ExamplesRecord | None:
    """Writes the logit set that ``config`` describes, or goes on with it.

    Args:
        config: the command's settings.
        command: the command line, for the record.

    Returns:
        The record; still ``staged`` if other jobs have shards to write. None on other ranks than the first.
    """
    task, source = read_rows(config)
    name, revision = config.teacher_for(task)
    root = config.store / config.set_name(task.name)
    make_folder(config.store)
    old = open_old(config, root)
    there = sum(file.stat().st_size for file in root.glob("examples/*.parquet"))
    there += old.record.num_bytes if old is not None else 0
    require_space(config.store, amount(source, most_variants(config, task)).expected_bytes - there)
    state = PartialState()
    teacher = load_teacher(task, name, revision, config.teacher_label_names, config.max_seq_length)
    keep_head_in_float32(teacher.model)
    teacher.model.to(state.device)
    max_tokens = config.max_tokens_per_batch or default_tokens_per_batch(state.device)
    with inference_mode(state.device, config.precision):
        _probe(config, task, source, teacher, max_tokens)
        variants = _variants(config, task, source, teacher, state, command)
        planned = staged_record(config, task, source, teacher, variants, command)
        if old is not None:
            planned = extended(planned, old, source, config.rows_per_shard)
        record = start_set(root, planned, teacher.tokenizer.to_str())
        if old is not None:
            take_over(root, record, old)
        mine = my_shards(root, record, config, state)
        if mine:
            hashes = hashes_by_shard(source, record)
            said = answers(old, hashes) if old is not None else nothing_known(teacher)
            said = ask_ahead(teacher, source, record, hashes, said, max_tokens)
            _write_shards(root, record, Rows(source, variants), teacher, mine, said, max_tokens)
    state.wait_for_everyone()
    if not state.is_main_process:
        return None
    return finish(root, ExamplesRecord, lambda record: _teacher_scores(root, record, config, task))


def read_rows(config: DumpConfig) -> tuple[Task, Source]:
    """The task and its checked rows."""
    config.check()
    task = load_task(config.task, config.manifest)
    source = load_source(task, config.data, config.split_names)
    if config.augment:
        training_rows(source)
    return task, source


def _variants(
    config: DumpConfig, task: Task, source: Source, teacher: Teacher, state: PartialState, command: str
) -> Variants | None:
    """The variants to add, made first if they are not there yet."""
    wanted = config.augmentation()
    if wanted is None:
        return None
    for token in METHODS[wanted.method].special_tokens(wanted):
        if teacher.tokenizer.token_to_id(token) is None:
            raise TeacherError(f"teacher {teacher.name}: its tokenizer has no {token}; use --augment tinybert")
    return variants_for(wanted, task, training_rows(source), state, command, is_job=config.num_shards > 1)


def most_variants(config: DumpConfig, task: Task) -> int:
    """How many variants of a row of ``train`` there may be."""
    wanted = config.augmentation()
    return len(sides_for(wanted, task)) if wanted else 0


def _probe(config: DumpConfig, task: Task, source: Source, teacher: Teacher, max_tokens: int) -> None:
    """Questions the teacher about rows with gold, evenly spread over the first dev split, before the real work."""
    split = next((name for name in task.dev_splits if name in source.splits), next(iter(source.splits)))
    rows = source.splits[split]
    places = np.unique(np.linspace(0, rows.num_rows - 1, min(PROBE_ROWS, rows.num_rows)).astype(np.int64))
    sample = rows.take(pa.array(places))
    inputs = teacher.reader.tokenize(*sentences(sample), config.max_seq_length)
    logits_NC = teacher_logits(teacher, inputs, max_tokens)
    _check_labels(config, teacher.target, teacher.name, teacher.labels, logits_NC, *gold_arrays(sample))


def _check_labels(config: DumpConfig, *evidence: Any) -> None:
    """Checks the label order; one that the user states with a flag is doubted aloud, but believed."""
    try:
        check_label_order(*evidence)
    except TeacherError as error:
        if not config.teacher_label_names:
            raise
        console.warn(f"{error}. Going on, because --teacher-labels says so")


def my_shards(root: Path, record: SetRecord, config: DumpConfig, state: PartialState) -> list[Shard]:
    """This process's share: every n-th shard of this job that is still to be written."""
    state.wait_for_everyone()
    missing = unfinished_shards(root, record)
    state.wait_for_everyone()  # nobody writes before everybody has looked, or the shares would differ
    if missing and record.state != "staged" and state.is_main_process:
        reopen_set(root, record, missing)
    unfinished = {shard.path for shard in missing}
    todo = [shard for shard in record.shards[config.shard_index :: config.num_shards] if shard.path in unfinished]
    if len(unfinished) < len(record.shards):
        console.note(f"{len(record.shards) - len(unfinished)} of {len(record.shards)} shards are there already")
    return todo[state.process_index :: state.num_processes]


@dataclass(frozen=True)
class _Part:
    """The rows of a shard, on their way through the teacher."""

    shard: Shard
    rows: pa.Table
    hashes: list[bytes]
    inputs: list[Tokenized]


def _write_shards(
    root: Path,
    record: ExamplesRecord,
    source: Rows,
    teacher: Teacher,
    shards: list[Shard],
    said: Known,
    max_tokens: int,
) -> None:
    """Shard after shard; while the teacher goes through one, the next is read and the last is written."""

    def read(shard: Shard) -> _Part:
        rows = source.read(shard)
        inputs = teacher.reader.tokenize(*sentences(rows), record.max_seq_length)
        return _Part(shard, rows, text_hashes(rows, record.tokenizer.sha256), inputs)

    def ask(part: _Part) -> tuple[_Part, Floats]:
        shard = part.shard
        steps.describe(f"teacher: {shard.split} {shard.index + 1}/{shard.count}")
        return part, ask_once(teacher, part.inputs, part.hashes, said, max_tokens, steps.advance)

    def write(answered: tuple[_Part, Floats]) -> None:
        part, logits_NC = answered
        table = shard_table(record, part.shard, part.rows, part.hashes, part.inputs, logits_NC)
        write_shard(root, record, part.shard, table)

    with console.progress(sum(source.count(shard) for shard in shards), "teacher") as steps:
        behind(map(ask, ahead(map(read, shards))), write)


def finish(root: Path, kind: type[M], scores: Callable[[M], Scores]) -> M:
    """Completes and verifies a set once all its shards are there.

    Args:
        root: the set.
        kind: of its record.
        scores: the teacher's metrics per split, from the complete set.
    """
    record = read_kind(root, kind, "another set has taken its place")
    missing = unfinished_shards(root, record)
    if missing:
        console.note(f"{len(missing)} of {len(record.shards)} shards are left to other jobs")
        return record
    if record.state == "verified":
        return record
    complete = complete_set(root, record)
    return finish_set(root, complete, scores(complete))


def _teacher_scores(root: Path, record: ExamplesRecord, config: DumpConfig, task: Task) -> dict[str, dict[str, float]]:
    """The teacher's metrics per split, from what was stored; its label order is checked on every gold label."""
    scores = {}
    for split in record.splits:
        logits_NC, label_N, score_N = LogitSet(root, record).gold(split)
        _check_labels(config, record.target, record.teacher.name, record.teacher.labels, logits_NC, label_N, score_N)
        scores[split] = score_logits(task.metrics, record.target, logits_NC, label_N, score_N)
    return scores
