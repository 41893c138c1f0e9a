"""A student's architecture in words, and the README.md of its folder."""

from importlib.resources import files
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from pipeline.console import size
from pipeline.record_file import Record
from student.encoders.specs import Sums
from student.model.architecture import EncoderConfig, TaskConfig
from student.model.heads import HEADS, PAIRINGS


def summary(config: TaskConfig) -> dict[str, str]:
    """Returns a student's architecture in words, by part."""
    width = f", {config.hidden_size} wide" if config.hidden_size else ""
    words = {"embedding": embedding_summary(config)}
    if config.table_dtype != "float32":
        words["tables"] = f"{config.table_dtype} tables"
    if config.weights == "rounded":
        words["weights"] = "rounded on disk"
    if config.used_rows is not None:
        words["tokens"] = used_summary(config)
    if config.pairing and config.is_pair:
        words["pairs"] = PAIRINGS[config.pairing].words
    return words | {"head": HEADS[config.head].words + width}


def used_summary(config: EncoderConfig) -> str:
    """Returns in words how many tokens have rows that were trained or did not start from noise."""
    if config.used_rows is None:
        return "tokens not counted"
    return f"{config.used_rows:,} of {config.num_tokens:,} tokens known, the others neutral"


def embedding_summary(config: EncoderConfig) -> str:
    """Returns a description of what an encoder computes from the tokens' embeddings."""
    return f"{config.encoder.name}: {config.encoder.summary}"


CARD_FILE = "README.md"
# Key of a run's record: the metadata of `pipeline.sets.card.hub_metadata`.
HUB = "hub"
NEEDS = (
    "It needs `distill-offline` and neither transformers nor the teacher.",
    "It needs `distill-offline`, or transformers, which loads it as a `BertForSequenceClassification`.",
)


def tags_of(config: EncoderConfig) -> list[str]:
    """Returns the tags by which the hub finds students with an encoder."""
    family = ("cmow", "matrix-embeddings") if isinstance(config.encoder, Sums) else (config.embedding,)
    return ["distillation", *family]


def card_text(config: TaskConfig, num_parameters: int, num_bytes: int, record: Record | None = None) -> str:
    """Fills the template ``card.md``.

    Args:
        config: the architecture.
        num_parameters: the number of all parameters.
        num_bytes: the size of the weights.
        record: the content of ``run.json`` with scores and command, if there is one.
    """
    results = _eval_results(config, record) if record else []
    known = (record or {}).get(HUB, {})
    data = ModelCardData(
        language=known.get("language"),
        license=known.get("license"),
        library_name="distill",
        pipeline_tag=config.pipeline_tag,
        base_model=known.get("base_model"),
        datasets=[one["id"] for one in known.get("datasets", [])] or None,
        tags=[*tags_of(config), config.task],
        metrics=[*dict.fromkeys(result.metric_type for result in results)] or None,
        model_name=f"{config.task} student" if results else None,
        eval_results=results or None,
    )
    return filled(
        files("student.model").joinpath("card.md").read_text(encoding="utf-8"),
        data,
        config=config,
        kind=config.encoder.card.format(task=config.task) + config.card_ending,
        architecture="; ".join(summary(config).values()),
        num_parameters=f"{num_parameters:,}",
        bytes=size(num_bytes),
        needs=NEEDS[config.is_hugging_face],
        record=record,
        thresholds=record["result"].get("thresholds", {}) if record else {},
    )


def _eval_results(config: TaskConfig, record: Record) -> list[EvalResult]:
    """Returns the scores as entries of the hub's ``model-index``."""
    # Scores belong to one data set of the hub only if all rows came from it.
    datasets = record.get(HUB, {}).get("datasets", [])
    dataset = datasets[0] if len(datasets) == 1 else {"id": config.task}
    return [
        EvalResult(
            task_type=config.pipeline_tag,
            dataset_type=dataset["id"],
            dataset_name=config.task,
            dataset_config=dataset.get("config"),
            dataset_split=split,
            metric_type=metric,
            metric_value=value,
        )
        for split, parts in record["result"]["evaluation"].items()
        for metric, value in parts["gold"].items()
    ]


def filled(template: str, data: ModelCardData, **values: Any) -> str:
    """Returns the text of a card that Jinja makes of a template, with its metadata as YAML at the top."""
    # The library appends blank lines that differ between its versions.
    return str(ModelCard.from_template(data, template_str=template, **values)).rstrip() + "\n"
