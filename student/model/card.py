"""A student's architecture in words, and the README.md of its folder."""

from importlib.resources import files
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from pipeline.console import size
from pipeline.record_file import Record
from student.encoders.kinds import ENCODERS
from student.encoders.recurrent import state_size_of
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
    words, parts = ENCODERS[config.embedding].words, []
    if config.lstm is not None:
        tables = ", of which one is frozen" if config.lstm.channels == 2 else ""
        channels = f"{config.lstm.channels} x {config.vector_size}" if tables else str(config.vector_size)
        return f"{words}: {config.lstm.hidden_size} wide in each direction, over vectors of {channels}{tables}"
    if config.embedding == "recurrent":
        states = f"states of {state_size_of(config.vector_size)} in each direction"
        parts.append(f"{states}, sums and maxima, over vectors of {config.vector_size}")
    elif not ENCODERS[config.embedding].has_sums:
        parts.append(f"vectors of {config.vector_size}")
    elif config.vector_size:
        pooled = "sums and maxima" if config.pooling == "sum+max" else "sums"
        parts.append(f"{pooled} of vectors of {config.vector_size}")
    if config.bert is not None:
        heads = f"{config.bert.num_attention_heads} heads"
        parts = [f"{config.bert.num_hidden_layers} layers of attention, {config.vector_size} wide, {heads}"]
        parts[0] += ", whose states of [CLS] are averaged" if config.pooler else ""
    if config.matrix_size:
        ways = "both ways" if config.bidirectional else "left to right"
        parts.append(f"products of {config.matrix_size} x {config.matrix_size} matrices, {ways}")
    if config.num_bigrams:
        parts.append(f"sums of vectors of {config.bigram_size} for {config.num_bigrams:,} pairs of neighbouring tokens")
    windows = f", averaged over windows of {config.window_size} tokens" if config.window_size else ""
    return f"{words}: {' and '.join(parts)}{windows}"


CARD_FILE = "README.md"
# Key of a run's record: the metadata of `pipeline.sets.card.hub_metadata`.
HUB = "hub"
KINDS = {
    "bert": "A BERT with few layers, a student of **{task}**",
    "recurrent": "A student of **{task}** with an element-wise recurrence",
    "lstm": "A student of **{task}** with LSTMs",
    "aligned": "A student of **{task}** with attention between the token vectors of two sentences",
    "biattentive": "A student of **{task}** with LSTMs and attention between sentences",
}
SUMS = "A student of **{task}** without attention or layers"
NEEDS = (
    "It needs `distill-offline` and neither transformers nor the teacher.",
    "It needs `distill-offline`, or transformers, which loads it as a `BertForSequenceClassification`.",
)


def card_text(config: TaskConfig, num_parameters: int, num_bytes: int, record: Record | None = None) -> str:
    """Fills the template ``card.md``.

    Args:
        config: the architecture.
        num_parameters: the number of all parameters.
        num_bytes: the size of the weights.
        record: the content of ``run.json`` with scores and command, if there is one.
    """
    family = (config.embedding,) if config.embedding in KINDS else ("cmow", "matrix-embeddings")
    results = _eval_results(config, record) if record else []
    known = (record or {}).get(HUB, {})
    data = ModelCardData(
        language=known.get("language"),
        license=known.get("license"),
        library_name="distill",
        pipeline_tag=config.pipeline_tag,
        base_model=known.get("base_model"),
        datasets=[one["id"] for one in known.get("datasets", [])] or None,
        tags=["distillation", *family, config.task],
        metrics=[*dict.fromkeys(result.metric_type for result in results)] or None,
        model_name=f"{config.task} student" if results else None,
        eval_results=results or None,
    )
    return filled(
        files("student.model").joinpath("card.md").read_text(encoding="utf-8"),
        data,
        config=config,
        kind=KINDS.get(config.embedding, SUMS).format(task=config.task) + config.card_ending,
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
