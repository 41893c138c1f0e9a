"""Reads several sets of one task as one: keys, ids, texts and gold labels of the first set, the logits of all.

Also measures how much the teachers agree and how good each of them is.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from pipeline import console
from pipeline.arrays import Floats
from pipeline.errors import ConfigError, DataError, did_you_mean, raise_all
from pipeline.sets.kinds.examples import KEYS, ExampleSet, columns_with_text
from pipeline.sets.open import LogitSet
from pipeline.sets.signals.rows import logits_of
from pipeline.sql.database import macros_of
from pipeline.sql.read_only_query import first_row, open_files, to_arrow
from pipeline.tasks.metrics import fidelity, score_logits
from pipeline.tasks.target import Target, gold_arrays


@dataclass(frozen=True)
class Mixture(ExampleSet):
    """The first set, with the logits of a mixture of teachers, for the rows that every set has.

    Attributes:
        others: the sets of the other teachers.
        mix: how their logits are mixed. See `mix_sql`.
    """

    others: tuple[ExampleSet, ...]
    mix: str

    @property
    def sets(self) -> tuple[ExampleSet, ...]:  # type: ignore[override]
        return (ExampleSet(self.root, self.record, vocabulary=self.vocabulary), *self.others)

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(split for split in self.record.splits if all(split in other.splits for other in self.others))

    @property
    def joined(self) -> str:
        """The rows that every set has, in SQL."""
        return f'"{self.view}"' + "".join(f' join "{other.view}" using ({", ".join(KEYS)})' for other in self.others)

    @property
    def mixed_logits(self) -> str:
        """The mixture of the logits of a row of `joined`, in SQL."""
        return mix_sql(self.mix, self.record.target, [f'"{one.view}".logits' for one in self.sets])

    @property
    def rows_sql(self) -> str:
        """The rows that every set has, with mixed logits, in SQL."""
        return f'(select "{self.view}".* replace ({self.mixed_logits} as logits) from {self.joined})'  # noqa: S608

    @contextmanager
    def opened(self, split: str, query: str | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
        """Opens the rows of one split for queries: a view per set, with the labels in the first set's order.

        Args:
            split: name of the split.
            query: SQL that names all macros that will be called, if it is known. Opening is faster without the others.

        Raises:
            IntegrityError: if a file is missing or was changed.
        """
        files = {one.view: one.checked_files(split) for one in self.sets}
        first = self.record.target
        columns = {one.view: columns_with_text(one.record, columns_as(first, one.record.target)) for one in self.sets}
        with open_files(files, columns, query) as connection:
            yield connection


def open_sets(
    paths: Sequence[Path], mix: str | None = None, allow_unverified: bool = False, needs_text: bool = True
) -> ExampleSet:
    """Opens one set, or several sets as one after checking that their rows are the same.

    Args:
        paths: folders of sets. The first set provides keys, ids, texts and gold. The others may be without text.
        mix: how several are mixed. See `mix_sql`. Default: the mean.
        allow_unverified: also open sets that are complete but not verified.
        needs_text: whether the first set must have texts.

    Raises:
        ConfigError: if the sets or ``mix`` do not fit together.
        DataError: if rows with the same key have other texts or gold, or no training row is in every set.
        IntegrityError: see `ExampleSet.open`.
    """
    first = ExampleSet.open(paths[0], allow_unverified, needs_text)
    others = [ExampleSet.open(path, allow_unverified, needs_text=False) for path in paths[1:]]
    if not others:
        return first
    mixture = Mixture(first.root, first.record, tuple(others), mix or DEFAULT_MIX)
    raise_all(ConfigError, "--set: the sets cannot be mixed", _problems(mixture))
    # An invalid --mix fails here, before the rows are read.
    _ = mixture.mixed_logits
    left_out = {split for one in mixture.sets for split in one.splits} - set(mixture.splits)
    if left_out:
        console.warn(f"splits that not every set has are left out: {', '.join(sorted(left_out))}")
    different = [problem for split in mixture.splits for problem in _different_rows(mixture, split)]
    raise_all(DataError, "--set: the sets cannot be mixed", different)
    return mixture


def mix_of(logit_set: LogitSet) -> str | None:
    """Returns how the logits of a set are mixed, or None for a single teacher."""
    return logit_set.mix if isinstance(logit_set, Mixture) else None


def columns_as(first: Target, other: Target) -> str:
    """What to select of a set so that its labels and logits are in the order of another's, in SQL."""
    if first.names == other.names:
        return "*"
    # DuckDB's lists count from 1, which explains every "+ 1" here.
    logits = [other.names.index(name) + 1 for name in first.names]
    labels = [first.names.index(name) for name in other.names]
    label = f"{labels}[label + 1]::int"
    if first.has_label_lists:
        label = f"list_sort(list_transform(label, lambda k: {labels}[k + 1]::int))"
    return f"* replace (list_select(logits, {logits}) as logits, {label} as label)"


