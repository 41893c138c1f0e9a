"""Converts flags to the architecture of a student, and refuses flags that exclude each other."""

from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, raise_all
from pipeline.file_names import CONFIG_FILE
from pipeline.parsing import parse_model
from pipeline.settings import flag_name, given
from pipeline.tasks.task import Metric
from student.encoders.specs import (
    MOST_COMPARED,
    NUM_BIGRAMS,
    Aligned,
    AnyEncoder,
    Bert,
    Cmow,
    EncoderSpec,
    Hybrid,
    Recurrent,
    Sums,
)
from student.model.architecture import Facts, StudentConfig, TokenLabelConfig, token_reader_problems
from student.model.config_file import read_encoder_config
from student.model.heads import HEADS, PAIRINGS
from student.settings import Head, LayerLosses, Loss, Storage, TrainSettings, Weights

# What labels words, and the flags that only apply to whole texts and selected rows.
WORD_ENCODERS, WORD_HEADS = ("hybrid", "cmow", "cbow", "lstm"), ("mlp", "plain-mlp", "linear")
OF_TEXTS = {"where", "query", "mix", "class_weights", "pairing", "token_dropout", "ngrams"}


def with_default_encoder(settings: TrainSettings, facts: Facts) -> TrainSettings:
    """Returns the settings with the default encoder of the task, unless a flag is given that only other encoders have.

    Args:
        settings: the settings.
        facts: the facts of the task and its set.

    Raises:
        IntegrityError: if the folder of ``--init`` holds no student.
    """
    # Labelled words need features of each token. Long texts have only been measured with matrices.
    if "is_pair" not in facts or facts["max_seq_length"] > MOST_COMPARED:
        return settings
    head_kind, given_fields = HEADS[settings.head.head or "mlp"], settings.encoder.model_fields_set
    spec: type[Aligned | Recurrent] = Aligned if facts["is_pair"] else Recurrent
    shared = given_fields & spec.model_fields.keys() - {"embedding"}
    encoder = spec(**settings.encoder.model_dump(include=shared))
    is_settled = (
        given_fields != shared
        or (settings.head.pairing is not None and facts["is_pair"])
        or settings.layer_losses is not None
        or head_kind.reads_tokens
        or head_kind.reads_squares
        # The embeddings of another run belong to its encoder.
        or (settings.start.folder is not None and _embedding_of(settings.start.folder) != encoder.embedding)
    )
    return settings if is_settled else settings.model_copy(update={"encoder": encoder})


def _embedding_of(run: Path) -> str | None:
    """Returns the kind of encoder of a student, None if there is no student."""
    return read_encoder_config(run / CONFIG_FILE).embedding if (run / CONFIG_FILE).is_file() else None


def build_config(settings: TrainSettings, facts: Facts, inherited: Bert | None = None) -> StudentConfig:
    """Returns the architecture that the settings describe, for a task with these facts.

    Args:
        settings: the settings.
        facts: the facts of the task and its set.
        inherited: the layers that a bert starts from.

    Raises:
        ConfigError: naming every flag that does not fit the other flags or the task.
    """
    given, metric = settings.encoder, settings.best.metric_for_best_model
    head = settings.head.model_copy(update={"head": settings.head.head or given.default_head})
    problems = _encoder_problems(given, head, facts) + head_problems(head) + _loss_problems(settings.loss, facts)
    problems += _metric_problems(metric, facts)
    if isinstance(given, Bert):
        problems += _bert_problems(given, head, facts)
        # Without inherited layers every size is free, so there is nothing to compare.
        problems += _unlike(given, inherited) if inherited else []
    raise_all(ConfigError, "wrong flags", problems)
    encoder = with_sizes(given, head, facts["vocabulary_size"], facts["max_seq_length"], inherited)
    raise_all(ConfigError, "wrong flags", encoder.problems(facts["max_seq_length"]))
    is_framed = isinstance(encoder, Bert) or _is_joint(head, encoder, facts)
    values = facts | {
        "encoder": encoder,
        "metrics": metrics_of(metric, facts["metrics"]),
        "pairing": head.pairing or encoder.default_pairing,
        "special_ids": facts["special_ids"] if is_framed else None,
        "token_dropout": head.token_dropout,
        "weights": _weights(settings.storage, encoder),
        **_head_values(head, encoder),
    }
    return parse_model(StudentConfig, values, "wrong flags")


