"""The set's README.md: a dataset card that people read and `datasets.load_dataset` understands."""

from importlib.resources import files

import yaml

from pipeline.logit_set.manifest import SetManifest

SIZE_CATEGORIES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}


def card_text(manifest: SetManifest) -> str:
    """Fills the card's template from the manifest."""
    template = files("pipeline.logit_set").joinpath("card.md").read_text(encoding="utf-8")
    values = {
        "front_matter": yaml.safe_dump(_front_matter(manifest), sort_keys=False).strip(),
        "name": manifest.name,
        "task": manifest.task.name,
        "teacher": manifest.teacher.name,
        "weights": manifest.teacher.weights_sha256[:16],
        "parameters": f"{manifest.teacher.num_parameters:,}",
        "precision": manifest.precision,
        "max_seq_length": str(manifest.max_seq_length),
        "source": manifest.source,
        "licence": manifest.task.licence,
        "num_logits": str(manifest.target.num_logits),
        "names": ", ".join(f"`{name}`" for name in manifest.target.names),
        "splits": _splits_table(manifest),
        "notes": "\n".join(f"- {note}" for note in manifest.notes) or "- nothing unusual",
        "command": manifest.command,
        "fingerprint": manifest.fingerprint,
        "versions": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
        "first_split": next(iter(manifest.splits)),
    }
    for key, value in values.items():
        template = template.replace("{{" + key + "}}", value)
    return template


def _front_matter(manifest: SetManifest) -> dict[str, object]:
    data_files = [{"split": split, "path": f"examples/{split}-*.parquet"} for split in manifest.splits]
    size = next((text for limit, text in SIZE_CATEGORIES.items() if manifest.num_rows < limit), "n>1M")
    return {
        "pretty_name": f"{manifest.name}: logits of {manifest.teacher.name}",
        "license": "other",
        "license_name": manifest.task.licence,
        "task_categories": ["text-classification"],
        "annotations_creators": ["machine-generated"],
        "size_categories": [size],
        "tags": ["distillation", "teacher-logits", "distill"],
        "configs": [{"config_name": "examples", "default": True, "data_files": data_files}],
    }


def _splits_table(manifest: SetManifest) -> str:
    lines = ["| split | rows | files | bytes | teacher against gold |", "|---|---|---|---|---|"]
    for split, record in manifest.splits.items():
        shards = manifest.shards_of(split)
        scores = ", ".join(f"{k} {v:.4f}" for k, v in manifest.scores.get(split, {}).items()) or "no gold"
        total = sum(shard.bytes or 0 for shard in shards)
        lines.append(f"| {split} | {record.rows:,} | {len(shards)} | {total:,} | {scores} |")
    return "\n".join(lines)
