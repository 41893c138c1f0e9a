"""Converts flags to the architecture of a student, and refuses flags that exclude each other."""

from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, raise_all
from pipeline.file_names import CONFIG_FILE
from pipeline.parsing import parse_model
from pipeline.settings import flag_name, given
from pipeline.tasks.task import Metric
from student.encoders.bert_shape import NUM_HEADS, NUM_LAYERS, POSITIONS, Inherited
from student.encoders.kinds import ENCODERS
from student.model.architecture import MOST_COMPARED, Facts, StudentConfig, TokenLabelConfig
from student.model.config_file import read_encoder_config
from student.model.flags import Aligned, AnyEncoder, Bert, EncoderSettings
from student.model.heads import HEADS, PAIRINGS
from student.settings import Head, LayerLosses, Loss, PairingKind, Start, Storage, TrainSettings, Weights

# The size was chosen together with the number of pairs. See docs/experiments/bigrams.md.
BIGRAM_SIZE = 32
# What labels words, and the flags that only apply to whole texts and selected rows.
WORD_ENCODERS, WORD_HEADS = ("hybrid", "cmow", "cbow", "lstm"), ("mlp", "plain-mlp", "linear")
OF_TEXTS = {"where", "query", "mix", "class_weights", "pairing", "token_dropout", "window_size"}
# Encoders without this setting record a fixed value, so that runs of the same student have equal records.
NOISE = 0.01


def with_default_encoder(settings: TrainSettings, facts: Facts) -> TrainSettings:
    """Returns the settings with the default encoder of pairs, unless a flag is given that only other encoders have.

    Args:
        settings: the settings.
        facts: the facts of the task and its set.

    Raises:
        IntegrityError: if the folder of ``--init`` holds no student.
    """
    head_kind = HEADS[settings.head.head or "mlp"]
    is_settled = (
        bool(settings.encoder.model_fields_set)
        or settings.head.pairing is not None
        or settings.layer_losses is not None
        or head_kind.reads_tokens
        or head_kind.reads_squares
        # The embeddings of another run belong to its encoder.
        or (settings.start.folder is not None and not _is_aligned(settings.start.folder))
    )
    if is_settled or not facts.get("is_pair") or facts["max_seq_length"] > MOST_COMPARED:
        return settings
    return settings.model_copy(update={"encoder": Aligned()})


def _is_aligned(run: Path) -> bool:
    """Whether a run is there, of a student of aligned pairs."""
    return (run / CONFIG_FILE).is_file() and read_encoder_config(run / CONFIG_FILE).embedding == "aligned"


def build_config(settings: TrainSettings, facts: Facts, inherited: Inherited | None = None) -> StudentConfig:
    """Returns the architecture that the settings describe, for a task with these facts.

    Args:
        settings: the settings.
        facts: the facts of the task and its set.
        inherited: the sizes of the layers that a bert starts from.

    Raises:
        ConfigError: naming every flag that does not fit the other flags or the task.
    """
    encoder, metric = settings.encoder, settings.best.metric_for_best_model
    kind = ENCODERS[encoder.embedding]
    head = settings.head.model_copy(update={"head": settings.head.head or kind.head})
    problems = _encoder_problems(encoder, head, facts) + head_problems(head) + _loss_problems(settings.loss, facts)
    problems += _metric_problems(metric, facts)
    if isinstance(encoder, Bert):
        problems += _bert_problems(encoder, head, settings.start, facts)
        # Without inherited layers every size is free, so there is nothing to compare.
        problems += _unlike(encoder, inherited) + _too_long(facts, inherited) if inherited else []
    raise_all(ConfigError, "wrong flags", problems)
    values = facts | {
        **encoder_values(encoder, head),
        **(_bert(encoder, facts, inherited) if isinstance(encoder, Bert) else {}),
        **_bigrams(encoder, head, facts),
        "metrics": metrics_of(metric, facts["metrics"]),
        "pairing": _pairing(head, encoder),
        "special_ids": facts["special_ids"] if kind.is_bert or _is_joint(head, encoder, facts) else None,
        "window_size": getattr(encoder, "window_size", None),
        "token_dropout": head.token_dropout,
        "weights": _weights(settings.storage, encoder),
    }
    return parse_model(StudentConfig, values, "wrong flags")