def build_token_label_config(settings: TrainSettings, facts: Facts) -> TokenLabelConfig:
    """Returns the architecture that the settings describe, for a task of labelled words with these facts.

    Raises:
        ConfigError: naming every flag that does not fit.
    """
    metric, encoder = settings.best.metric_for_best_model, settings.encoder
    head = settings.head.model_copy(update={"head": settings.head.head or "mlp"})
    problems = token_reader_problems(encoder, "a student of words") + head_problems(head) + _not_for_words(settings)
    if metric is not None and metric not in facts["metrics"]:
        problems.append(f"--metric-for-best-model {metric}: the task has {', '.join(facts['metrics'])}")
    raise_all(ConfigError, "wrong flags", problems)
    # Labelled words are read without special tokens, since only words get labels.
    values = {name: value for name, value in facts.items() if name != "special_ids"} | {
        "encoder": with_sizes(encoder, None, facts["vocabulary_size"]),
        "metrics": metrics_of(metric, facts["metrics"]),
        "weights": _weights(settings.storage, encoder),
        **_head_values(head, encoder),
    }
    return parse_model(TokenLabelConfig, values, "wrong flags")


def with_sizes(
    encoder: AnyEncoder,
    head: Head | None,
    vocabulary_size: int,
    max_seq_length: int = 1,
    inherited: Bert | None = None,
) -> AnyEncoder:
    """Returns an encoder with values for the fields whose default depends on other things.

    Args:
        encoder: the encoder that the flags describe.
        head: the head of a student of texts. None: a reader of every token's features.
        vocabulary_size: the number of tokens.
        max_seq_length: the length of the longest sequence.
        inherited: the layers that a bert starts from.
    """
    if isinstance(encoder, Bert):
        # A random start has no sizes to inherit, so BERT's usual proportions fill the gaps.
        places = max(encoder.max_position_embeddings, max_seq_length)
        sizes = {"intermediate_size": encoder.inner_size, "max_position_embeddings": places}
        own = {"pooler": encoder.pooler, "initializer_range": encoder.initializer_range}
        return inherited.model_copy(update=own) if inherited else encoder.model_copy(update=sizes)
    if not isinstance(encoder, Sums):
        return encoder
    kind = HEADS[head.head or "mlp"] if head is not None else None
    reads_tokens, reads_squares = kind is None or kind.reads_tokens, kind is not None and kind.reads_squares
    # Sums of pairs exist per text only, and their width is no square. A tiny vocabulary has few pairs.
    usual = 0 if reads_tokens or reads_squares else NUM_BIGRAMS
    count = usual if encoder.num_bigrams is None else encoder.num_bigrams
    values: dict[str, Any] = {"num_bigrams": min(count, vocabulary_size**2)}
    if not isinstance(encoder, Cmow):
        values["pooling"] = "sum" if reads_tokens else encoder.pooling or "sum+max"
    # The CNN head arranges vectors and matrices as channels of one size, as in the published code. A size that the user
    # gives is never changed silently. If it is not a square, an error follows.
    if reads_squares and isinstance(encoder, Hybrid) and "vector_size" not in encoder.model_fields_set:
        values["vector_size"] = encoder.matrix_size**2
    return encoder.model_copy(update=values)


def _not_for_words(settings: TrainSettings) -> list[str]:
    """Returns the given flags that students of labelled words do not support: a label belongs to one token."""
    flags = given(settings)
    names = sorted(flags.keys() & (OF_TEXTS | LayerLosses.model_fields.keys()))
    wrong = [flag_name(name) for name in names]
    embedding, head = settings.encoder.embedding, settings.head.head
    wrong += [f"--embedding {embedding}"] if embedding not in WORD_ENCODERS else []
    wrong += [f"--head {head}"] if head not in (None, *WORD_HEADS) else []
    return [f"{flag}: is not supported for labelled words" for flag in wrong]


