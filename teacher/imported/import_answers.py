"""``distill import``: writes a file of any teacher's answers as a set of examples, without torch and transformers.

The record of such a set lists the unknown facts about the teacher. Students use a given tokenizer, or one that is built
from the words of the training texts.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from pipeline.errors import ConfigError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import read_small_file, require_space, sha256
from pipeline.parsing import as_names
from pipeline.sets.files import Statistics
from pipeline.sets.kinds.examples import shard_table, text_hashes
from pipeline.sets.record import SetRecord, staged
from pipeline.sets.record_parts import Setting, Shard, TeacherRecord
from pipeline.sets.signals import Logits, Signals
from pipeline.sources import Source, load_source, sentences
from pipeline.tasks.target import gold_arrays
from pipeline.tasks.task import TRAIN, Task, load_task
from pipeline.text.text_to_ids import TextReader
from pipeline.text.tokenizer import (
    MAX_TOKENIZER_BYTES,
    SPLITTER,
    load_tokenizer,
    require_known,
    tokenizer_sha256,
    wordpiece,
)
from pipeline.text.tokenizer import ROWS as KNOWN_ROWS
from teacher.dump.driver import Dump, Executor, run_dump
from teacher.dump.rows import Rows, all_shards, amount, split_records, task_record, tokenizer_record
from teacher.dump.shard_jobs import Advance, RowJob
from teacher.imported.answer_rows import FLOOR, Answers, read_answers
from teacher.imported.import_settings import ImportSettings
from teacher.imported.matching import Matched, match
from teacher.models.label_order import check_label_order

LIBRARIES = ("distill-offline", "tokenizers", "pyarrow")
PRECISION = "unknown"
MAX_WORDS, LEAST_COUNT = 30_000, 2


@dataclass(frozen=True)
class Imported:
    """The outcome of an import.

    Attributes:
        root: the set.
        record: of the set.
        unanswered: rows of the file without an answer.
        unused: answers without a row of the task.
        missing: rows of the task without an answer, by split.
    """

    root: Path
    record: SetRecord
    unanswered: int
    unused: int
    missing: dict[str, int]


def import_answers(config: ImportSettings, command: str) -> Imported:
    """Writes the answers of a file as a verified logit set, or resumes it.

    Raises:
        ConfigError: for flags that do not fit the task or the file.
        DataError: if the file or the rows cannot be read, listing every wrong row.
        TeacherError: if another order of its labels fits gold better.
        FingerprintMismatchError: if the name belongs to a set with other settings.
    """
    dump = ImportDump(config, command)
    record = run_dump(dump, Executor())
    assert record is not None, "a single process wrote all shards"
    return Imported(dump.root, record, dump.unanswered, dump.unused, dump.missing)


class ImportDump(Dump):
    """The answers of a file, matched to a task's rows."""

    def __init__(self, config: ImportSettings, command: str) -> None:
        self.config, self.command = config, command
        self.task = load_task(config.task, config.manifest)
        # First, because loading the task's rows may mean a download.
        self.answers = read_answers(config, self.task)
        source = load_source(self.task, config.data, config.split_names)
        matched, self.unused = match(self.answers, str(config.file), self.task, source)
        self.missing = {
            split: rows.num_rows - len(matched[split].source_row_M) for split, rows in source.splits.items()
        }
        self.matched = {split: part for split, part in matched.items() if len(part.source_row_M)}
        splits = {split: source.splits[split] for split in self.matched}
        self.source = Source(source.description, splits, source.warnings)
        # The commonest mistake in files of answers is another order of labels, so it is looked for before anything is
        # written.
        _check_labels(config, self.answers, self.matched, self.source)
        tokenizer = read_tokenizer(config.tokenizer) if config.tokenizer else tokenizer_of_texts(_texts(source))
        self.reader = TextReader.of(tokenizer)
        if config.tokenizer:
            first = next(iter(self.source.splits.values())).slice(0, KNOWN_ROWS)
            inputs = self.reader.tokenize(*sentences(first), config.max_seq_length)
            require_known(tokenizer, inputs, f"--tokenizer {config.tokenizer}")
        self.root: Path = config.store / config.set_name(self.task.name)
        self.rows = Rows(self.source, None)

    @property
    def unanswered(self) -> int:
        """Rows of the file without an answer."""
        return int(self.answers.table.num_rows) - len(self.answers.row_A)

    def probe(self) -> None:
        require_space(self.root.parent, amount(self.source).expected_bytes)

    @cached_property
    def record(self) -> SetRecord:
        digest, tokenizer = sha256(self.config.file), self.reader.tokenizer
        return staged_record(
            self.config, self.task, self.source, self.answers, self.missing, tokenizer, digest, self.command
        )

    def tokenizer_json(self) -> str:
        return self.reader.tokenizer_json()

    def job(self, record: SetRecord) -> "ImportJob":
        return ImportJob(record, None, PRECISION, 0, self.matched, self.reader)