def _problems(mixture: Mixture) -> list[str]:
    first, problems = mixture.sets[0], []
    for one, other in combinations(mixture.sets, 2):
        if one.root.resolve() == other.root.resolve():
            # A repeated set would silently count its teacher twice.
            problems.append(f"{one.root}: is repeated. Give each set once")
        elif one.view == other.view:
            problems.append(f"{one.root} and {other.root}: both are {one.view!r} in SQL. Rename one folder")
    for other in mixture.others:
        problems += _target_problems(first, other)
        if other.record.is_pair != first.record.is_pair:
            problems.append(f"{other.root} and {first.root}: only one of them has pairs")
        if "train" not in other.splits:
            problems.append(f"{other.root}: has no train split. Its splits are {', '.join(other.splits)}")
    return problems


def _target_problems(first: ExampleSet, other: ExampleSet) -> list[str]:
    ours, theirs = first.record.target, other.record.target
    if (ours.kind, ours.bins) != (theirs.kind, theirs.bins):
        return [f"{other.root}: its logits mean {_meaning(theirs)}, but those of {first.root} {_meaning(ours)}"]
    # The same labels in another order can be reordered by name, but only if each name is unique.
    is_permuted = len(set(ours.names)) == len(ours.names) and sorted(ours.names) == sorted(theirs.names)
    if ours.names == theirs.names or (ours.has_labels and is_permuted):
        return []
    strange = next((name for name in theirs.names if name not in ours.names), theirs.names[0])
    lists = f"its labels are {', '.join(theirs.names)}, but those of {first.root} {', '.join(ours.names)}"
    return [f"{other.root}: {lists}. {strange!r} is unknown. {did_you_mean(strange, ours.names)}"]


def _meaning(target: Target) -> str:
    if target.bins is None:
        return target.type.meaning
    return f"bins from {target.bins.low:g} to {target.bins.high:g}, {target.bins.width:g} wide"


def _different_rows(mixture: Mixture, split: str) -> list[str]:
    first = mixture.sets[0]
    with mixture.opened(split) as connection:
        problems = [problem for other in mixture.others for problem in different_rows(connection, split, first, other)]
        if split == "train" and first_row(connection, f"select 1 from {mixture.joined} limit 1") is None:  # noqa: S608
            problems.append("no row of train is in every set")
    return problems


DEFAULT_MIX = "mean"
EXAMPLES = ("mean", "vote", "weighted:0.7,0.3")


def mix_sql(mix: str, target: Target, logits: Sequence[str]) -> str:
    """The SQL expression of the mixture: a call of the macro ``mix`` or ``vote``.

    Args:
        mix: ``mean``, ``vote``, or ``weighted:`` and a weight per teacher.
        target: what the logits mean.
        logits: each teacher's logits, in SQL.

    Raises:
        ConfigError: if ``mix`` has another value or does not fit the target.
    """
    kind, _, numbers = mix.partition(":")
    teachers = f"[{', '.join(logits)}]"
    macro = macros_of(target).mix
    if mix == "vote":
        if target.is_score:
            raise ConfigError(
                "--mix vote: these teachers predict scores, which have no majority. Use mean or weighted."
            )
        if target.has_label_lists:
            raise ConfigError(
                "--mix vote: requires one label per row, but these rows have any number. Use mean or weighted."
            )
        call = f"vote({teachers})"
    elif mix == "mean":
        call = f"{macro}({teachers}, {[1 / len(logits)] * len(logits)})"
    elif kind == "weighted":
        call = f"{macro}({teachers}, {_weights(mix, numbers.split(','), len(logits))})"
    else:
        raise ConfigError(f"--mix {mix}: unknown value. {did_you_mean(mix, EXAMPLES)}")
    return f"{call}::float[{target.num_logits}]"


def _weights(mix: str, numbers: list[str], count: int) -> list[float]:
    """Weights with the sum 1."""
    try:
        weights = [float(number) for number in numbers]
    except ValueError as error:
        raise ConfigError(f"--mix {mix}: weights are numbers, as in weighted:0.7,0.3") from error
    if len(weights) != count:
        raise ConfigError(f"--mix {mix}: {len(weights)} weights for {count} sets. Give one for each --set.")
    total = sum(weights)
    # Normalized, so that 7 and 3 mean the same as 0.7 and 0.3 and the mixture stays a distribution.
    shares = [weight / total for weight in weights] if total > 0 else []
    if not shares or not all(0 < share < float("inf") for share in shares):
        raise ConfigError(f"--mix {mix}: weights are positive and finite. Leave a set out instead of giving it 0.")
    return shares


SAME_HASH = "a.text_hash = b.text_hash"
SAME_SENTENCES = "a.sentence1 = b.sentence1 and a.sentence2 is not distinct from b.sentence2"
OTHER_GOLD = "a.label is distinct from b.label or a.score is distinct from b.score"