def build_token_label_config(settings: TrainSettings, facts: Facts) -> TokenLabelConfig:
    """Returns the architecture that the settings describe, for a task of labelled words with these facts.

    Raises:
        ConfigError: naming every flag that does not fit.
    """
    metric, head = (
        settings.best.metric_for_best_model,
        settings.head.model_copy(update={"head": settings.head.head or "mlp"}),
    )
    problems = reader_problems(settings.encoder, "a student of words") + head_problems(head) + _not_for_words(settings)
    if metric is not None and metric not in facts["metrics"]:
        problems.append(f"--metric-for-best-model {metric}: the task has {', '.join(facts['metrics'])}")
    raise_all(ConfigError, "wrong flags", problems)
    # Labelled words are read without special tokens, since only words get labels.
    values = {name: value for name, value in facts.items() if name != "special_ids"} | {
        "metrics": metrics_of(metric, facts["metrics"]),
        **encoder_values(settings.encoder, head, labels_tokens=True),
        "weights": _weights(settings.storage, settings.encoder),
    }
    return parse_model(TokenLabelConfig, values, "wrong flags")


def _not_for_words(settings: TrainSettings) -> list[str]:
    """Returns the given flags that students of labelled words do not support: a label belongs to one token."""
    flags = given(settings)
    names = sorted(flags.keys() & (OF_TEXTS | LayerLosses.model_fields.keys()))
    # These students have no bigrams anyway, so 0 is accepted, which joint trainings need for all tasks.
    names += ["num_bigrams"] if flags.get("num_bigrams") else []
    wrong = [flag_name(name) for name in names]
    embedding, head = settings.encoder.embedding, settings.head.head
    wrong += [f"--embedding {embedding}"] if embedding not in WORD_ENCODERS else []
    wrong += [f"--head {head}"] if head not in (None, *WORD_HEADS) else []
    return [f"{flag}: is not supported for labelled words" for flag in wrong]


def encoder_values(encoder: EncoderSettings, head: Head, labels_tokens: bool = False) -> dict[str, Any]:
    """Returns the fields of an architecture for encoder and head. A student that labels tokens has no maxima."""
    kind, head_kind = ENCODERS[encoder.embedding], HEADS[head.head or "mlp"]
    values = kind.parameters(encoder, labels_tokens or head_kind.reads_tokens)
    # A size that the user gives is never changed silently. If it is not a square, an error follows.
    is_own = getattr(encoder, "vector_size", None) is not None
    # The CNN head arranges vectors and matrices as channels of one size, as in the published code.
    if head_kind.reads_squares and values["matrix_size"] and values["vector_size"] and not is_own:
        values["vector_size"] = values["matrix_size"] ** 2
    return values | {
        "embedding": encoder.embedding,
        "initializer_range": getattr(encoder, "initializer_range", NOISE),
        "head": head.head,
        "hidden_size": head.hidden_size or head_kind.default_width,
        "hidden_dropout": kind.hidden_dropout if head.hidden_dropout is None else head.hidden_dropout,
    }


def _weights(storage: Storage, encoder: EncoderSettings) -> Weights:
    """Returns the format of weights on disk: the given one, or rounded where measurements showed no loss."""
    can_be_rounded = ENCODERS[encoder.embedding].can_be_rounded
    if storage.weights == "rounded" and not can_be_rounded:
        raise ConfigError(f"--weights rounded: is not supported by --embedding {encoder.embedding}. Use float32.")
    return storage.weights or ("rounded" if can_be_rounded else "float32")


