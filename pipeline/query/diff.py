"""``distill diff``: compares rows, texts, gold labels and logits of two sets of one task, by split and by class."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from pipeline.errors import ConfigError
from pipeline.query.mixture import SAME_HASH, SAME_SENTENCES
from pipeline.sets.files import require_shards
from pipeline.sets.open import find_set, usable_record
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Setting
from pipeline.sets.set_settings import DiffSettings
from pipeline.sql.database import macros_of
from pipeline.sql.read_only_query import open_files, select, to_arrow

# A full join keeps every key of either set. `same` is null where only one set has the key.
PAIRS = """
create temp view pairs as
select split, source_row, variant, a.text_hash is null as only_b, b.text_hash is null as only_a, {same} as same,
    a.label as label, a.label is distinct from b.label or a.score is distinct from b.score as other_gold,
    a.logits as a_logits, b.logits as b_logits,
    list_max(list_transform(a.logits, lambda x, i: abs(x::double - b.logits[i]::double))) as difference
from a full join b using (split, source_row, variant)
"""
BY_SPLIT = """
select split, count(*) filter (same) as "both", count(*) filter (only_a) as only_a, count(*) filter (only_b) as only_b,
    count(*) filter (not same) as other_text, count(*) filter (same and other_gold) as other_gold,
    count(*) filter (same and difference > {tolerance}) as moved, max(difference) filter (same) as largest,
    avg(({answer}(a_logits) = {answer}(b_logits))::int) filter (same) as agreement,
    avg({kl}(a_logits, b_logits)) filter (same) as kl
from pairs group by split order by split
"""
BY_CLASS = """
select split, label, count(*) as n, avg((argmax(a_logits) = argmax(b_logits))::int) as agreement,
    avg(kl(a_logits, b_logits)) as kl, avg((argmax(a_logits) = label)::int) as right_a,
    avg((argmax(b_logits) = label)::int) as right_b
from pairs where same and label is not null group by split, label order by split, label
"""
CALIBRATION = """
select split, x.n as n_a, y.n as n_b, x.accuracy as accuracy_a, y.accuracy as accuracy_b,
    x.calibration_error as calibration_error_a, y.calibration_error as calibration_error_b
from calibration_error(a) x join calibration_error(b) y using (split) order by split
"""
DIFFERING = ("only_a", "only_b", "other_text", "other_gold", "moved")
Rows = list[dict[str, Any]]
Changes = dict[str, tuple[Setting | None, Setting | None]]


@dataclass(frozen=True)
class Diff:
    """The differences of two sets.

    Attributes:
        settings: the settings that differ, with both values.
        splits: per split, the rows in both sets and in only one, and the rows whose texts, gold or logits differ. Also
            the share of equal predictions, and the mean divergence of b from a in nats.
        classes: the same numbers per split and gold class, and the accuracy of each teacher.
        calibration: per split, accuracy and expected calibration error of both.
    """

    settings: Changes
    splits: Rows
    classes: Rows
    calibration: Rows

    @property
    def is_empty(self) -> bool:
        """Whether both sets have the same outputs for the same rows."""
        return not any(split[name] for split in self.splits for name in DIFFERING)


def diff(settings: DiffSettings) -> Diff:
    """Compares two sets, key by key.

    Raises:
        ConfigError: if their logits mean different things, or their texts cannot be compared.
        IntegrityError: if a file does not match its record.
    """
    roots = [find_set(name, settings.store) for name in (settings.a, settings.b)]
    a, b = (_open(root, settings.allow_unverified) for root in roots)
    # Logits of other labels, or in another order, cannot be subtracted from each other.
    if a.target != b.target or a.is_pair != b.is_pair:
        raise ConfigError(
            f"{roots[0]} and {roots[1]}: the logits of the first are {', '.join(a.target.names)} "
            f"({a.dataset_name}), those of the second {', '.join(b.target.names)} ({b.dataset_name}). Only sets "
            "of one task can be compared"
        )
    views = {name: [root / s.path for s in m.shards] for name, root, m in zip("ab", roots, (a, b), strict=True)}
    with open_files(views) as connection:
        connection.execute(PAIRS.format(same=_same_text(roots, a, b)))
        by_class, macros = a.target.has_classes, macros_of(a.target)
        splits = _rows(connection, BY_SPLIT.format(tolerance=settings.tolerance, answer=macros.answer, kl=macros.kl))
        # Argmax and KL divergence are meaningless for a single logit.
        if a.target.is_score:
            splits = [{k: v for k, v in row.items() if k not in ("agreement", "kl")} for row in splits]
        return Diff(
            {
                key: (a.settings.get(key), b.settings.get(key))
                for key in sorted(a.settings.keys() | b.settings.keys())
                if a.settings.get(key) != b.settings.get(key)
            },
            splits,
            _named(_rows(connection, BY_CLASS), a.target.names) if by_class else [],
            _rows(connection, CALIBRATION) if by_class else [],
        )


def _open(root: Path, allow_unverified: bool) -> SetRecord:
    advice = "`distill diff` compares the logits of a task"
    record = usable_record(root, allow_unverified, "examples", advice)
    # Checksums first: a damaged file would show up as a difference between the teachers.
    require_shards(root, record, record.shards)
    return record


def _same_text(roots: list[Path], a: SetRecord, b: SetRecord) -> str:
    """Returns the SQL that compares the texts, directly or by their hashes, which also cover the tokenizer."""
    if a.tokenizer.sha256 == b.tokenizer.sha256:
        return SAME_HASH
    if a.has_text and b.has_text:
        return SAME_SENTENCES
    raise ConfigError(
        f"{roots[0]} and {roots[1]}: one has no text, and hashes of texts under different tokenizers always "
        "differ. Use `distill join` to add your texts first"
    )


def _named(rows: Rows, names: tuple[str, ...]) -> Rows:
    known = dict(enumerate(names))
    # an unverified set may have another number of logits
    return [row | {"label": known.get(row["label"], row["label"])} for row in rows]


def _rows(connection: duckdb.DuckDBPyConnection, sql: str) -> Rows:
    rows: Rows = to_arrow(select(connection, sql)).to_pylist()
    return rows
