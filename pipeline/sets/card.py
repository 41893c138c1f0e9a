"""The set's README.md: a dataset card that people read and `datasets.load_dataset` understands."""

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from pipeline.files import write_text
from pipeline.sets.record import SetRecord, write_set_record
from pipeline.sets.record_parts import AugmentationRecord, UnlabelledRecord, reading
from pipeline.untrusted import cell, code, plain

CARD_FILE = "README.md"
TEXT_COLUMNS = """| `sentence1`, `sentence2` | the text; `sentence2` is null for single sentences |
| `ids1`, `ids2` | token ids of each sentence, without special tokens, as the teacher read them (`tokenizer.json`) |
| `text_hash` | 16 bytes over text and tokenizer |"""
TEXT_FREE_COLUMNS = (
    "| `text_hash` | 16 bytes over text and tokenizer. The texts are not in this set: who has them puts them beside "
    "the logits with `distill join`. The hash confirms a guess: who can guess a text sees that it is among these |"
)
SIZE_CATEGORIES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}


def card_text(record: SetRecord) -> str:
    """Fills the card's template from the record."""
    values = {
        "front_matter": yaml.safe_dump(_front_matter(record), sort_keys=False).strip(),
        "name": record.name,
        "teacher": plain(record.teacher.name),
        "speaker": _speaker(record),
        "max_seq_length": str(record.max_seq_length),
        "reading": reading(record.windows, record.max_seq_length) + _uncut(record),
        "source": plain(record.source),
        "licence": plain(record.licence),
        "warning": "" if is_open(record.licence) else " (whether the texts may be passed on is unclear)",
        "splits": _splits_table(record),
        "notes": "\n".join(f"- {plain(note)}" for note in record.notes) or "- nothing unusual",
        "command": code(record.command),
        "fingerprint": record.fingerprint,
        "versions": ", ".join(f"{plain(name)} {plain(version)}" for name, version in record.versions.items()),
        "first_split": next(iter(record.splits)),
        "dataset_name": plain(record.dataset_name),
        "text_columns": TEXT_COLUMNS if record.has_text else TEXT_FREE_COLUMNS,
        "signals": plain(" and ".join(map(str, record.signals.stored))),
        "signal_columns": "\n".join(signal.card_lines() for signal in record.signals.stored if signal.is_in_rows),
        "sections": "".join(signal.card_section() for signal in record.signals.stored),
        "augmentation": _augmentation(record.augmentation) if record.augmentation else "",
        "unlabelled": _unlabelled(record.unlabelled) if record.unlabelled else "",
        **record.row_kind.card_values(record),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], record.row_kind.card_template())


def write_card_and_record(root: Path, record: SetRecord) -> None:
    """Writes what a set says of itself, the record last.

    Raises:
        DataError: if the folder cannot be written.
    """
    write_text(root / CARD_FILE, card_text(record))
    write_set_record(root, record)


def _speaker(record: SetRecord) -> str:
    """What is known of the teacher besides its name."""
    teacher, seen = record.teacher, f"{code(record.teacher.sha256[:16])}…"
    if teacher.is_imported:
        return (
            f"of which nothing is known but its answers, imported from a file with SHA-256 `{seen}`: not its weights, "
            "its size, nor how it was asked and what it read"
        )
    return f"{teacher.num_parameters:,} parameters, weights SHA-256 `{seen}`, {plain(record.precision)}"


def _uncut(record: SetRecord) -> str:
    """What windows make sure of: the notes tell of the only rows that they do not read whole."""
    if record.windows is None:
        return ""
    whole = "a pair's longer sentence beside its shorter one" if record.is_pair else "nothing was cut"
    return f": {whole}; the longest row has {record.max_seq_length:,}"


def _augmentation(record: AugmentationRecord) -> str:
    """What was added to the rows of a split, and some of it."""
    settings = ", ".join(plain(f"{name} {value}") for name, value in record.settings.items())
    rows = [
        f"| {row.source_row}:{row.variant} | {cell((row.origin,))} | {cell(row.original)} | {cell(row.text)} |"
        for row in record.sample
    ]
    sample = "" if not rows else "\n".join(["| row | origin | original | variant |", "|---|---|---|---|", *rows])
    return f"""
## {plain(record.title)}

Their gold is null: changed words may have changed it. The key of the row that a variant was made from is its own with
variant 0.

{_counts(record.lines())}

Settings: {settings}

{sample}
"""


def _unlabelled(record: UnlabelledRecord) -> str:
    """Which rows were added without gold, and which were left out."""
    return f"""
## Unlabelled rows

The rows of `train` from source row {record.first_row:,} on are text without gold, beside the task's own: their `origin`
is `unlabelled`.

{_counts(record.lines())}

Settings: {", ".join(plain(f"{name} {value}") for name, value in record.settings.items())}
"""


def _counts(lines: Mapping[str, int | float | str]) -> str:
    shown = {name: f"{value:,}" if isinstance(value, int) else cell((str(value),)) for name, value in lines.items()}
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in shown.items())])


def _front_matter(record: SetRecord) -> dict[str, object]:
    data_files = [{"split": split, "path": f"{record.kind}/{split}-*.parquet"} for split in record.splits]
    size = next((text for limit, text in SIZE_CATEGORIES.items() if record.num_rows < limit), "n>1M")
    rows = {"config_name": record.kind, "default": True, "data_files": data_files}
    return {
        "pretty_name": f"{record.name}: logits of {record.teacher.name}",
        "license": "other",
        "license_name": record.licence,
        "task_categories": [*dict.fromkeys(signal.task_category for signal in record.signals.stored)],
        "annotations_creators": ["machine-generated"],
        "size_categories": [size],
        "tags": ["distillation", "teacher-logits", "distill"],
        "configs": [rows, *(config for signal in record.signals.stored for config in signal.configs())],
    }


def _splits_table(record: SetRecord) -> str:
    lines = ["| split | rows | files | bytes | teacher against gold |", "|---|---|---|---|---|"]
    for split in record.splits:
        shards = record.shards_of(split)
        scores = ", ".join(f"{cell((k,))} {v:.4f}" for k, v in record.scores.get(split, {}).items()) or "no gold"
        total = sum(shard.bytes or 0 for shard in shards)
        lines.append(f"| {split} | {record.rows_of(split):,} | {len(shards)} | {total:,} | {scores} |")
    return "\n".join(lines)


OPEN = re.compile(r"\b(CC0|CC[ -]BY(-SA)?|Apache|MIT|BSD|GFDL|public domain|ODC-By|PDDL)\b", re.IGNORECASE)
DOUBTS = re.compile(
    r"\b(other|unknown|terms|non[- ]?commercial|NC|ND|internal|research|not|only|proprietary)\b", re.IGNORECASE
)


def is_open(licence: str) -> bool:
    """Whether a licence, as manifests write it, lets everybody pass the texts on."""
    return bool(OPEN.search(licence)) and not DOUBTS.search(licence)