def metrics_of(first: Metric | None, metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
    """Returns the task's metrics, starting with the one that chooses the best epoch."""
    return metrics if first is None else (first, *(name for name in metrics if name != first))


def reader_problems(encoder: EncoderSettings, token_reader: str) -> list[str]:
    """Returns the reasons why an encoder cannot serve a reader of every token's representation."""
    problems = []
    if not ENCODERS[encoder.embedding].has_token_features:
        problems.append(f"--embedding {encoder.embedding}: has no features per token, which {token_reader} needs")
    if getattr(encoder, "pooling", None) == "sum+max":
        problems.append(f"--pooling sum+max: {token_reader} reads the features of each token, which have no maxima")
    return problems


def head_problems(head: Head) -> list[str]:
    """Returns the flags that have no effect with this head."""
    has_none = head.hidden_size is not None and not HEADS[head.head or "mlp"].has_width
    return [f"--hidden-size: --head {head.head} does not have one"] if has_none else []


def _pairing(head: Head, encoder: EncoderSettings) -> PairingKind:
    """Returns the pairing of two sentences: the given one, or the encoder's default."""
    return head.pairing or ENCODERS[encoder.embedding].pairing


def _is_joint(head: Head, encoder: EncoderSettings, facts: Facts) -> bool:
    return facts["is_pair"] and PAIRINGS[_pairing(head, encoder)].is_one


def _bigrams(encoder: EncoderSettings, head: Head, facts: Facts) -> dict[str, int]:
    """Returns the number of bigrams and the size of their vectors."""
    head_kind, given = HEADS[head.head or "mlp"], getattr(encoder, "num_bigrams", None)
    # Sums of pairs exist per text only, and 32 numbers are no square.
    usual = 0 if head_kind.reads_tokens or head_kind.reads_squares else ENCODERS[encoder.embedding].num_bigrams
    # A tiny vocabulary has fewer pairs than the default number.
    count = min(usual if given is None else given, facts["vocabulary_size"] ** 2)
    return {"num_bigrams": count, "bigram_size": BIGRAM_SIZE if count else 0}


def _encoder_problems(encoder: AnyEncoder, head: Head, facts: Facts) -> list[str]:
    """Returns the conflicts between an encoder, its head, and the set's texts."""
    kind, head_kind, name = ENCODERS[encoder.embedding], HEADS[head.head or "mlp"], f"--head {head.head}"
    problems = reader_problems(encoder, name) if head_kind.reads_tokens else []
    if head.pairing == "attention" and not kind.reads_pairs:
        problems.append(f"--pairing attention: --embedding {encoder.embedding} reads each sentence separately")
    if not kind.has_sums and head_kind.reads_squares:
        problems.append(f"{name}: --embedding {encoder.embedding} has no parts to arrange as squares")
    if getattr(encoder, "num_bigrams", None) and head_kind.reads_tokens:
        problems.append(f"--num-bigrams: {name} reads single tokens and does not support bigrams")
    if getattr(encoder, "num_bigrams", None) and head_kind.reads_squares:
        problems.append(f"--num-bigrams: {name} needs squares, but sums of pairs are not square")
    if getattr(encoder, "window_size", None) and head_kind.reads_tokens:
        problems.append(f"--window-size: {name} reads single tokens and does not support windows")
    if _is_joint(head, encoder, facts) and facts["special_ids"] is None:
        problems.append(f"--pairing {_pairing(head, encoder)}: the tokenizer adds no tokens between two sentences")
    longest = facts["max_seq_length"]
    if kind.reads_pairs and longest > MOST_COMPARED:
        what = f"compares every token with every other one, and supports at most {MOST_COMPARED:,} tokens"
        advice = "Use another --embedding, or a set with shorter texts (teacher-dump --max-seq-length)"
        problems.append(
            f"--embedding {encoder.embedding}: {what}, but this set has texts of up to {longest:,}. {advice}"
        )
    return problems


def _bert(encoder: Bert, facts: Facts, inherited: Inherited | None) -> dict[str, Any]:
    """Returns a bert's fields of `EncoderConfig`: those of the layers that it starts from, or those of the flags."""
    own = {"pooler": encoder.pooler}
    if inherited is not None:
        return own | {"vector_size": inherited.width, "bert": inherited.shape}
    width = encoder.vector_size or ENCODERS["bert"].sizes["vector_size"]
    shape = {
        "num_hidden_layers": encoder.num_hidden_layers or NUM_LAYERS,
        "num_attention_heads": encoder.num_attention_heads or NUM_HEADS,
        "intermediate_size": encoder.intermediate_size or 4 * width,
        "max_position_embeddings": max(POSITIONS, facts["max_seq_length"]),
    }
    # A random start has no sizes to inherit, so BERT's usual proportions fill the gaps.
    return own | {"vector_size": width, "bert": shape}


def _bert_problems(encoder: Bert, head: Head, start: Start, facts: Facts) -> list[str]:
    """Returns the flags that do not fit a bert."""
    kind, problems = ENCODERS["bert"], []
    if head.head != kind.head and (encoder.pooler is None or HEADS[head.head or "mlp"].reads_tokens):
        problems.append(f"--head {head.head}: --embedding bert has the head {kind.head}")
    if head.pairing not in (None, kind.pairing):
        problems.append(f"--pairing {head.pairing}: --embedding bert reads two sentences as one, {kind.pairing}")
    if head.token_dropout:
        problems.append(
            "--token-dropout: is not supported by --embedding bert, which needs the first token. Use --hidden-dropout"
        )
    if start.init == "noise" and encoder.init_layers is not None:
        problems.append("--init-layers: --init noise does not start from layers. Remove one of them")
    if facts["special_ids"] is None or not facts["special_ids"][0]:
        problems.append("--embedding bert: needs a tokenizer with a token before each text, such as BERT's [CLS]")
    return problems


def _too_long(facts: Facts, inherited: Inherited) -> list[str]:
    """Returns a message if the set's texts exceed the positions of the layers that the student starts from."""
    longest, places = facts["max_seq_length"], inherited.shape.max_position_embeddings
    if longest <= places:
        return []
    what = f"starts from layers for {places:,} tokens, but this set has texts of {longest:,}"
    return [f"--embedding bert: {what}. Use --init noise, or another --embedding"]


def _unlike(encoder: Bert, inherited: Inherited) -> list[str]:
    """Returns the given sizes that differ from those of the layers that a bert starts from."""
    sizes = inherited.shape.model_dump() | {"vector_size": inherited.width}
    return [
        f"{flag_name(name)} {value}: the initial layers have {size}"
        for name, size in sizes.items()
        if (value := getattr(encoder, name, None)) is not None and value != size
    ]


def _loss_problems(loss: Loss, facts: Facts) -> list[str]:
    """Returns the flags of the loss that do not fit the task's target."""
    target, problems = facts["target"], []
    if target.is_score and loss.soft.temperature != 1:
        problems.append("--temperature: applies to labels and bins, but not to a score")
    if target.is_score and loss.soft.soft_loss != "kl":
        problems.append("--soft-loss: does not apply to a score, whose loss is the squared error")
    if loss.class_weights is not None and not target.has_classes:
        problems.append("--class-weights: applies only to tasks with one label per row")
    return problems


def _metric_problems(metric: Metric | None, facts: Facts) -> list[str]:
    """Returns why a task lacks the metric that should choose its best epoch."""
    target, problems = facts["target"], []
    if metric is not None and metric not in target.metrics:
        problems.append(f"--metric-for-best-model {metric}: {facts['task']!r} has {', '.join(target.metrics)}")
    if metric == "f1" and target.num_logits > 2:
        problems.append("--metric-for-best-model f1: applies to two labels. Use macro_f1")
    return problems
