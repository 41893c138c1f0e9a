"""The set's README.md: a dataset card that people read and `datasets.load_dataset` understands."""

import html
import re
from importlib.resources import files
from textwrap import shorten

import yaml

from pipeline.logit_set.parts import AugmentationRecord
from pipeline.logit_set.record import ExamplesManifest, SetManifest, TokensManifest, augmentation_of, has_text
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


def card_text(manifest: SetManifest) -> str:
    """Fills the card's template from the manifest."""
    name = "card_tokens.md" if isinstance(manifest, TokensManifest) else "card.md"
    template = files("pipeline.logit_set").joinpath(name).read_text(encoding="utf-8")
    values = {
        "front_matter": yaml.safe_dump(_front_matter(manifest), sort_keys=False).strip(),
        "name": manifest.name,
        "teacher": _plain(manifest.teacher.name),
        "weights": _code(manifest.teacher.weights_sha256[:16]),
        "parameters": f"{manifest.teacher.num_parameters:,}",
        "precision": _plain(manifest.precision),
        "max_seq_length": str(manifest.max_seq_length),
        "source": _plain(manifest.source),
        "licence": _plain(manifest.licence),
        "warning": "" if is_open(manifest.licence) else " (whether the texts may be passed on is unclear)",
        "splits": _splits_table(manifest),
        "notes": "\n".join(f"- {_plain(note)}" for note in manifest.notes) or "- nothing unusual",
        "command": _code(manifest.command),
        "fingerprint": manifest.fingerprint,
        "versions": ", ".join(f"{_plain(name)} {_plain(version)}" for name, version in manifest.versions.items()),
        "first_split": next(iter(manifest.splits)),
        **_own_values(manifest),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def _own_values(manifest: SetManifest) -> dict[str, str]:
    """What only one kind of set has to say."""
    if isinstance(manifest, TokensManifest):
        return {
            "corpus": _plain(manifest.corpus.name),
            "codec": _plain(str(manifest.codec)),
            "packing": _plain(manifest.corpus.packing),
            "min_seq_length": str(manifest.corpus.min_seq_length),
            "probability": f"{manifest.masking.probability:.0%}",
            "masking": _plain(manifest.masking.kind),
            "num_copies": str(manifest.masking.num_copies),
            "seed": str(manifest.masking.seed),
            "codec_columns": CODEC_COLUMNS[manifest.codec.name],
        }
    assert isinstance(manifest, ExamplesManifest)
    augmentation = augmentation_of(manifest)
    return {
        "task": _plain(manifest.task.name),
        "num_logits": str(manifest.target.num_logits),
        "names": ", ".join(f"`{_code(name)}`" for name in manifest.target.names).replace("|", "\\|"),
        "text_columns": TEXT_COLUMNS if has_text(manifest) else TEXT_FREE_COLUMNS,
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
    """Text of a manifest fit for a line of Markdown: whoever wrote it, it is no markup and stays on the line."""
    return html.escape(visible(" ".join(text.split())), quote=False).replace("[", "\\[")


def _code(text: str) -> str:
    """Text of a manifest fit to stand between backticks."""
    return html.escape(visible(" ".join(text.split())), quote=False).replace("`", "'")


def _cell(sentences: tuple[str, ...]) -> str:
    """Sentences fit for a table of Markdown: on one line, without marks of its own, and not too long."""
    text = visible(" ".join(" ‖ ".join(sentences).split()))
    safe = html.escape(shorten(text, 300, placeholder=" …"), quote=False)
    return safe.replace("|", "\\|").replace("](", "]\\(")  # neither columns nor links of its own


def _front_matter(manifest: SetManifest) -> dict[str, object]:
    folder, is_corpus = manifest.shards[0].folder, isinstance(manifest, TokensManifest)
    data_files = [{"split": split, "path": f"{folder}/{split}-*.parquet"} for split in manifest.splits]
    size = next((text for limit, text in SIZE_CATEGORIES.items() if manifest.num_rows < limit), "n>1M")
    return {
        "pretty_name": f"{manifest.name}: logits of {manifest.teacher.name}",
        "license": "other",
        "license_name": manifest.licence,
        "task_categories": ["fill-mask" if is_corpus else "text-classification"],
        "annotations_creators": ["machine-generated"],
        "size_categories": [size],
        "tags": ["distillation", "teacher-logits", "distill"],
        "configs": [{"config_name": folder, "default": True, "data_files": data_files}],
    }


def _splits_table(manifest: SetManifest) -> str:
    lines = ["| split | rows | files | bytes | teacher against gold |", "|---|---|---|---|---|"]
    for split in manifest.splits:
        shards = manifest.shards_of(split)
        scores = ", ".join(f"{_cell((k,))} {v:.4f}" for k, v in manifest.scores.get(split, {}).items()) or "no gold"
        total = sum(shard.bytes or 0 for shard in shards)
        lines.append(f"| {split} | {manifest.rows_of(split):,} | {len(shards)} | {total:,} | {scores} |")
    return "\n".join(lines)


OPEN = re.compile(r"\b(CC0|CC[ -]BY(-SA)?|Apache|MIT|BSD|GFDL|public domain|ODC-By|PDDL)\b", re.IGNORECASE)
DOUBTS = re.compile(
    r"\b(other|unknown|terms|non[- ]?commercial|NC|ND|internal|research|not|only|proprietary)\b", re.IGNORECASE
)


def is_open(licence: str) -> bool:
    """Whether a licence, as manifests write it, lets everybody pass the texts on."""
    return bool(OPEN.search(licence)) and not DOUBTS.search(licence)
