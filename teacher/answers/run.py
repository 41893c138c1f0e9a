"""``distill import``: a set of a teacher of which nothing is known but its answers."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline import console
from pipeline.files import make_folder, require_space, sha256
from pipeline.sets.examples import shard_table, text_hashes
from pipeline.sets.reader import ExampleSet
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.writer import complete_and_verify, shards_to_write, start_set, write_shard
from pipeline.sources import Source, load_source, sentences
from pipeline.tasks.target import gold_arrays
from pipeline.tasks.task import TRAIN, load_task
from pipeline.text.reader import TextReader
from pipeline.text.tokenizer import ROWS as KNOWN_ROWS
from pipeline.text.tokenizer import require_known
from teacher.answers.answers import Answers, read_answers
from teacher.answers.config import ImportConfig
from teacher.answers.matching import Matched, match
from teacher.answers.record import staged_record
from teacher.answers.tokenizer import read_tokenizer, tokenizer_of_texts
from teacher.dump.source_parts import amount
from teacher.models.label_order import check_label_order


@dataclass(frozen=True)
class Imported:
    """What an import has come to.

    Attributes:
        root: the set.
        record: of the set.
        unanswered: rows of the file without an answer.
        unused: answers that are about no row of the task.
        missing: rows of the task without an answer, by split.
    """

    root: Path
    record: SetRecord
    unanswered: int
    unused: int
    missing: dict[str, int]


def import_answers(config: ImportConfig, command: str) -> Imported:
    """Writes the answers of a file as a verified logit set, or goes on with it.

    Args:
        config: the command's settings.
        command: the command line, for the record.

    Raises:
        ConfigError: for flags that do not fit the task or the file.
        DataError: if the file or the rows cannot be read, listing every row that is wrong.
        TeacherError: if another order of its labels fits the gold better.
        FingerprintMismatchError: if a set with other settings has the name.
    """
    task = load_task(config.task, config.manifest)
    answers = read_answers(config, task)  # first: the task's own rows may have to be downloaded
    source = load_source(task, config.data, config.split_names)
    matched, unused = match(answers, str(config.file), task, source)
    missing = {split: rows.num_rows - len(matched[split].source_row_M) for split, rows in source.splits.items()}
    matched = {split: part for split, part in matched.items() if len(part.source_row_M)}
    answered = Source(source.description, {split: source.splits[split] for split in matched}, source.warnings)
    _check_labels(config, answers, matched, answered)
    tokenizer = read_tokenizer(config.tokenizer) if config.tokenizer else tokenizer_of_texts(_texts(source))
    reader = TextReader.of(tokenizer)
    if config.tokenizer:
        first = next(iter(answered.splits.values())).slice(0, KNOWN_ROWS)
        inputs = reader.tokenize(*sentences(first), config.max_seq_length)
        require_known(tokenizer, inputs, f"--tokenizer {config.tokenizer}")
    planned = staged_record(config, task, answered, answers, missing, tokenizer, sha256(config.file), command)
    root = config.store / planned.name
    make_folder(config.store)
    require_space(config.store, amount(answered).expected_bytes)
    record, unfinished = shards_to_write(root, start_set(root, planned, reader.tokenizer_json()))
    _write(root, record, unfinished, answered, matched, reader)
    record = complete_and_verify(root, record, lambda complete: ExampleSet(root, complete).scores())
    return Imported(root, record, answers.table.num_rows - len(answers.row_A), unused, missing)


def _check_labels(config: ImportConfig, answers: Answers, matched: dict[str, Matched], source: Source) -> None:
    """Checks the order of labels on the gold of every split, before anything is written."""
    for split, part in matched.items():
        gold = gold_arrays(answers.target, source.splits[split].take(pa.array(part.source_row_M)))
        is_stated = bool(config.teacher_labels)
        check_label_order(answers.target, config.teacher, answers.labels, part.logits_MC, *gold, is_stated)


def _texts(source: Source) -> chain[str]:
    """The texts of the training rows, or of all where there are none."""
    rows = [source.splits[TRAIN]] if TRAIN in source.splits else list(source.splits.values())
    return chain.from_iterable(part for table in rows for part in sentences(table) if part is not None)


def _write(
    root: Path, record: SetRecord, shards: list[Shard], source: Source, matched: dict[str, Matched], reader: TextReader
) -> None:
    with console.progress(sum(shard.stop - shard.start for shard in shards), "import") as steps:
        for shard in shards:
            write_shard(root, record, shard, _table(record, shard, source, matched[shard.split], reader))
            steps.advance(shard.stop - shard.start)


def _table(record: SetRecord, shard: Shard, source: Source, matched: Matched, reader: TextReader) -> pa.Table:
    first, last = np.searchsorted(matched.source_row_M, [shard.start, shard.stop])
    rows = source.splits[shard.split].take(pa.array(matched.source_row_M[first:last]))
    rows = rows.append_column("variant", pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
    rows = rows.append_column("origin", pa.repeat(pa.scalar("original"), rows.num_rows))
    inputs = reader.tokenize(*sentences(rows), record.max_seq_length)
    hashes = text_hashes(rows, record.tokenizer.sha256)
    return shard_table(record, shard, rows, hashes, inputs, matched.logits_MC[first:last])
