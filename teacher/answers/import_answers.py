"""``distill import``: anyone's answers, from a file, as a set of examples; needs neither torch nor transformers.

The record of such a set says what is not known of the teacher. Students read with a given tokenizer, or with one made
from the words of the training texts.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from pipeline import console
from pipeline.config import as_names
from pipeline.errors import ConfigError
from pipeline.files import make_folder, read_small_file, require_space, sha256
from pipeline.sets.kinds.examples import shard_table, text_hashes
from pipeline.sets.record import TOKENIZER_FILE, SetRecord, staged
from pipeline.sets.record_parts import Setting, Shard, TeacherRecord
from pipeline.sets.signals import Logits, Signals
from pipeline.sets.writer import complete_and_verify, shards_to_write, start_set, write_shard
from pipeline.sources import Source, load_source, sentences
from pipeline.tasks.target import gold_arrays
from pipeline.tasks.task import TRAIN, Task, load_task
from pipeline.text.reader import TextReader
from pipeline.text.tokenizer import (
    MAX_TOKENIZER_BYTES,
    SPLITTER,
    load_tokenizer,
    require_known,
    tokenizer_sha256,
    wordpiece,
)
from pipeline.text.tokenizer import ROWS as KNOWN_ROWS
from teacher.answers.answer_rows import FLOOR, Answers, read_answers
from teacher.answers.import_settings import ImportConfig
from teacher.answers.matching import Matched, match
from teacher.dump.source_parts import all_shards, amount, split_records, task_record, tokenizer_record
from teacher.models.label_order import check_label_order

LIBRARIES = ("distill-offline", "tokenizers", "pyarrow")
PRECISION = "unknown"
MAX_WORDS, LEAST_COUNT = 30_000, 2


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
    record = complete_and_verify(root, record)
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
            write_shard(root, record, shard, [_table(record, shard, source, matched[shard.split], reader)])
            steps.advance(shard.stop - shard.start)


def _table(record: SetRecord, shard: Shard, source: Source, matched: Matched, reader: TextReader) -> pa.Table:
    first, last = np.searchsorted(matched.source_row_M, [shard.start, shard.stop])
    rows = source.splits[shard.split].take(pa.array(matched.source_row_M[first:last]))
    rows = rows.append_column("variant", pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
    rows = rows.append_column("origin", pa.repeat(pa.scalar("original"), rows.num_rows))
    inputs = reader.tokenize(*sentences(rows), record.max_seq_length)
    hashes = text_hashes(rows, record.tokenizer.sha256)
    return shard_table(record, shard, rows, hashes, inputs, matched.logits_MC[first:last])


def staged_record(
    config: ImportConfig,
    task: Task,
    source: Source,
    answers: Answers,
    missing: dict[str, int],
    tokenizer: Tokenizer,
    file_sha256: str,
    command: str,
) -> SetRecord:
    """Describes the set that a file of answers gives; its fingerprint covers all that decides rows and logits.

    Args:
        config: the command's settings.
        task: what the answers are about.
        source: the rows of those splits that have answers.
        answers: of the file.
        missing: rows without an answer, by split.
        tokenizer: that students read with.
        file_sha256: hash of the file.
        command: the command line.
    """
    ids = tokenizer_record(tokenizer)
    splits = {
        split: part.model_copy(update={"absent": missing[split]}) for split, part in split_records(task, source).items()
    }
    settings: dict[str, Setting] = {
        "signal": "logits",
        "task": f"{task.name} version {task.version}",
        "target": answers.target.model_dump_json(),
        "teacher": config.teacher,
        "teacher.answers": file_sha256,
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
        task=task_record(task),
        teacher=TeacherRecord(name=config.teacher, answers_sha256=file_sha256, labels=answers.labels),
        tokenizer=ids,
        max_seq_length=config.max_seq_length,
        precision=PRECISION,
        source=source.description,
        splits=splits,
        shards=all_shards(source, config.rows_per_shard),
        notes=(*source.warnings, *_notes(config, answers, missing)),
    )


def _notes(config: ImportConfig, answers: Answers, missing: dict[str, int]) -> list[str]:
    """What a reader should know of how these logits came about."""
    notes = [f"logits are the teacher's {answers.kind}, imported from {config.file.name}"]
    if answers.kind in ("probabilities", "logprobs"):
        notes[0] += f": logarithms of probabilities, none of them taken for less than {FLOOR:g}"
    if answers.num_spread:
        notes.append(
            f"{answers.num_spread:,} answers did not name every label: what was left of 1 was spread over the others"
        )
    notes += [
        f"{count:,} rows of {split} have no answer, and are not in the set" for split, count in missing.items() if count
    ]
    if config.tokenizer is None:
        return [*notes, "token ids: of the words of the training texts; what the teacher itself reads is unknown"]
    return [*notes, f"token ids: by {json.dumps(str(config.tokenizer))}; what the teacher itself reads is unknown"]


def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer of the user's choice, checked as those of sets are.

    Args:
        path: a ``tokenizer.json``, or a folder with one.

    Raises:
        ConfigError: if there is none.
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
    """A WordPiece of the words that the texts hold twice, lower case, and of letters for all other words.

    Not what `tokenizers` would train: that differs from run to run.
    """
    normalizer = wordpiece((), strip_accents=False).normalizer
    counts = Counter(word for text in texts for word, _ in SPLITTER.pre_tokenize_str(normalizer.normalize_str(text)))
    letters = sorted(set(chain.from_iterable(counts)))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    words = [word for word in ranked if counts[word] >= LEAST_COUNT][:MAX_WORDS]
    return wordpiece([*letters, *(f"##{letter}" for letter in letters), *words], strip_accents=False)