@dataclass(frozen=True)
class ImportJob(RowJob[pa.Table]):
    """Writes rows with imported answers."""

    title: ClassVar = "import"

    matched: Mapping[str, Matched]
    reader: TextReader

    def count(self, rows: Rows, shard: Shard) -> int:
        return shard.stop - shard.start

    def read(self, rows: Rows, shard: Shard) -> Iterator[pa.Table]:
        matched = self.matched[shard.split]
        first, last = np.searchsorted(matched.source_row_M, [shard.start, shard.stop])
        yield rows.read(shard).take(pa.array(matched.source_row_M[first:last] - shard.start))

    def tables(
        self, rows: Rows, shard: Shard, batches: Iterator[pa.Table], advance: Advance, statistics: Statistics
    ) -> Iterator[pa.Table]:
        matched = self.matched[shard.split]
        first, last = np.searchsorted(matched.source_row_M, [shard.start, shard.stop])
        for answered in batches:
            inputs = self.reader.tokenize(*sentences(answered), self.record.max_seq_length)
            hashes = text_hashes(answered, self.record.tokenizer.sha256)
            yield shard_table(self.record, shard, answered, hashes, inputs, matched.logits_MC[first:last])
            advance(shard.stop - shard.start)


def _check_labels(config: ImportSettings, answers: Answers, matched: dict[str, Matched], source: Source) -> None:
    """Checks the order of labels on the gold of every split, before anything is written."""
    for split, part in matched.items():
        gold = gold_arrays(answers.target, source.splits[split].take(pa.array(part.source_row_M)))
        is_stated = bool(config.teacher_labels)
        check_label_order(answers.target, config.teacher, answers.labels, part.logits_MC, *gold, is_stated)


def _texts(source: Source) -> chain[str]:
    """Yields the texts of the training rows, or of all rows without a train split."""
    rows = [source.splits[TRAIN]] if TRAIN in source.splits else list(source.splits.values())
    return chain.from_iterable(part for table in rows for part in sentences(table) if part is not None)


def staged_record(
    config: ImportSettings,
    task: Task,
    source: Source,
    answers: Answers,
    missing: dict[str, int],
    tokenizer: Tokenizer,
    file_sha256: str,
    command: str,
) -> SetRecord:
    """Describes the set of a file of answers. Its fingerprint covers everything that determines rows and logits."""
    ids = tokenizer_record(tokenizer)
    splits = {
        split: part.model_copy(update={"absent": missing[split]}) for split, part in split_records(task, source).items()
    }
    settings: dict[str, Setting] = {
        "signal": "logits",
        "task": f"{task.name} version {task.version}",
        "target": answers.target.model_dump_json(),
        "teacher": config.teacher,
        "teacher.imported": file_sha256,
        "teacher.labels": as_names(answers.labels),
        "answers": answers.kind,
        "rest": config.rest,
        "tokenizer": ids.sha256,
        "max_seq_length": config.max_seq_length,
        **{f"source.{split}": part.rows_sha256 for split, part in splits.items()},
    }
    return staged(
        settings,
        command,
        LIBRARIES,
        name=config.set_name(task.name),
        kind="examples",
        signals=Signals(logits=Logits(target=answers.target)),
        task=task_record(task, source),
        teacher=TeacherRecord(name=config.teacher, answers_sha256=file_sha256, labels=answers.labels),
        tokenizer=ids,
        max_seq_length=config.max_seq_length,
        precision=PRECISION,
        source=source.description,
        splits=splits,
        shards=all_shards(source, config.rows_per_shard),
        notes=(*source.warnings, *_notes(config, answers, missing)),
    )


def _notes(config: ImportSettings, answers: Answers, missing: dict[str, int]) -> list[str]:
    """Returns notes for readers about the origin of the logits."""
    notes = [f"logits are the teacher's {answers.kind}, imported from {config.file.name}"]
    if answers.kind in ("probabilities", "logprobs"):
        notes[0] += f": logarithms of probabilities, with a minimum of {FLOOR:g}"
    if answers.num_spread:
        notes.append(
            f"{answers.num_spread:,} answers did not name every label. The remaining probability was divided "
            "among the other labels"
        )
    notes += [
        f"{count:,} rows of {split} have no answer and are not in the set" for split, count in missing.items() if count
    ]
    if config.tokenizer is None:
        return [*notes, "token ids: of the words of the training texts. The teacher's own tokenizer is unknown"]
    return [*notes, f"token ids: by {json.dumps(str(config.tokenizer))}. The teacher's own tokenizer is unknown"]


def read_tokenizer(path: Path) -> Tokenizer:
    """Returns a tokenizer of the user's choice, with the same checks as those of sets.

    The path is a ``tokenizer.json``, or a folder with one.

    Raises:
        ConfigError: if there is no tokenizer.
        IntegrityError: if it cannot be read, or would fill the memory.
    """
    file = path / TOKENIZER_FILE if path.is_dir() else path
    try:
        sha256 = tokenizer_sha256(read_small_file(file, MAX_TOKENIZER_BYTES).decode("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"--tokenizer {path}: there is no {TOKENIZER_FILE}") from error
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"--tokenizer {path}: not a readable {TOKENIZER_FILE}: {error}") from error
    return load_tokenizer(file, sha256)


def tokenizer_of_texts(texts: Iterable[str]) -> Tokenizer:
    """Returns a WordPiece tokenizer of the lower-case words that occur at least twice, and of letters for other words.

    The trainer of `tokenizers` is not used, because its result differs between runs.
    """
    normalizer = wordpiece((), strip_accents=False).normalizer
    counts = Counter(word for text in texts for word, _ in SPLITTER.pre_tokenize_str(normalizer.normalize_str(text)))
    # Single letters spell every other word, so that no word of these texts is unknown.
    letters = sorted(set(chain.from_iterable(counts)))
    # Equal counts are sorted by the alphabet: the tokenizer's hash is a setting and has to be reproducible.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    words = [word for word in ranked if counts[word] >= LEAST_COUNT][:MAX_WORDS]
    return wordpiece([*letters, *(f"##{letter}" for letter in letters), *words], strip_accents=False)
