"""The README.md of a student's folder: what it is, how good, from where."""

from importlib.resources import files
from typing import Any

import yaml

from pipeline.console import size
from pipeline.training.run_record import RunRecord
from student.model.architecture import TaskConfig
from student.model.words import summary

CARD_FILE = "README.md"
KINDS = {
    "bert": "A BERT of few layers, a student of **{task}**",
    "lstm": "A student of **{task}**, of LSTMs",
    "biattentive": "A student of **{task}**, of LSTMs with attention between sentences",
}
SUMS = "A student of **{task}** without attention or layers"
ANSWERS = {"token_labels": ", which labels words and finds their spans"}
PIPELINE_TAGS = {"examples": "text-classification", "token_labels": "token-classification"}
NEEDS = (
    "It needs `distill-offline` and neither transformers nor the teacher.",
    "It needs `distill-offline`, or transformers, to which it is a `BertForSequenceClassification`.",
)


def card_text(config: TaskConfig, num_parameters: int, num_bytes: int, record: RunRecord | None = None) -> str:
    """Fills the template.

    Args:
        config: the architecture.
        num_parameters: all of them.
        num_bytes: of the weights.
        record: the content of ``run.json``, if there is one; it holds the scores and the command.
    """
    template = files("student.model").joinpath("card.md").read_text(encoding="utf-8")
    call = 'predict(["A sentence."], ["Another."])' if config.is_pair else 'predict(["A sentence."])'
    values = {
        "front_matter": yaml.safe_dump(_front_matter(config), sort_keys=False).strip(),
        "title": f"{config.task} student",
        "kind": KINDS.get(config.embedding, SUMS).format(task=config.task) + ANSWERS.get(config.rows, ""),
        "architecture": "; ".join(summary(config).values()),
        "num_parameters": f"{num_parameters:,}",
        "bytes": size(num_bytes),
        "scores": _scores(record) if record else "Its scores were not recorded.",
        "example": f"print({call})",
        "needs": NEEDS[config.is_hugging_face],
        "names": ", ".join(f"`{name}`" for name in config.target.names),
        "thresholds": _thresholds(record) if record else "",
        "origin": _origin(record) if record else "",
    }
    for key, value in values.items():
        template = template.replace("{{" + key + "}}", value)
    return template.rstrip() + "\n"


def _front_matter(config: TaskConfig) -> dict[str, Any]:
    family = (config.embedding,) if config.embedding in KINDS else ("cmow", "matrix-embeddings")
    return {
        "library_name": "distill",
        "pipeline_tag": PIPELINE_TAGS[config.rows],
        "tags": ["distillation", *family, config.task],
    }


def _scores(record: RunRecord) -> str:
    lines = ["| split | metric | student | 95 % interval | teacher | guessing |", "|---|---|---|---|---|---|"]
    for split, parts in record["result"]["evaluation"].items():
        for name, value in parts["gold"].items():
            low, high = parts["interval"][name]
            others = f"{parts['teacher'][name]:.4f} | {parts['majority'][name]:.4f}"
            lines.append(f"| {split} | {name} | {value:.4f} | {low:.4f} to {high:.4f} | {others} |")
    return "\n".join(lines)


def _thresholds(record: RunRecord) -> str:
    """From which probability on each label holds, of a multi-label student."""
    thresholds = record["result"].get("thresholds", {})
    named = ", ".join(f"`{name}` {p:.2f}" for name, p in thresholds.items())
    if not named:
        return ""
    first = next(iter(record["result"]["best"]["metrics"]))  # of all that the student was scored on
    chosen = f"They were chosen by F1 on the split `{first}`: scores by them on that split flatter."
    return f" Any number of them may hold, each from its probability on: {named}. {chosen}"


def _origin(record: RunRecord) -> str:
    settings = record["settings"]
    lines = [
        "## Where it comes from",
        "",
        f"- command: `{record['command']}`",
        *(f"- logit set: fingerprint `{fingerprint}`" for fingerprint in settings["logit_set_fingerprints"]),
        f"- rows: {settings['rows']:,}" + (f", `{settings['query']}`" if settings["query"] else ""),
        f"- written with: {', '.join(f'{name} {v}' for name, v in record['result']['versions'].items())}",
    ]
    return "\n".join(lines)
