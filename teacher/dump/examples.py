"""Stage one on a task: a teacher's logits of every row, written as a logit set.

Every process does the same up to the first shard: reads and checks the rows, loads the teacher, and tries it on a few
rows with gold; `write_set` shares out the shards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from pipeline import console
from pipeline.arrays import Floats
from pipeline.devices import processes
from pipeline.errors import TeacherError
from pipeline.files import make_folder, require_space
from pipeline.sets.kinds.examples import shard_table, text_hashes
from pipeline.sets.reader import ExampleSet
from pipeline.sets.record import Scores, SetRecord
from pipeline.sets.record_parts import MAX_SEQ_LENGTH, Shard, UnlabelledRecord
from pipeline.sets.signals import LayerSignal
from pipeline.sets.signals.init import INIT_FILE
from pipeline.sets.writer import write_shard
from pipeline.sources import Source, load_source, sentences
from pipeline.stopping import stop_between
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import gold_arrays
from pipeline.tasks.task import Metric, Task, load_task
from pipeline.text.tokenizer import Tokenized, require_known
from teacher.augment.augment import read_source, sides_for, variants_for
from teacher.augment.config import AugmentConfig
from teacher.augment.methods import METHODS
from teacher.config import DumpTask
from teacher.dump.answers import Known, hashes_by_shard, logits_of_repeated, logits_once
from teacher.dump.cluster import Errand, ask_here_or_there
from teacher.dump.examples_record import staged_record
from teacher.dump.extend import answers, extended, open_old, take_over
from teacher.dump.init_layers import add_init_layers, check_same_init, init_bytes
from teacher.dump.jobs import write_set
from teacher.dump.layer_sizes import layer_bytes, sampled_lengths
from teacher.dump.layers import add_layers, planned_layers
from teacher.dump.prefetch import prefetched, write_behind
from teacher.dump.probe import is_begun, probe_rows
from teacher.dump.repeated import read_shared_answers, remove_shared_answers, write_shared_answers
from teacher.dump.rows import Rows, ShardRows
from teacher.dump.source_parts import amount
from teacher.dump.token_vectors import add_token_vectors, load_speaker
from teacher.models.batches import naming_rows, tokens_per_batch
from teacher.models.classifier import Teacher, load_teacher
from teacher.models.label_order import check_label_order
from teacher.models.loaded import inference_mode, keep_head_in_float32
from teacher.models.logits import teacher_logits
from teacher.unlabelled.rows import add_unlabelled, count_truncated


def dump(config: DumpTask, command: str) -> SetRecord | None:
    """Writes the logit set that ``config`` describes, or goes on with it.

    Args:
        config: the command's settings.
        command: the command line, for the record.

    Returns:
        The record; still ``staged`` if other jobs have shards to write. None on other ranks than the first.
    """
    task, source, unlabelled = read_rows(config)
    name, revision = config.teacher_for(task)
    root, wanted = config.store / config.set_name(task.name), config.augmentation()
    make_folder(config.store)
    old = open_old(config, root)
    _require_space(root, source, most_variants(wanted, task), old)
    state = processes()
    teacher = load_teacher(task, name, revision, config.teacher_label_names, config.max_seq_length, config.windows)
    keep_head_in_float32(teacher.model)
    teacher.model.to(state.device)
    encoder = load_speaker(config, task, teacher)
    layers = planned_layers(config, name, teacher.model.config, root)
    max_tokens = tokens_per_batch(state.device, config.max_tokens_per_batch)
    inference = partial(inference_mode, state.device, config.precision)
    is_stated = bool(config.teacher_label_names)
    weights_bytes = init_bytes(config, name, teacher.model.config)
    check_same_init(root, config.init_numbers(teacher.model.config.num_hidden_layers))
    _require_space_of_layers(root, layers, source, teacher, config.max_seq_length, weights_bytes)
    if not is_begun(root, teacher):
        with inference():
            _probe(task, source, teacher, config, max_tokens, is_stated)
    variants = None
    if wanted is not None:
        _check_special_tokens(wanted, teacher)
        is_job = config.job().count > 1
        variants = variants_for(wanted, task, source.own(wanted.split_of(task)), state, command, is_job)
    if unlabelled is not None:
        unlabelled = count_truncated(unlabelled, source, teacher.reader, config.max_seq_length, bool(config.windows))
    rows = Rows(source, variants)
    planned = staged_record(config, task, source, teacher, variants, unlabelled, command)
    if old is not None:
        planned = extended(planned, old, source, config.rows_per_shard)

    def started(record: SetRecord) -> None:
        if old is not None:
            take_over(root, record, old)

    def write(record: SetRecord, shards: list[Shard]) -> None:
        with inference():
            known = _known_answers(config, teacher, source, record, old, max_tokens)
        ask = partial(_write_shards, teacher, known, max_tokens)
        errand = Errand(record, teacher, config.precision, ask, (record.kind,))
        ask_here_or_there(config, root, errand, rows, shards)

    scores = partial(_teacher_scores, root, metrics=task.metrics, is_stated=is_stated)
    record = write_set(root, planned, teacher.reader.tokenizer_json(), write, scores, config.job(), state, started)
    remove_shared_answers(config.store, record)
    with inference():
        if record is not None and record.state == "verified" and config.token_vectors:
            record = add_token_vectors(root, record, config, teacher, encoder, old, max_tokens)
    record = add_init_layers(root, record, config, teacher, old)
    if layers:
        record = add_layers(root, layers, config, teacher, rows, max_tokens, old, state)
    return record


def read_rows(config: DumpTask) -> tuple[Task, Source, UnlabelledRecord | None]:
    """The task, its checked rows with those that are added without gold, and what is to be said of these."""
    config.check()
    task = load_task(config.task, config.manifest)
    wanted = config.augmentation()
    if wanted is None:
        source = load_source(task, config.data, config.split_names)
    else:
        source = read_source(wanted, task, config.split_names)
    if config.unlabelled is None:
        return task, source, None
    place, pairs = config.unlabelled, config.unlabelled_pairs
    return task, *add_unlabelled(task, source, place, config.max_unlabelled, config.seed, pairs)


def most_variants(wanted: AugmentConfig | None, task: Task) -> dict[str, int]:
    """How many variants of a row there may be, by split."""
    return {wanted.split_of(task): len(sides_for(wanted, task))} if wanted else {}


def _require_space(root: Path, source: Source, num_variants: dict[str, int], old: ExampleSet | None) -> None:
    """Raises DataError unless the disk has room for what the set does not hold yet, less what an old one gives."""
    stored = sum(file.stat().st_size for file in root.glob("examples/*.parquet"))
    stored += sum(shard.bytes or 0 for shard in old.record.shards) if old is not None else 0
    require_space(root.parent, amount(source, num_variants).expected_bytes - stored)


def _require_space_of_layers(
    root: Path,
    layers: Sequence[LayerSignal],
    source: Source,
    teacher: Teacher,
    max_seq_length: int,
    weights_bytes: int,
) -> None:
    """Raises PassingError unless the disk has room for what is to be stored of layers; variants are not counted."""
    length_R = sampled_lengths(source, teacher.tokens.num_special, max_seq_length)
    needed = sum(size for _, size in layer_bytes(layers, source, length_R, 0).values())
    stored = sum(file.stat().st_size for layer in layers for file in (root / layer.name).glob("*.parquet"))
    require_space(root.parent, needed - stored + (0 if (root / INIT_FILE).exists() else weights_bytes))


def _check_special_tokens(wanted: AugmentConfig, teacher: Teacher) -> None:
    for token in METHODS[wanted.method].special_tokens(wanted):
        if teacher.tokenizer.token_to_id(token) is None:
            own = teacher.tokens.mask_id
            advice = (
                "use --augment tinybert" if own is None else f"give --mask-token {teacher.tokenizer.id_to_token(own)}"
            )
            raise TeacherError(f"teacher {teacher.name}: its tokenizer has no {token}; {advice}, or --augment none")


def _probe(task: Task, source: Source, teacher: Teacher, config: DumpTask, max_tokens: int, is_stated: bool) -> None:
    """Questions the teacher about rows with gold, evenly spread over the first dev split, before the real work."""
    split, sample = probe_rows(task, source)
    longest = MAX_SEQ_LENGTH if config.windows else config.max_seq_length
    inputs = teacher.reader.tokenize(*sentences(sample), longest)
    require_known(teacher.tokenizer, inputs, f"teacher {teacher.name}")
    with naming_rows(inputs, sample, split):
        logits_NC = teacher_logits(teacher, inputs, max_tokens)
    gold = gold_arrays(teacher.target, sample)
    check_label_order(teacher.target, teacher.name, teacher.labels, logits_NC, *gold, is_stated)


def _known_answers(
    config: DumpTask, teacher: Teacher, source: Source, record: SetRecord, old: ExampleSet | None, max_tokens: int
) -> Known:
    """What is known before any shard: an old set's answers, and those to texts of several shards."""
    is_shared = config.job().count > 1 and old is None
    known = read_shared_answers(config.store, record) if is_shared else None
    if known is not None:
        return known
    hashes = hashes_by_shard(source, record)
    known = answers(old, hashes) if old is not None else Known.empty(record.target.num_logits)
    known = logits_of_repeated(teacher, source, record, hashes, known, max_tokens)
    if is_shared:
        write_shared_answers(config.store, record, known)
    return known


