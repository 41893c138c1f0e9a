"""``distill import``: writes a file of any teacher's answers as a set of examples, without torch and transformers.

The record of such a set lists the unknown facts about the teacher. Students use a given tokenizer, or one that is built
from the words of the training texts. Answers are matched to a task's rows by split and source row, or by text, and
never by position.

Shapes: A answers, M rows of a split with an answer, C logits.
"""

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from pipeline.arrays import Floats, Ints
from pipeline.errors import ConfigError, DataError, raise_all
from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import read_small_file, require_space, sha256
from pipeline.parsing import as_names
from pipeline.sets.file_columns import write_file_columns
from pipeline.sets.files import Statistics
from pipeline.sets.kinds.examples import shard_table, text_hashes
from pipeline.sets.record import SetRecord, staged
from pipeline.sets.record_parts import Setting, Shard, TeacherRecord
from pipeline.sets.signals import Logits, Signals
from pipeline.sources import Source, load_source, sentences
from pipeline.sources.columns import plain_table, text_column
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
from teacher.imported.import_settings import AnswersFile
from teacher.models.label_order import check_label_order

LIBRARIES = ("distill-offline", "tokenizers", "pyarrow")
KEYS = ("split", "source_row")
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
        origin: how the answers became logits.
    """

    root: Path
    record: SetRecord
    unanswered: int
    unused: int
    missing: dict[str, int]
    origin: str


@dataclass(frozen=True)
class Matched:
    """The numbers of the rows of a split with an answer, ascending, and their logits in float32."""

    source_row_M: Ints
    logits_MC: Floats


def import_answers(config: AnswersFile, command: str) -> Imported:
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
    return Imported(dump.root, record, dump.unanswered, dump.unused, dump.missing, origin(config, dump.answers))


class ImportDump(Dump):
    """The answers of a file, matched to a task's rows."""

    def __init__(self, config: AnswersFile, command: str) -> None:
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
        self.source = replace(source, splits=splits)
        # The commonest mistake in files of answers is another order of labels, so it is looked for before anything is
        # written.
        for split, part in self.matched.items():
            gold = gold_arrays(self.answers.target, splits[split].take(pa.array(part.source_row_M)))
            labels, is_stated = self.answers.labels, bool(config.teacher_labels)
            check_label_order(self.answers.target, config.teacher, labels, part.logits_MC, *gold, is_stated)
        if config.tokenizer:
            tokenizer = read_tokenizer(config.tokenizer)
        else:
            read = [source.splits[TRAIN]] if TRAIN in source.splits else list(source.splits.values())
            texts = chain.from_iterable(part for rows in read for part in sentences(rows) if part is not None)
            tokenizer = tokenizer_of_texts(texts)
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

    def start(self, record: SetRecord) -> None:
        write_file_columns(self.root, self.source.kept)

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