def different_rows(
    connection: duckdb.DuckDBPyConnection, split: str, first: ExampleSet, other: ExampleSet
) -> list[str]:
    """Returns the first row of a split with the same key in two sets and different text or gold, as a problem.

    Texts are compared by their hashes. With different tokenizers, hashes are not comparable, so the texts themselves
    are compared.

    Args:
        connection: has a view of each set, with labels in the same order.
        split: its name, for the message.
        first: one set.
        other: the other set.
    """
    same_tokenizer = first.record.tokenizer.sha256 == other.record.tokenizer.sha256
    other_text = f"({SAME_HASH if same_tokenizer else SAME_SENTENCES}) is not true"
    for what, condition, columns in (
        ("text", other_text, ("sentence1", "sentence2")),
        ("gold", OTHER_GOLD, ("label", "score")),
    ):
        # Mixing logits of different texts would train the student on noise, so one differing row refuses the mixture.
        shown = ", ".join(f"{side}.{column}" for side in "ab" for column in columns)
        row = first_row(
            connection,
            f'select source_row, variant, {shown} from "{first.view}" a join "{other.view}" b '  # noqa: S608
            f"using ({', '.join(KEYS)}) where {condition} order by source_row, variant limit 1",
        )
        if row is not None:
            number, variant, *values = row
            ours, theirs = (_shown(first.record.target, what, *pair) for pair in (values[:2], values[2:]))
            key = f"{split}, source row {number}, variant {variant}"
            has_proof = same_tokenizer or what == "gold" or None not in (values[0], values[2])
            advice = "" if has_proof else ". With two tokenizers only texts are a proof"
            return [f"{key}: {what} {ours} in {first.root}, {theirs} in {other.root}{advice}"]
    return []


def _shown(target: Target, what: str, one: Any, other: Any) -> str:
    if what == "text":
        return " and ".join(repr(sentence) for sentence in (one, other) if sentence is not None) or "none"
    if one is None:
        return "none" if other is None else f"{other:g}"
    if isinstance(one, list):
        return ", ".join(repr(target.names[number]) for number in one) or "no label"
    return repr(target.names[one]) if 0 <= one < target.num_logits else f"label {one}"


Comparison = dict[str, Any]


def compare_teachers(mixture: Mixture) -> dict[str, Comparison]:
    """Compares the teachers of a mixture over the rows that every set has.

    Returns: Per split ``rows`` (in every set), ``left_out`` (rows of each set that are missing in another one) and
        ``with_first``, which compares each other teacher with the first one: for classes and bins by ``agreement`` and
        ``kl`` (the mean KL divergence in nats), for a score by ``pearson`` and ``rmse``. Dev splits also have
        ``scores``: the task's metrics of each teacher and of the ``mixture``.
    """
    return {split: _compare(mixture, split) for split in mixture.splits}


def comparison_lines(comparison: dict[str, Comparison]) -> list[str]:
    """Lines of `compare_teachers`' result for the terminal."""
    lines = []
    for split, parts in comparison.items():
        counts = [f"{parts['rows']:,} rows in every set"]
        counts += [f"{count:,} of {name} left out" for name, count in parts["left_out"].items() if count]
        lines.append(f"{split}: {', '.join(counts)}")
        lines += [f"{split}, {name} and the first: {_scores_text(v)}" for name, v in parts["with_first"].items()]
        lines += [f"{split}, {name}: {_scores_text(v)}" for name, v in parts.get("scores", {}).items() if v]
    return lines


def _compare(mixture: Mixture, split: str) -> Comparison:
    record = mixture.record
    with mixture.opened(split) as connection:
        counts = {one.view: _count(connection, f'"{one.view}"') for one in mixture.sets}
        teachers = {one.view: _logits(connection, mixture, f'"{one.view}".logits') for one in mixture.sets}
        teachers["mixture"] = _logits(connection, mixture, mixture.mixed_logits)
        gold = gold_arrays(record.target, _read(connection, mixture, f'"{mixture.view}".label, "{mixture.view}".score'))
    rows = len(teachers["mixture"])
    first_NC = teachers[mixture.view]
    comparison: Comparison = {
        "rows": rows,
        "left_out": {view: count - rows for view, count in counts.items()},
        "with_first": {other.view: fidelity(record.target, teachers[other.view], first_NC) for other in mixture.others},
    }
    # The task's metrics on training rows would flatter teachers that were fine-tuned on them.
    if split != "train":
        comparison["scores"] = {
            name: score_logits(record.metrics, record.target, logits_NC, *gold) for name, logits_NC in teachers.items()
        }
    return comparison


def _read(connection: duckdb.DuckDBPyConnection, mixture: Mixture, columns: str) -> pa.Table:
    return to_arrow(connection.sql(f"select {columns} from {mixture.joined} order by source_row, variant"))  # noqa: S608


def _logits(connection: duckdb.DuckDBPyConnection, mixture: Mixture, expression: str) -> Floats:
    table = _read(connection, mixture, f"{expression} as logits")
    return logits_of(table, mixture.record.target.num_logits)


def _count(connection: duckdb.DuckDBPyConnection, view: str) -> int:
    row = first_row(connection, f"select count(*) from {view}")  # noqa: S608
    assert row is not None
    return int(row[0])


def _scores_text(values: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in values.items())
