"""The README.md of a student's folder: what it is, how good, from where."""

from importlib.resources import files
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

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
    """Fills the template ``card.md``.

    Args:
        config: the architecture.
        num_parameters: all of them.
        num_bytes: of the weights.
        record: the content of ``run.json``, if there is one; it holds the scores and the command.
    """
    family = (config.embedding,) if config.embedding in KINDS else ("cmow", "matrix-embeddings")
    data = ModelCardData(
        library_name="distill", pipeline_tag=PIPELINE_TAGS[config.rows], tags=["distillation", *family, config.task]
    )
    return filled(
        files("student.model").joinpath("card.md").read_text(encoding="utf-8"),
        data,
        config=config,
        kind=KINDS.get(config.embedding, SUMS).format(task=config.task) + ANSWERS.get(config.rows, ""),
        architecture="; ".join(summary(config).values()),
        num_parameters=f"{num_parameters:,}",
        bytes=size(num_bytes),
        needs=NEEDS[config.is_hugging_face],
        record=record,
        thresholds=record["result"].get("thresholds", {}) if record else {},
    )


def filled(template: str, data: ModelCardData, **values: Any) -> str:
    """Returns the text of a card that Jinja makes of a template, with its metadata as YAML at the top."""
    return str(ModelCard.from_template(data, template_str=template, **values)).rstrip() + "\n"