def staged_record(
    config: AnswersFile,
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


def origin(config: AnswersFile, answers: Answers) -> str:
    """Returns a sentence about the origin of the logits, and how they were computed."""
    conversion = {
        "label": f", with a probability of 1 for each label that it chose, and of {FLOOR:g} for the others",
        "probabilities": f": logarithms of probabilities, with a minimum of {FLOOR:g}",
    }
    conversion["logprobs"] = conversion["probabilities"]
    what = "labels" if answers.kind == "label" else answers.kind
    return f"logits are the teacher's {what}, imported from {config.file.name}{conversion.get(answers.kind, '')}"


def _notes(config: AnswersFile, answers: Answers, missing: dict[str, int]) -> list[str]:
    """Returns notes for readers about the origin of the logits."""
    notes = [origin(config, answers)]
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


def match(answers: Answers, place: str, task: Task, source: Source) -> tuple[dict[str, Matched], int]:
    """Returns the rows of each split with an answer, and the number of answers without a row of the task.

    Raises:
        DataError: if the file has neither keys nor texts, if a key or a text has two answers, if a text differs from
            that of the row with its key, or if no answer belongs to a row of the task.
    """
    table = plain_table(answers.table)  # Arrow cannot select rows of every other type
    rows, by_key = table.take(pa.array(answers.row_A)), all(k in answers.table.column_names for k in KEYS)
    texts = _texts_of(rows, place, task, is_needed=not by_key)
    keys: Sequence[Hashable]
    if by_key:
        keys = _keys(rows, place, answers.row_A)
        if texts is not None:
            # Keys of another version of the data would match silently, so texts are compared wherever both exist.
            _check_texts(keys, texts, place, answers.row_A, source)
    else:
        assert texts is not None, "asked for"
        keys = texts
    answer_of = _one_answer_each(keys, answers, place)
    matched, used = {}, set[int]()
    for split, split_rows in source.splits.items():
        wanted = [(split, row) for row in range(split_rows.num_rows)] if by_key else _sentences(split_rows)
        found = [(row, answer_of[key]) for row, key in enumerate(wanted) if key in answer_of]
        used.update(a for _, a in found)
        places = np.array([a for _, a in found], dtype=np.int64)
        matched[split] = Matched(np.array([row for row, _ in found], dtype=np.int64), answers.logits_AC[places])
    if not used:
        what = "keys" if by_key else "texts"
        raise DataError(
            f"{place}: none of its {len(keys):,} {what} is in {source.description}. Check that these are the same data"
        )
    return matched, len(answer_of) - len(used)


def _sentences(rows: pa.Table) -> list[tuple[str, str | None]]:
    return list(zip(*(rows.column(name).to_pylist() for name in ("sentence1", "sentence2")), strict=True))


def _texts_of(rows: pa.Table, place: str, task: Task, is_needed: bool) -> list[tuple[str, str | None]] | None:
    """Returns the texts of rows with an answer, or None if the file has no texts and they are not needed."""
    columns, problems = dict[str, pa.Array](), list[str]()
    for name, own in (("sentence1", task.columns.sentence1), ("sentence2", task.columns.sentence2)):
        accepted = dict.fromkeys([*(own or ()), name])
        if own is None:
            columns[name] = pa.nulls(rows.num_rows, pa.string())
        elif is_needed or any(column in rows.column_names for column in accepted):
            columns[name] = text_column(rows, place, list(accepted), problems)
        else:
            return None
    if problems and is_needed:
        problems.append("Instead of texts, the columns split and source_row can identify the task's rows")
    raise_all(DataError, place, [problem.removeprefix(f"{place}: ") for problem in problems])
    return _sentences(pa.table(columns))


def _keys(rows: pa.Table, place: str, row_A: Ints) -> list[tuple[str, int]]:
    splits, numbers = (rows.column(name).to_pylist() for name in KEYS)
    keys, problems = [], []
    for row, split, number in zip(row_A.tolist(), splits, numbers, strict=True):
        try:
            keys.append((str(split), _as_integer(number)))
        except (TypeError, ValueError, OverflowError):
            problems.append(f"row {row}: source_row {number!r} is not a row's number")
    raise_all(DataError, place, problems)
    return keys


def _as_integer(number: Any) -> int:
    whole = int(number)
    # 3.0 is accepted because CSV readers make floats of columns with gaps. 3.5 is an error.
    if whole != float(number):
        raise ValueError
    return whole


def _check_texts(keys: Sequence[Any], texts: Sequence[Any], place: str, row_A: Ints, source: Source) -> None:
    own = {split: _sentences(rows) for split, rows in source.splits.items()}
    problems = [
        f"row {row}: its text differs from that of source row {number} of {split!r}: {text[0]!r}, there "
        f"{theirs[number][0]!r}"
        for row, (split, number), text in zip(row_A.tolist(), keys, texts, strict=True)
        if 0 <= number < len(theirs := own.get(split, [])) and theirs[number] != text
    ]
    raise_all(DataError, place, problems)


def _one_answer_each(keys: Sequence[Hashable], answers: Answers, place: str) -> dict[Hashable, int]:
    """Returns the answer to each key. The same answer may be repeated."""
    first, problems = dict[Hashable, int](), []
    for a, key in enumerate(keys):
        before = first.setdefault(key, a)
        # The same answer twice is harmless. Two different ones would make the result depend on their order.
        if before != a and not np.array_equal(answers.logits_AC[before], answers.logits_AC[a]):
            rows = f"rows {answers.row_A[before]} and {answers.row_A[a]}"
            problems.append(f"{rows}: two answers to {key!r}. Keep one")
    raise_all(DataError, place, problems)
    return first