@dataclass(frozen=True)
class _Part:
    """The rows of a shard, on their way through the teacher."""

    shard: Shard
    rows: pa.Table
    hashes: list[bytes]
    inputs: list[Tokenized]


def _write_shards(
    teacher: Teacher,
    known: Known,
    max_tokens: int,
    root: Path,
    record: SetRecord,
    source: ShardRows,
    shards: list[Shard],
) -> None:
    """Shard after shard; while the teacher goes through one, the next is read and the last is written."""

    def read(shard: Shard) -> _Part:
        rows = source.read(shard)
        inputs = teacher.reader.tokenize(*sentences(rows), record.max_seq_length)
        return _Part(shard, rows, text_hashes(rows, record.tokenizer.sha256), inputs)

    def ask(part: _Part) -> tuple[_Part, Floats]:
        shard = part.shard
        steps.describe(f"teacher: {shard.split} {shard.index + 1}/{shard.count}")
        with naming_rows(part.inputs, part.rows, part.shard.split):
            return part, logits_once(teacher, part.inputs, part.hashes, known, max_tokens, steps.advance)

    def write(answered: tuple[_Part, Floats]) -> None:
        part, logits_NC = answered
        table = shard_table(record, part.shard, part.rows, part.hashes, part.inputs, logits_NC)
        write_shard(root, record, part.shard, [table])

    with console.progress(sum(source.count(shard) for shard in shards), "teacher") as steps:
        write_behind(map(ask, stop_between(prefetched(map(read, shards)))), write)


def _teacher_scores(root: Path, record: SetRecord, metrics: tuple[Metric, ...], is_stated: bool) -> Scores:
    """The teacher's metrics per split, from what was stored; its label order is checked on every gold label."""
    scores = {}
    for split in record.splits:
        logits_NC, label_N, score_N = ExampleSet(root, record).gold(split)
        check_label_order(
            record.target, record.teacher.name, record.teacher.labels, logits_NC, label_N, score_N, is_stated
        )
        scores[split] = score_logits(metrics, record.target, logits_NC, label_N, score_N)
    return scores