def _head_values(head: Head, encoder: EncoderSpec) -> dict[str, Any]:
    """Returns the fields of an architecture for a head."""
    return {
        "head": head.head,
        "hidden_size": head.hidden_size or HEADS[head.head or "mlp"].default_width,
        "hidden_dropout": encoder.default_dropout if head.hidden_dropout is None else head.hidden_dropout,
    }


def _weights(storage: Storage, encoder: EncoderSpec) -> Weights:
    """Returns the format of weights on disk: the given one, or rounded where measurements showed no loss."""
    if storage.weights == "rounded" and not encoder.can_be_rounded:
        raise ConfigError(f"--weights rounded: is not supported by --embedding {encoder.embedding}. Use float32.")
    return storage.weights or ("rounded" if encoder.can_be_rounded else "float32")


def metrics_of(first: Metric | None, metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
    """Returns the task's metrics, starting with the one that chooses the best epoch."""
    return metrics if first is None else (first, *(name for name in metrics if name != first))


def head_problems(head: Head) -> list[str]:
    """Returns the flags that have no effect with this head."""
    has_none = head.hidden_size is not None and not HEADS[head.head or "mlp"].has_width
    return [f"--hidden-size: --head {head.head} does not have one"] if has_none else []


def _is_joint(head: Head, encoder: EncoderSpec, facts: Facts) -> bool:
    return facts["is_pair"] and PAIRINGS[head.pairing or encoder.default_pairing].is_one


def _encoder_problems(encoder: AnyEncoder, head: Head, facts: Facts) -> list[str]:
    """Returns the conflicts between an encoder, its head, and the set's texts."""
    head_kind, name = HEADS[head.head or "mlp"], f"--head {head.head}"
    problems = token_reader_problems(encoder, name) if head_kind.reads_tokens else []
    if head.pairing == "attention" and not encoder.reads_pairs:
        problems.append(f"--pairing attention: --embedding {encoder.embedding} reads each sentence separately")
    if head_kind.reads_squares and not isinstance(encoder, Sums):
        problems.append(f"{name}: --embedding {encoder.embedding} has no parts to arrange as squares")
    if head_kind.reads_squares and getattr(encoder, "num_bigrams", None):
        problems.append(f"--num-bigrams: {name} needs squares, but sums of pairs are not square")
    if _is_joint(head, encoder, facts) and facts["special_ids"] is None:
        pairing = head.pairing or encoder.default_pairing
        problems.append(f"--pairing {pairing}: the tokenizer adds no tokens between two sentences")
    return problems


def _bert_problems(encoder: Bert, head: Head, facts: Facts) -> list[str]:
    """Returns the flags that do not fit a bert."""
    problems = []
    if head.head != encoder.default_head and (encoder.pooler is None or HEADS[head.head or "mlp"].reads_tokens):
        problems.append(f"--head {head.head}: --embedding bert has the head {encoder.default_head}")
    if head.pairing not in (None, encoder.default_pairing):
        pairing = encoder.default_pairing
        problems.append(f"--pairing {head.pairing}: --embedding bert reads two sentences as one, {pairing}")
    if head.token_dropout:
        problems.append(
            "--token-dropout: is not supported by --embedding bert, which needs the first token. Use --hidden-dropout"
        )
    if facts["special_ids"] is None or not facts["special_ids"][0]:
        problems.append("--embedding bert: needs a tokenizer with a token before each text, such as BERT's [CLS]")
    return problems


def _unlike(encoder: Bert, inherited: Bert) -> list[str]:
    """Returns the given sizes that differ from those of the layers that a bert starts from."""
    sizes = encoder.model_dump(include=encoder.model_fields_set - {"embedding", "pooler", "initializer_range"})
    return [
        f"{flag_name(name)} {value}: the initial layers have {getattr(inherited, name)}"
        for name, value in sizes.items()
        if value != getattr(inherited, name)
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
