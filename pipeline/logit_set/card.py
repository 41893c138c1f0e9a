"""The set's README.md: a dataset card that people read and `datasets.load_dataset` understands."""

import html
from importlib.resources import files
from textwrap import shorten

import yaml

from pipeline.logit_set.augmentation import AugmentationRecord
from pipeline.logit_set.manifest import AugmentedManifest, ExamplesManifest, SetManifest, TokensManifest

CODEC_COLUMNS = {
    "dense": "| `log_probs`, `log_z` | bits of float16: every log-probability; the logit is log_prob + log_z |",
    "topk": "| `candidates`, `log_probs`, `log_z` | the likeliest ids, bits of float16 of their log-probabilities; "
    "the logit is log_prob + log_z |",
    "sampled": "| `candidates`, `counts` | the ids that were drawn from the teacher's distribution, and how often |",
    "hidden": "| `hidden` | bits of float16: the input of the teacher's last layer, which is `decoder.safetensors` |",
}
SIZE_CATEGORIES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}


def card_text(manifest: SetManifest) -> str:
    """Fills the card's template from the manifest."""
    name = "card_tokens.md" if isinstance(manifest, TokensManifest) else "card.md"
    template = files("pipeline.logit_set").joinpath(name).read_text(encoding="utf-8")
    values = {
        "front_matter": yaml.safe_dump(_front_matter(manifest), sort_keys=False).strip(),
        "name": manifest.name,
        "teacher": manifest.teacher.name,
        "weights": manifest.teacher.weights_sha256[:16],
        "parameters": f"{manifest.teacher.num_parameters:,}",
        "precision": manifest.precision,
        "max_seq_length": str(manifest.max_seq_length),
        "source": manifest.source,
        "licence": manifest.licence,
        "splits": _splits_table(manifest),
        "notes": "\n".join(f"- {note}" for note in manifest.notes) or "- nothing unusual",
        "command": manifest.command,
        "fingerprint": manifest.fingerprint,
        "versions": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
        "first_split": next(iter(manifest.splits)),
        **_own_values(manifest),
    }
    for key, value in values.items():
        template = template.replace("{{" + key + "}}", value)
    return template


def _own_values(manifest: SetManifest) -> dict[str, str]:
    """What only one kind of set has to say."""
    if isinstance(manifest, TokensManifest):
        return {
            "corpus": manifest.corpus.name,
            "codec": str(manifest.codec),
            "packing": manifest.corpus.packing,
            "min_seq_length": str(manifest.corpus.min_seq_length),
            "probability": f"{manifest.masking.probability:.0%}",
            "masking": manifest.masking.kind,
            "num_copies": str(manifest.masking.num_copies),
            "seed": str(manifest.masking.seed),
            "codec_columns": CODEC_COLUMNS[manifest.codec.name],
        }
    assert isinstance(manifest, ExamplesManifest)
    return {
        "task": manifest.task.name,
        "num_logits": str(manifest.target.num_logits),
        "names": ", ".join(f"`{name}`" for name in manifest.target.names),
        "augmentation": _augmentation(manifest.augmentation) if isinstance(manifest, AugmentedManifest) else "",
    }


def _augmentation(record: AugmentationRecord) -> str:
    """What was added to the training rows, and some of it."""
    counts = "\n".join(
        f"| {name} | {value:,} |" if isinstance(value, int) else f"| {name} | {value} |"
        for name, value in record.lines().items()
    )
    settings = ", ".join(f"{name} {value}" for name, value in record.settings.items())
    rows = [
        f"| {row.source_row}:{row.variant} | {row.origin} | {_cell(row.original)} | {_cell(row.text)} |"
        for row in record.sample
    ]
    sample = "\n".join(["| row | origin | original | variant |", "|---|---|---|---|", *rows])
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


def _cell(sentences: tuple[str, ...]) -> str:
    """Sentences fit for a table of Markdown: on one line, without marks of its own, and not too long."""
    text = " ".join(" ‖ ".join(sentences).split())
    return html.escape(shorten(text, 300, placeholder=" …"), quote=False).replace("|", "\\|")


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
        scores = ", ".join(f"{k} {v:.4f}" for k, v in manifest.scores.get(split, {}).items()) or "no gold"
        total = sum(shard.bytes or 0 for shard in shards)
        lines.append(f"| {split} | {manifest.rows_of(split):,} | {len(shards)} | {total:,} | {scores} |")
    return "\n".join(lines)
