"""Stage one on labelled words: a teacher's logits of every token, written as a set of words."""

from functools import partial
from pathlib import Path

import numpy as np

from pipeline import console
from pipeline.cluster.ray_pool import RayFlags
from pipeline.config import refuse_flags
from pipeline.devices import processes
from pipeline.files import make_folder
from pipeline.sets.kinds.token_labels import LabelledWords, TokenLabelSet, words_table
from pipeline.sets.record import Scores, SetRecord, staged
from pipeline.sets.record_parts import Shard
from pipeline.sets.signals import Signals, TokenLogits
from pipeline.sets.writer import write_shard
from pipeline.sources import Source, load_word_source
from pipeline.stopping import stop_between
from pipeline.tasks.spans import word_scores
from pipeline.tasks.target import NO_LABEL, Target
from pipeline.tasks.task import Task, load_task
from pipeline.text.tokenizer import require_known_ids
from teacher.augment.methods import AugmentFlags
from teacher.config import DumpTask
from teacher.dump.jobs import write_set
from teacher.dump.layer_flags import LayerFlags
from teacher.dump.probe import is_begun, probe_rows
from teacher.dump.records import LIBRARIES, of_task
from teacher.dump.source_parts import all_shards
from teacher.dump.token_vectors import add_token_vectors, load_speaker
from teacher.models.batches import naming_rows, tokens_per_batch
from teacher.models.classifier import Teacher, load_teacher
from teacher.models.label_order import check_label_order
from teacher.models.loaded import inference_mode, keep_head_in_float32
from teacher.models.logits import framed, labelled_words, pieces_of, token_logits
from teacher.unlabelled.flags import UnlabelledFlags

NOT_FOR_WORDS = {
    *("signal", "extend", "augment", "variants", "plan", "doc_stride"),
    *AugmentFlags.model_fields,
    *UnlabelledFlags.model_fields,
    *LayerFlags.model_fields,
    *RayFlags.model_fields,
}


def dump_words(config: DumpTask, command: str) -> SetRecord | None:
    """Writes the set of words that ``config`` describes, or goes on with it.

    Args:
        config: the command's settings.
        command: the command line, for the record.

    Returns:
        The record; still ``staged`` if other jobs have shards to write. None on other ranks than the first.

    Raises:
        ConfigError: for flags that are not for labelled words.
        DataError: if rows are wrong.
        TeacherError: if the teacher does not fit the task, or says NaN.
    """
    refuse_flags(config, NOT_FOR_WORDS, "is not for labelled words (type: token_labels)")
    task = load_task(config.task, config.manifest)
    source = load_word_source(task, config.data, config.split_names)
    name, revision = config.teacher_for(task)
    root = config.store / config.set_name(task.name)
    make_folder(config.store)
    state = processes()
    teacher = load_teacher(task, name, revision, config.teacher_label_names, config.max_seq_length)
    keep_head_in_float32(teacher.model)
    teacher.model.to(state.device)
    encoder = load_speaker(config, task, teacher)
    max_tokens = tokens_per_batch(state.device, config.max_tokens_per_batch)
    inference = partial(inference_mode, state.device, config.precision)
    if not is_begun(root, teacher):
        with inference():
            _probe(task, source, teacher, config, max_tokens)
    planned = staged_record(config, task, source, teacher, command)
    scores = partial(_teacher_scores, root, bool(config.teacher_label_names))

    def write(record: SetRecord, shards: list[Shard]) -> None:
        with inference():
            _write_shards(root, record, teacher, source, shards, max_tokens)

    job = config.job()
    record = write_set(root, planned, teacher.reader.tokenizer_json(), write, scores, job, state, lambda record: None)
    if record is None or record.state != "verified" or not config.token_vectors:
        return record
    with inference():
        return add_token_vectors(root, record, config, teacher, encoder, None, max_tokens)


def staged_record(config: DumpTask, task: Task, source: Source, teacher: Teacher, command: str) -> SetRecord:
    """Describes the set that these settings will give; its fingerprint covers all that decides rows and logits."""
    settings, parts = of_task("token_logits", config, task, source, teacher)
    return staged(
        settings,
        command,
        LIBRARIES,
        kind="token_labels",
        signals=Signals(token_logits=TokenLogits(target=teacher.target)),
        max_seq_length=config.max_seq_length,
        shards=all_shards(source, config.rows_per_shard, folder="token_labels"),
        **parts,
    )


def _probe(task: Task, source: Source, teacher: Teacher, config: DumpTask, max_tokens: int) -> None:
    """Questions the teacher about rows of the first dev split, evenly spread, before the real work."""
    split, rows = probe_rows(task, source)
    sample = labelled_words(teacher, rows, config.max_seq_length, split, max_tokens)
    require_known_ids(teacher.tokenizer, sample.pieces.ids, f"teacher {teacher.name}")
    check_word_labels(teacher.target, teacher.name, teacher.labels, sample, bool(config.teacher_label_names))


def check_word_labels(
    target: Target, name: str, labels: tuple[str, ...], rows: LabelledWords, is_stated: bool = False
) -> None:
    """Checks a teacher's order of labels by the words that have gold and a token, see `check_label_order`."""
    gold_T = rows.gold_T
    has_gold_T = gold_T != NO_LABEL
    no_score = np.full(int(has_gold_T.sum()), np.nan, dtype=np.float32)
    check_label_order(target, name, labels, rows.teacher_TC[has_gold_T], gold_T[has_gold_T], no_score, is_stated)


def _write_shards(
    root: Path, record: SetRecord, teacher: Teacher, source: Source, shards: list[Shard], max_tokens: int
) -> None:
    with console.progress(sum(shard.stop - shard.start for shard in shards), "teacher") as steps:
        for shard in stop_between(shards):
            steps.describe(f"teacher: {shard.split} {shard.index + 1}/{shard.count}")
            rows = source.splits[shard.split].slice(shard.start, shard.stop - shard.start)
            pieces = pieces_of(teacher, rows, record.max_seq_length)
            inputs = framed(teacher, pieces.ids)
            with naming_rows(inputs, rows, shard.split):
                logits_TC = token_logits(teacher, inputs, max_tokens, steps.advance)
            write_shard(root, record, shard, [words_table(record, shard, rows, pieces, logits_TC)])


def _teacher_scores(root: Path, is_stated: bool, record: SetRecord) -> Scores:
    """The teacher's metrics per split, from what was stored; its label order is checked on every gold label."""
    scores, stored = {}, TokenLabelSet(root, record)
    for split in record.splits:
        rows = stored.read(split)
        check_word_labels(record.target, record.teacher.name, record.teacher.labels, rows, is_stated)
        scores[split] = word_scores(record.metrics, rows.tallies(rows.teacher_TC))
    return scores
