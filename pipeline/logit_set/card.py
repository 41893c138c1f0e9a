"""The set's README.md: a dataset card that people read and `datasets.load_dataset` understands."""

import html
import re
from importlib.resources import files
from textwrap import shorten

import yaml

from pipeline.logit_set.parts import AugmentationRecord
from pipeline.logit_set.record import ExamplesRecord, SetRecord, TokensRecord, augmentation_of, has_text
from pipeline.untrusted import visible

CODEC_COLUMNS = {
    "dense": "| `log_probs`, `log_z` | bits of float16: every log-probability; the logit is log_prob + log_z |",
    "topk": "| `candidates`, `log_probs`, `log_z` | the likeliest ids, bits of float16 of their log-probabilities; "
    "the logit is log_prob + log_z |",
    "sampled": "| `candidates`, `counts` | the ids that were drawn from the teacher's distribution, and how often |",
    "hidden": "| `hidden` | bits of float16: the input of the teacher's last layer, which is `decoder.safetensors` |",
}
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
    name = "card_tokens.md" if isinstance(record, TokensRecord) else "card.md"
    template = files("pipeline.logit_set").joinpath(name).read_text(encoding="utf-8")
    values = {
        "front_matter": yaml.safe_dump(_front_matter(record), sort_keys=False).strip(),
        "name": record.name,
        "teacher": _plain(record.teacher.name),
        "weights": _code(record.teacher.weights_sha256[:16]),
        "parameters": f"{record.teacher.num_parameters:,}",
        "precision": _plain(record.precision),
        "max_seq_length": str(record.max_seq_length),
        "source": _plain(record.source),
        "licence": _plain(record.licence),
        "warning": "" if is_open(record.licence) else " (whether the texts may be passed on is unclear)",
        "splits": _splits_table(record),
        "notes": "\n".join(f"- {_plain(note)}" for note in record.notes) or "- nothing unusual",
        "command": _code(record.command),
        "fingerprint": record.fingerprint,
        "versions": ", ".join(f"{_plain(name)} {_plain(version)}" for name, version in record.versions.items()),
        "first_split": next(iter(record.splits)),
        **_own_values(record),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def _own_values(record: SetRecord) -> dict[str, str]:
    """What only one kind of set has to say."""
    if isinstance(record, TokensRecord):
        return {
            "corpus": _plain(record.corpus.name),
            "codec": _plain(str(record.codec)),
            "packing": _plain(record.corpus.packing),
            "min_seq_length": str(record.corpus.min_seq_length),
            "probability": f"{record.masking.probability:.0%}",
            "masking": _plain(record.masking.kind),
            "num_copies": str(record.masking.num_copies),
            "seed": str(record.masking.seed),
            "codec_columns": CODEC_COLUMNS[record.codec.name],
        }
    assert isinstance(record, ExamplesRecord)
    augmentation = augmentation_of(record)
    return {
        "task": _plain(record.task.name),
        "num_logits": str(record.target.num_logits),
        "names": ", ".join(f"`{_code(name)}`" for name in record.target.names).replace("|", "\\|"),
        "text_columns": TEXT_COLUMNS if has_text(record) else TEXT_FREE_COLUMNS,
        "augmentation": _augmentation(augmentation) if augmentation else "",
    }


def _augmentation(record: AugmentationRecord) -> str:
    """What was added to the training rows, and some of it."""
    counts = "\n".join(
        f"| {name} | {value:,} |" if isinstance(value, int) else f"| {name} | {value} |"
        for name, value in record.lines().items()
    )
    settings = ", ".join(_plain(f"{name} {value}") for name, value in record.settings.items())
    rows = [
        f"| {row.source_row}:{row.variant} | {_cell((row.origin,))} | {_cell(row.original)} | {_cell(row.text)} |"
        for row in record.sample
    ]
    sample = "" if not rows else "\n".join(["| row | origin | original | variant |", "|---|---|---|---|", *rows])
    return f"""
## Variants of training rows

Their gold is null: changed words may have changed it. The key of the row that a variant was made from is its own with
variant 0.

| | |
|---|---|
{counts}

Settings: {settings}

{sample}
"""


def _plain(text: str) -> str:
    """Text of a record fit for a line of Markdown: whoever wrote it, it is no markup and stays on the line."""
    return html.escape(visible(" ".join(text.split())), quote=False).replace("[", "\\[")


def _code(text: str) -> str:
    """Text of a record fit to stand between backticks."""
    return html.escape(visible(" ".join(text.split())), quote=False).replace("`", "'")


def _cell(sentences: tuple[str, ...]) -> str:
    """Sentences fit for a table of Markdown: on one line, without marks of its own, and not too long."""
    text = visible(" ".join(" ‖ ".join(sentences).split()))
    safe = html.escape(shorten(text, 300, placeholder=" …"), quote=False)
    return safe.replace("|", "\\|").replace("](", "]\\(")  # neither columns nor links of its own


def _front_matter(record: SetRecord) -> dict[str, object]:
    folder, is_corpus = record.shards[0].folder, isinstance(record, TokensRecord)
    data_files = [{"split": split, "path": f"{folder}/{split}-*.parquet"} for split in record.splits]
    size = next((text for limit, text in SIZE_CATEGORIES.items() if record.num_rows < limit), "n>1M")
    return {
        "pretty_name": f"{record.name}: logits of {record.teacher.name}",
        "license": "other",
        "license_name": record.licence,
        "task_categories": ["fill-mask" if is_corpus else "text-classification"],
        "annotations_creators": ["machine-generated"],
        "size_categories": [size],
        "tags": ["distillation", "teacher-logits", "distill"],
        "configs": [{"config_name": folder, "default": True, "data_files": data_files}],
    }


def _splits_table(record: SetRecord) -> str:
    lines = ["| split | rows | files | bytes | teacher against gold |", "|---|---|---|---|---|"]
    for split in record.splits:
        shards = record.shards_of(split)
        scores = ", ".join(f"{_cell((k,))} {v:.4f}" for k, v in record.scores.get(split, {}).items()) or "no gold"
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
