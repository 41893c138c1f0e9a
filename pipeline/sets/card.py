"""Writes a set's README.md, a dataset card for people that also configures `datasets.load_dataset`."""

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.files import write_text
from pipeline.sets.kinds import kind_of
from pipeline.sets.record import SetRecord, write_set_record
from pipeline.sets.record_parts import reading
from pipeline.untrusted import cell, code, plain

if TYPE_CHECKING:
    from huggingface_hub import DatasetCardData

CARD_FILE = "README.md"
TEXT_COLUMNS = """| `sentence1`, `sentence2` | the text. `sentence2` is null for single sentences |
| `ids1`, `ids2` | token ids of each sentence, without special tokens, as the teacher read them (`tokenizer.json`) |
| `text_hash` | 16 bytes over text and tokenizer |"""
TEXT_FREE_COLUMNS = (
    "| `text_hash` | 16 bytes over text and tokenizer. The texts are not in this set. `distill join` joins your copy "
    "of them with the logits. Hashes are not anonymous: anyone who guesses a text can check whether it is in the set |"
)
SIZE_CATEGORIES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}


def card_text(record: SetRecord) -> str:
    """Fills the template of the record's kind, and the common one of all kinds."""
    # Takes half a second to import, which readers of sets do not need.
    from huggingface_hub import DatasetCard

    stored = record.signals.stored
    template = files("pipeline.sets").joinpath("card_parts.md").read_text(encoding="utf-8")
    card = DatasetCard.from_template(
        _card_data(record),
        template_str=template + kind_of(record).card_template(),
        record=record,
        reading=reading(record.windows, record.max_seq_length) + _untruncated(record),
        text_columns=TEXT_COLUMNS if record.has_text else TEXT_FREE_COLUMNS,
        signals=plain(" and ".join(map(str, stored))),
        signal_columns="\n".join(signal.card_lines() for signal in stored if signal.is_in_rows),
        sections="".join(signal.card_section() for signal in stored),
        number="{:,}".format,
        cell=cell,
        code=code,
        plain=plain,
        is_open=is_open,
    )
    return f"{card}\n"


def split_table(record: SetRecord) -> tuple[list[str], list[list[Any]]]:
    """Returns the columns and rows of a table of a set's splits: rows, files, and the teacher's scores."""
    metrics = list(dict.fromkeys(name for scores in record.scores.values() for name in scores))
    rows = [
        [
            split,
            record.rows_of(split),
            len(record.shards_of(split)),
            *(record.scores.get(split, {}).get(name) for name in metrics),
        ]
        for split in record.splits
    ]
    return ["split", "rows", "files", *(name.replace("_", " ") for name in metrics)], rows


def write_card_and_record(root: Path, record: SetRecord) -> None:
    """Writes a set's card and then its record.

    Raises:
        DataError: if the folder cannot be written.
    """
    # The record marks the set as verified, so it is written after everything that a verified set has.
    write_text(root / CARD_FILE, card_text(record))
    write_set_record(root, record)


def _untruncated(record: SetRecord) -> str:
    """Returns what windows guarantee. The notes list the only rows that are not read completely."""
    if record.windows is None:
        return ""
    whole = "a pair's longer sentence next to its shorter one" if record.is_pair else "nothing was truncated"
    return f": {whole}. The longest row has {record.max_seq_length:,}"


def hub_metadata(records: Sequence[SetRecord]) -> dict[str, Any]:
    """Returns the hub's metadata that sets have in common with a student trained on them, without unknown entries.

    Returns:
        ``license`` if all sets have the same, ``language``, ``datasets`` (``id`` and ``config`` of each), and
        ``base_model``, the hub ids of the teachers.
    """
    texts = [text for record in records if (text := record.task or record.corpus) is not None]
    licenses = {text.license for text in texts}
    found = {
        "license": licenses.pop() if len(licenses) == 1 else None,
        "language": sorted({text.language for text in texts if text.language}),
        "datasets": [json.loads(text) for text in sorted({t.hub.model_dump_json() for t in texts if t.hub})],
        "base_model": sorted({record.teacher.base_model for record in records if record.teacher.base_model}),
    }
    return {key: value for key, value in found.items() if value}


def _card_data(record: SetRecord) -> "DatasetCardData":
    """The metadata of the card, by which the hub lists the set and `datasets` finds its files."""
    from huggingface_hub import DatasetCardData

    data_files = [{"split": split, "path": f"{record.kind}/{split}-*.parquet"} for split in record.splits]
    size = next((text for limit, text in SIZE_CATEGORIES.items() if record.num_rows < limit), "n>1M")
    rows = {"config_name": record.kind, "default": True, "data_files": data_files}
    metadata = hub_metadata([record])
    return DatasetCardData(
        pretty_name=f"{record.name}: logits of {record.teacher.name}",
        language=metadata.get("language"),
        license=metadata.get("license", "other"),
        license_name=None if "license" in metadata else record.licence,
        source_datasets=[one["id"] for one in metadata.get("datasets", [])] or None,
        task_categories=[*dict.fromkeys(signal.task_category for signal in record.signals.stored)],
        annotations_creators=["machine-generated"],
        size_categories=[size],
        tags=["distillation", "teacher-logits", "distill"],
        configs=[rows, *(config for signal in record.signals.stored for config in signal.configs())],
    )


OPEN = re.compile(r"\b(CC0|CC[ -]BY(-SA)?|Apache|MIT|BSD|GFDL|public domain|ODC-By|PDDL)\b", re.IGNORECASE)
# A name such as "CC BY-NC" contains an open licence but is not open, and a wrong yes would publish protected texts.
DOUBTS = re.compile(
    r"\b(other|unknown|terms|non[- ]?commercial|NC|ND|internal|research|not|only|proprietary)\b", re.IGNORECASE
)


def is_open(licence: str) -> bool:
    """Whether a licence, in the words of a manifest, allows everybody to redistribute the texts."""
    return bool(OPEN.search(licence)) and not DOUBTS.search(licence)
