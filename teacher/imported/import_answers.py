"""``distill import``: writes a file of any teacher's answers to texts or to labelled words as a set, without torch.

The record of such a set lists the unknown facts about the teacher. Its token ids are those of a given tokenizer, of
BERT's uncased vocabulary, or of one learned from the training texts.

Shapes: M rows of logits of a split, T tokens, C logits.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from pipeline.arrays import Floats, Ints
from pipeline.errors import ConfigError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import read_small_file, require_space, sha256
from pipeline.parsing import as_names
from pipeline.sets.file_columns import write_file_columns
from pipeline.sets.files import Statistics
from pipeline.sets.kinds.examples import shard_table, text_hashes
from pipeline.sets.kinds.token_labels import words_table
from pipeline.sets.open import tokenizer_record
from pipeline.sets.record import SetRecord, staged
from pipeline.sets.record_parts import KindName, Setting, Shard, TeacherRecord, TokenizerRecord
from pipeline.sets.signals import Logits, Signals, TokenLogits
from pipeline.sources import Source, load_source, load_word_source, sentences
from pipeline.tasks.target import NO_LABEL, gold_arrays
from pipeline.tasks.task import TRAIN, Task, load_task
from pipeline.text.text_to_ids import TextReader
from pipeline.text.tokenizer import (
    MAX_TOKENIZER_BYTES,
    load_tokenizer,
    require_known,
    tokenizer_sha256,
)
from pipeline.text.tokenizer import ROWS as KNOWN_ROWS
from pipeline.text.vocabulary import usual_vocabulary
from pipeline.text.word_pieces import read_pieces
from teacher.dump.driver import Dump, Executor, run_dump
from teacher.dump.rows import Rows, all_shards, amount, split_records, task_record
from teacher.dump.shard_jobs import Advance, RowJob
from teacher.imported.answer_rows import FLOOR, Answers, read_answers
from teacher.imported.import_settings import AnswersFile
from teacher.imported.match import Matched, match
from teacher.models.label_order import check_label_order

LIBRARIES = ("distill-offline", "tokenizers", "pyarrow")
PRECISION = "unknown"


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
        self.labels_words = self.task.type == "token_labels"
        load = load_word_source if self.labels_words else load_source
        source = load(self.task, config.data, config.split_names)
        matched, self.unused = match(self.answers, str(config.file), self.task, source)
        self.missing = {
            split: rows.num_rows - len(np.unique(matched[split].source_row_M)) for split, rows in source.splits.items()
        }
        self.matched = {split: part for split, part in matched.items() if len(part.source_row_M)}
        splits = {split: source.splits[split] for split in self.matched}
        self.source = replace(source, splits=splits)
        # The commonest mistake in files of answers is another order of labels, so it is looked for before anything is
        # written.
        for split, part in self.matched.items():
            rows = splits[split].take(pa.array(np.unique(part.source_row_M)))
            gold = word_gold(rows) if self.labels_words else gold_arrays(self.answers.target, rows)
            labels, is_stated = self.answers.labels, bool(config.teacher_labels)
            check_label_order(self.answers.target, config.teacher, labels, part.logits_MC, *gold, is_stated)
        texts_of = source.texts.splits
        if config.tokenizer:
            tokenizer, self.vocabulary = read_tokenizer(config.tokenizer), f"by {json.dumps(str(config.tokenizer))}"
        else:
            read = [texts_of[TRAIN]] if TRAIN in texts_of else list(texts_of.values())
            texts = [text for rows in read for part in sentences(rows) if part is not None for text in part]
            # The case of letters marks names, which students of words look for.
            chosen = usual_vocabulary(texts, is_cased=self.labels_words)
            tokenizer, self.vocabulary = chosen.tokenizer, chosen.words
        self.reader = TextReader.of(tokenizer)
        if config.tokenizer:
            first = next(iter(self.source.texts.splits.values())).slice(0, KNOWN_ROWS)
            inputs = self.reader.tokenize(*sentences(first), config.max_seq_length)
            require_known(tokenizer, inputs, f"--tokenizer {config.tokenizer}")
        self.root: Path = config.store / config.set_name(self.task.name)
        self.rows = Rows(self.source, None)

    @property
    def unanswered(self) -> int:
        """Rows of the file without an answer."""
        return int(self.answers.table.num_rows) - len(self.answers.row_A)

    def probe(self) -> None:
        require_space(self.root.parent, amount(self.source.texts).expected_bytes)

    @cached_property
    def record(self) -> SetRecord:
        ids, digest = tokenizer_record(self.reader.tokenizer), sha256(self.config.file)
        notes = _notes(self.config, self.answers, self.missing, self.vocabulary)
        return staged_record(
            self.config, self.task, self.source, self.answers, self.missing, ids, digest, notes, self.command
        )

    def tokenizer_json(self) -> str:
        return self.reader.tokenizer_json()

    def start(self, record: SetRecord) -> None:
        write_file_columns(self.root, self.source.kept)

    def job(self, record: SetRecord) -> "ImportJob":
        job = ImportWordsJob if self.labels_words else ImportJob
        return job(record, None, PRECISION, 0, self.matched, self.reader)


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


@dataclass(frozen=True)
class ImportWordsJob(ImportJob):
    """Writes labelled words. All tokens of a word have its logits."""

    def read(self, rows: Rows, shard: Shard) -> Iterator[pa.Table]:
        yield rows.read(shard)

    def tables(
        self, rows: Rows, shard: Shard, batches: Iterator[pa.Table], advance: Advance, statistics: Statistics
    ) -> Iterator[pa.Table]:
        matched = self.matched[shard.split]
        first, last = np.searchsorted(matched.source_row_M, [shard.start, shard.stop])
        room = self.record.max_seq_length - self.reader.tokenizer.num_special_tokens_to_add(False)
        for sentences_ in batches:
            words = sentences_.column("sentence1")
            pieces = read_pieces(self.reader, words.to_pylist(), room)
            offsets = np.concatenate([[0], np.cumsum(pc.list_value_length(words).to_numpy())])
            logits_TC = matched.logits_MC[first:last][pieces.place_T(offsets)]
            yield words_table(self.record, shard, sentences_, pieces, logits_TC)
            advance(shard.stop - shard.start)


def word_gold(rows: pa.Table) -> tuple[Ints, Floats]:
    """Returns the label of each word of labelled sentences, ``NO_LABEL`` without gold, and NaN for its score."""
    pairs = zip(rows.column("sentence1").to_pylist(), rows.column("label").to_pylist(), strict=True)
    gold = [one for words, label in pairs for one in ([NO_LABEL] * len(words) if label is None else label)]
    return np.array(gold, dtype=np.int64), np.full(len(gold), np.nan, dtype=np.float32)


def staged_record(
    config: AnswersFile,
    task: Task,
    source: Source,
    answers: Answers,
    missing: dict[str, int],
    ids: TokenizerRecord,
    file_sha256: str,
    notes: list[str],
    command: str,
) -> SetRecord:
    """Describes the set of a file of answers. Its fingerprint covers everything that determines rows and logits."""
    target = answers.target
    kind: KindName = "examples"
    signals = Signals(logits=Logits(target=target))
    if task.type == "token_labels":
        kind, signals = "token_labels", Signals(token_logits=TokenLogits(target=target))
    splits = {
        split: part.model_copy(update={"absent": missing[split]}) for split, part in split_records(task, source).items()
    }
    settings: dict[str, Setting] = {
        "signal": "token_logits" if kind == "token_labels" else "logits",
        "task": f"{task.name} version {task.version}",
        "target": target.model_dump_json(),
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
        kind=kind,
        signals=signals,
        task=task_record(task, source),
        teacher=TeacherRecord(name=config.teacher, answers_sha256=file_sha256, labels=answers.labels),
        tokenizer=ids,
        max_seq_length=config.max_seq_length,
        precision=PRECISION,
        source=source.description,
        splits=splits,
        shards=all_shards(source, config.rows_per_shard, folder=kind),
        notes=(*source.warnings, *notes),
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


def _notes(config: AnswersFile, answers: Answers, missing: dict[str, int], vocabulary: str) -> list[str]:
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
    return [*notes, f"token ids: {vocabulary}. The teacher's own tokenizer is unknown"]


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
