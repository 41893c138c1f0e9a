"""``distill import --extend``: a new version of a set with the inputs that a cascade handed on, and their answers.

The set's own files are shared and no teacher runs. The new rows stand at the end of ``train``, as unlabelled rows do.
Shapes: N collected rows, C labels.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.arrays import Floats, Floats64
from pipeline.errors import ConfigError, DataError, raise_all
from pipeline.files import require_space
from pipeline.sets.files import require_shards
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.open import find_set, load_set_tokenizer
from pipeline.sets.record import SetRecord, staged
from pipeline.sets.record_parts import COLLECTED, Setting, SplitRecord, UnlabelledRecord
from pipeline.sets.signals.rows import logits_of
from pipeline.sets.token_vectors import take_over_token_vectors
from pipeline.sources import Source, rows_sha256
from pipeline.sources.collected import collected_lines, sha256_of_texts
from pipeline.sources.columns import column_name, plain
from pipeline.sources.row_files import open_rows
from pipeline.tasks.task import TRAIN
from pipeline.text.text_to_ids import TextReader
from teacher.dump.driver import Dump, Executor, run_dump
from teacher.dump.extend import new_shards, new_version, reused, take_over
from teacher.dump.rows import Rows, amount
from teacher.imported.answer_rows import to_logits, wrong_numbers
from teacher.imported.import_answers import PRECISION, ImportJob
from teacher.imported.import_settings import CollectedFolder
from teacher.imported.match import Matched
from teacher.unlabelled import choose_rows, count_truncated, with_unlabelled

COLUMNS = ("source_row", "sentence1", "sentence2", "label", "score")
TEXTS = ("sentence1", "sentence2")
ANSWERS = "collected_answers"  # setting of unlabelled rows: the hash of these answers
REASONS = ("empty", "near_dev", "repeated")  # why rows are left out, see `choose_rows`
ROUNDING = 1e-3  # of stored logarithms of probabilities


@dataclass(frozen=True)
class Collected:
    """The inputs of a folder, and what was answered.

    Attributes:
        rows: the columns sentence1 and sentence2.
        p_NC: float64 probabilities in the task's order of labels.
        num_lost: inputs whose text was not written and not found.
    """

    rows: pa.Table
    p_NC: Floats64
    num_lost: int


@dataclass(frozen=True)
class Extended:
    """The outcome of `extend_set`.

    Attributes:
        root: the new set.
        record: of the new set.
        added: number of new rows.
        left_out: number of other collected rows, by reason.
    """

    root: Path
    record: SetRecord
    added: int
    left_out: dict[str, int]


def extend_set(config: CollectedFolder, command: str) -> Extended:
    """Writes a set with more rows, or resumes it.

    Raises:
        ConfigError: if the set is not of classes, or has gaps.
        DataError: if collected rows cannot be read, have other labels, or none of them is new.
        FingerprintMismatchError: if the name belongs to a set with other rows.
    """
    dump = ExtendDump(config, command)
    record = run_dump(dump, Executor())
    assert record is not None, "a single process wrote all shards"
    return Extended(dump.root, record, dump.num_added, dump.left_out)


class ExtendDump(Dump):
    """A set with collected rows.

    Attributes:
        num_added: number of new rows.
        left_out: number of other collected rows, by reason.
    """

    def __init__(self, config: CollectedFolder, command: str) -> None:
        self.config, self.command = config, command
        self.old = open_extendable(config)
        self.root = config.store / (config.name or f"{self.old.record.name}-collected")
        if self.old.root.resolve() == self.root.resolve():
            raise ConfigError(
                f"--name {config.name}: is the set itself. Choose another name, because the old one stays"
            )
        collected = read_collected(config, self.old.record)
        before = _source_of(self.old)
        chosen_N, self._counts = choose_rows(before, collected.rows)
        self.left_out = self._counts | {"without_text": collected.num_lost}
        self.num_added = int(chosen_N.sum())
        if not self.num_added:
            num_rows = len(chosen_N) + collected.num_lost
            raise DataError(f"{config.file}: none of its {num_rows:,} rows is new to {self.old.root}: {self.left_out}")
        self._found = len(chosen_N)
        self.source = with_unlabelled(before, collected.rows.filter(pa.array(chosen_N)))
        self._first = before.splits[TRAIN].num_rows
        self._logits_NC = as_stored(self.old, collected.p_NC[chosen_N])
        self.reader = TextReader.of(load_set_tokenizer(self.old.root, self.old.record.tokenizer))
        self.rows = Rows(self.source, None)

    def probe(self) -> None:
        require_space(self.root.parent, amount(self.source).expected_bytes)

    @cached_property
    def record(self) -> SetRecord:
        old, train = self.old.record, self.source.splits[TRAIN]
        unlabelled = self._unlabelled()
        described = SplitRecord(
            rows=train.num_rows,
            expected_rows=old.splits[TRAIN].expected_rows,
            rows_sha256=rows_sha256(train),
        )
        settings = old.settings | {f"source.{TRAIN}": described.rows_sha256}
        settings |= {f"source.unlabelled.{name}": value for name, value in unlabelled.settings.items()}
        shards = [reused(self.old, shard) for shard in old.shards]
        own = [shard for shard in shards if shard.split == TRAIN]
        shards += new_shards(own, TRAIN, train.num_rows, self.config.rows_per_shard, old.kind)
        planned = staged(
            settings,
            self.command,
            base=old,
            name=self.root.name,
            splits={**old.splits, TRAIN: described},
            notes=(*old.notes, f"{self.num_added:,} rows have the answers of a cascade, from {self.config.file}"),
            unlabelled=unlabelled,
        )
        return new_version(planned, self.old, shards)

    def tokenizer_json(self) -> str:
        return self.old.tokenizer_json()

    def start(self, record: SetRecord) -> None:
        take_over(self.root, record, self.old)

    def job(self, record: SetRecord) -> ImportJob:
        places = np.arange(self._first, self._first + self.num_added)
        return ImportJob(record, None, PRECISION, 0, {TRAIN: Matched(places, self._logits_NC)}, self.reader)

    def finish(self, record: SetRecord | None, executor: Executor) -> SetRecord | None:
        assert record is not None, "this is the only process"
        return take_over_token_vectors(self.old.root, self.old.record, self.root, record)

    def _unlabelled(self) -> UnlabelledRecord:
        """The record of all rows without gold: those that the set had before, and the new ones."""
        answers = hashlib.sha256(self._logits_NC.tobytes()).hexdigest()
        new = UnlabelledRecord(
            source=f"the cascade's {self.config.file}",
            settings={COLLECTED: self.num_added, ANSWERS: answers},
            first_row=self._first,
            found=self._found,
            rows=self.num_added,
            **self._counts,
        )
        before = self.old.record.unlabelled
        return self._counted(new if before is None else _joined(before, new))

    def _counted(self, record: UnlabelledRecord) -> UnlabelledRecord:
        old = self.old.record
        return count_truncated(record, self.source, self.reader, old.max_seq_length, old.windows is not None)


def open_extendable(config: CollectedFolder) -> ExampleSet:
    """Opens the set.

    Raises:
        ConfigError: if it cannot be extended.
        IntegrityError: if a file of it does not match its record.
    """
    old = ExampleSet.open(find_set(config.extend, config.store), config.allow_unverified)
    problems = []
    if not old.record.target.has_classes:
        problems.append("has no classes, but a cascade answers with one of several classes")
    if TRAIN not in old.record.splits:
        problems.append(f"has no split {TRAIN!r}, to which collected rows are added")
    # Verification counts on it: with gaps a range of source rows does not determine the rows of a file.
    elif old.record.splits[TRAIN].absent:
        problems.append(f"has rows of {TRAIN!r} without logits")
    raise_all(ConfigError, f"{old.root} cannot be extended", problems)
    require_shards(old.root, old.record, old.record.shards)
    return old


def read_collected(config: CollectedFolder, record: SetRecord) -> Collected:
    """Reads a folder of collected rows.

    Raises:
        ConfigError: if rows have no text, and no file with texts is given.
        DataError: naming every line whose answer does not fit the task's labels.
    """
    names, problems = record.target.names, list[str]()
    known: dict[str, list[str]] | None = None
    texts: list[list[str]] = []
    numbers: list[list[float]] = []
    num_lost = 0
    for place, line in collected_lines(config.file):
        if "text_sha256" in line:
            # Read for the first such line only, because most folders have no line without text.
            known = _known_texts(config, record) if known is None else known
            own = known.get(str(line["text_sha256"]))
        else:
            own = [str(line[name]) for name in TEXTS if isinstance(line.get(name), str)]
        answer = line.get("probabilities")
        # Labels are matched by name: the stages of a cascade may have them in another order than the set.
        if not isinstance(answer, dict) or sorted(answer) != sorted(names):
            given = ", ".join(answer) if isinstance(answer, dict) else "none"
            problems.append(f"{place}: its labels are {given}, but those of the set are {', '.join(names)}")
        elif own is None:
            num_lost += 1
        elif len(own) != 1 + record.is_pair:
            problems.append(f"{place}: has {len(own)} texts, but inputs of {record.dataset_name!r} are others")
        elif not all(isinstance(p, int | float) for p in answer.values()):
            problems.append(f"{place}: {answer} are not probabilities")
        else:
            texts.append(own)
            numbers.append([answer[name] for name in names])
    raise_all(DataError, str(config.file), problems)
    p_NC = np.array(numbers, dtype=np.float64).reshape(len(numbers), len(names))
    wrong = wrong_numbers("probabilities", p_NC, names, may_spread=False)
    raise_all(DataError, str(config.file), list(wrong.values()))
    columns = [pa.array([own[k] for own in texts], pa.string()) for k in range(1 + record.is_pair)]
    second = columns[1] if record.is_pair else pa.nulls(len(texts), pa.string())
    return Collected(pa.table({"sentence1": columns[0], "sentence2": second}), p_NC, num_lost)


def _known_texts(config: CollectedFolder, record: SetRecord) -> dict[str, list[str]]:
    """The texts of a file by their hashes."""
    if config.data is None:
        raise ConfigError(f"--data: {config.file} has rows without text. Give a file that contains their texts")
    rows, place = open_rows(config.data), str(config.data)
    own = (record.task.text_columns if record.task is not None else None) or ()
    accepted = [(*names, name) for names, name in zip(own, TEXTS, strict=False)] or [(name,) for name in TEXTS]
    problems: list[str] = []
    names = [column_name(rows.names, place, each, problems) for each in accepted[: 1 + record.is_pair]]
    raise_all(DataError, "no texts", problems)
    wanted = [name for name in names if name is not None]
    table = rows.table()
    columns = [plain(table.column(name)).to_pylist() for name in wanted]
    return {sha256_of_texts(texts): list(texts) for texts in zip(*columns, strict=True) if all(map(_is_text, texts))}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def as_stored(old: ExampleSet, p_NC: Floats64) -> Floats:
    """Returns logits for probabilities, float32 [N, C], on the scale of the logits that a set has.

    Softmax does not change with a constant, but a loss between logits does. A teacher's logits are around a mean of
    their own, while logarithms of probabilities are all negative.
    """
    logits_NC = to_logits("probabilities", p_NC)
    first = next(shard for shard in old.record.shards if shard.split == TRAIN)
    known_NC = logits_of(old.read_shard(first, ["logits"]), old.record.target.num_logits).astype(np.float64)
    # Imported probabilities are stored as logarithms, so these fit already.
    if np.abs(np.logaddexp.reduce(known_NC, axis=1)).max() < ROUNDING:
        return logits_NC
    return np.asarray(logits_NC - logits_NC.mean(axis=1, keepdims=True) + known_NC.mean(), dtype=np.float32)


def _joined(before: UnlabelledRecord, new: UnlabelledRecord) -> UnlabelledRecord:
    counts = {name: getattr(before, name) + getattr(new, name) for name in ("found", "rows", *REASONS)}
    earlier = before.settings.get(COLLECTED, 0)
    settings: dict[str, Setting] = before.settings | new.settings
    # All rows that a cascade answered stand together at the end, whenever they were added.
    settings[COLLECTED] = new.rows + int(earlier)
    if ANSWERS in before.settings:
        both = f"{before.settings[ANSWERS]}{new.settings[ANSWERS]}"
        settings[ANSWERS] = hashlib.sha256(both.encode()).hexdigest()
    return UnlabelledRecord(
        source=f"{before.source}; {new.source}", settings=settings, first_row=before.first_row, **counts
    )


def _source_of(old: ExampleSet) -> Source:
    """The rows of a set, without variants."""
    splits = {split: old.read(split, COLUMNS, "variant = 0") for split in old.record.splits}
    num_unlabelled = old.record.unlabelled.rows if old.record.unlabelled else 0
    return Source(old.record.source, splits, [], num_unlabelled)
