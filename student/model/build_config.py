"""From flags to the architecture of a student, and which flags exclude each other."""

from typing import Any

from pipeline.config import parse_model
from pipeline.errors import ConfigError, raise_all
from pipeline.settings import flag_name
from pipeline.tasks.task import Metric
from student.config import PairingKind, TrainConfig
from student.layer_flags import LayerFlags
from student.model.architecture import MOST_COMPARED, Facts, StudentConfig, TokenLabelConfig
from student.model.bert_shape import NUM_HEADS, NUM_LAYERS, POSITIONS, Inherited
from student.model.encoders import ENCODERS, SIZES
from student.model.flags import BertFlags, EmbeddingFlags
from student.model.heads import HEADS, PAIRINGS

BIGRAM_SIZE = 32
NOT_FOR_WORDS = {  # rows are sentences of tokens with a label each: nothing is pooled, paired or compared by layers
    *("mix", "where", "query", "window_size", "num_bigrams", "pairing", "token_dropout", "class_weights"),
    *BertFlags.model_fields,
    *LayerFlags.model_fields,
}


def build_config(flags: TrainConfig, facts: Facts, inherited: Inherited | None = None) -> StudentConfig:
    """The architecture that the flags ask for, for a task with these facts.

    Args:
        flags: the flags.
        facts: what the task and its set decide.
        inherited: the sizes of the layers that a bert starts from.

    Raises:
        ConfigError: naming every flag that does not fit the others or the task.
    """
    raise_all(ConfigError, "wrong flags", [*_problems(flags, facts), *_bert_problems(flags, facts, inherited)])
    kind = ENCODERS[flags.embedding]
    head_kind = flags.head or kind.head
    head, encoder = HEADS[head_kind], kind.parameters(flags, HEADS[head_kind].reads_tokens)
    usual = 0 if head.reads_tokens or head.reads_squares else kind.num_bigrams
    num_bigrams = min(usual if flags.num_bigrams is None else flags.num_bigrams, facts["vocabulary_size"] ** 2)
    if head.reads_squares and encoder["matrix_size"] and encoder["vector_size"] and flags.vector_size is None:
        encoder["vector_size"] = encoder["matrix_size"] ** 2
    if kind.is_bert:
        encoder |= _bert(flags, facts, inherited)
    values = facts | {
        "metrics": metrics_of(flags, facts),
        "pairing": pairing_of(flags),
        "special_ids": facts["special_ids"] if kind.is_bert or _is_joint(flags, facts) else None,
        "embedding": flags.embedding,
        **encoder,
        "pooler": flags.pooler,
        "window_size": flags.window_size,
        "num_bigrams": num_bigrams,
        "bigram_size": BIGRAM_SIZE if num_bigrams else 0,
        "head": head_kind,
        "hidden_size": flags.hidden_size or head.default_width,
        "token_dropout": flags.token_dropout,
        "hidden_dropout": kind.hidden_dropout if flags.hidden_dropout is None else flags.hidden_dropout,
        "initializer_range": flags.initializer_range,
    }
    return parse_model(StudentConfig, values, "wrong flags")


def metrics_of(flags: TrainConfig, facts: Facts) -> tuple[Metric, ...]:
    """The task's metrics, that one first which chooses the best epoch."""
    first = flags.metric_for_best_model
    metrics: tuple[Metric, ...] = facts["metrics"]
    return metrics if first is None else (first, *(name for name in metrics if name != first))


def embedding_problems(flags: EmbeddingFlags, token_reader: str | None = None) -> list[str]:
    """Which flags were given that do not fit the embedding, or what reads it.

    Args:
        flags: the flags.
        token_reader: what reads the representation of every token; None if that of the sequence is read.
    """
    kind = ENCODERS[flags.embedding]
    missing = [name for name in SIZES if name not in kind.sizes]
    problems = [
        f"{flag_name(name)}: --embedding {flags.embedding} has none"
        for name in missing
        if getattr(flags, name, None) is not None
    ]
    if flags.pooling == "sum+max" and ("vector_size" in missing or not kind.has_sums):
        problems.append(f"--pooling sum+max: --embedding {flags.embedding} has no sums of vectors")
    if not (kind.has_sums or flags.bidirectional):
        problems.append(f"--no-bidirectional: --embedding {flags.embedding} always reads both ways")
    if not (kind.has_sums or kind.is_bert) and "initializer_range" in flags.model_fields_set:
        problems.append(
            f"--initializer-range: the vectors of --embedding {flags.embedding} are drawn from -0.25 to 0.25"
        )
    if kind.reads_pairs and token_reader is not None:
        problems.append(f"--embedding {flags.embedding}: has nothing of each token, which {token_reader} reads")
    if flags.init == "teacher" and "vector_size" in missing:
        problems.append(f"--init teacher: is for vectors, and --embedding {flags.embedding} has none")
    if flags.pooling == "sum+max" and token_reader is not None:
        problems.append(f"--pooling sum+max: {token_reader} reads what is known of each token, without maxima")
    return problems


def pairing_of(flags: TrainConfig) -> PairingKind:
    """How two sentences are brought together."""
    return flags.pairing or ENCODERS[flags.embedding].pairing


def _is_joint(flags: TrainConfig, facts: Facts) -> bool:
    return facts["is_pair"] and PAIRINGS[pairing_of(flags)].is_one


def _encoder_problems(flags: TrainConfig) -> list[str]:
    """Which flags were given that do not fit the encoder."""
    kind = ENCODERS[flags.embedding]
    head = HEADS[flags.head or kind.head]
    problems = embedding_problems(flags, f"--head {flags.head}" if head.reads_tokens else None)
    if flags.pairing == "attention" and not kind.reads_pairs:
        problems.append(f"--pairing attention: --embedding {flags.embedding} reads each sentence by itself")
    if not kind.has_sums and head.reads_squares:
        problems.append(f"--head {flags.head}: --embedding {flags.embedding} has no parts to lay out as squares")
    if flags.num_bigrams and not kind.has_sums:
        problems.append(f"--num-bigrams: is for sums and products, and not for --embedding {flags.embedding}")
    if flags.num_bigrams and head.reads_tokens:
        problems.append(f"--num-bigrams: --head {flags.head} reads what is known of each token, not of pairs")
    if flags.num_bigrams and head.reads_squares:
        problems.append(f"--num-bigrams: --head {flags.head} reads squares, which sums of pairs are not")
    if not kind.has_sums and not kind.is_bert and flags.window_size is not None:
        problems.append(f"--window-size: is for sums and products, and not for --embedding {flags.embedding}")
    return problems


def _bert(flags: TrainConfig, facts: Facts, inherited: Inherited | None) -> dict[str, Any]:
    """The fields of `EncoderConfig` that are a bert's: of what it starts from, or else what is asked for."""
    if inherited is not None:
        return {"vector_size": inherited.width, "bert": inherited.shape}
    width = flags.vector_size or ENCODERS[flags.embedding].sizes["vector_size"]
    shape = {
        "num_hidden_layers": flags.num_hidden_layers or NUM_LAYERS,
        "num_attention_heads": flags.num_attention_heads or NUM_HEADS,
        "intermediate_size": flags.intermediate_size or 4 * width,
        "max_position_embeddings": max(POSITIONS, facts["max_seq_length"]),
    }
    return {"vector_size": width, "bert": shape}


def _bert_problems(flags: TrainConfig, facts: Facts, inherited: Inherited | None) -> list[str]:
    """Which flags do not fit a bert, or are for one alone."""
    kind = ENCODERS[flags.embedding]
    if not kind.is_bert:
        given = [name for name in BertFlags.model_fields if getattr(flags, name) is not None]
        return [f"{flag_name(name)}: is for --embedding bert, not for {flags.embedding}" for name in given]
    problems = []
    if flags.head not in (None, kind.head) and (flags.pooler is None or HEADS[flags.head].reads_tokens):
        problems.append(f"--head {flags.head}: --embedding bert has the head {kind.head}")
    if flags.pairing not in (None, kind.pairing):
        problems.append(f"--pairing {flags.pairing}: --embedding bert reads two sentences as one, {kind.pairing}")
    if flags.window_size is not None:
        problems.append("--window-size: --embedding bert reads a text whole")
    if flags.token_dropout:
        problems.append("--token-dropout: --embedding bert reads the first token; see --hidden-dropout")
    if flags.init == "noise" and flags.init_layers is not None:
        problems.append("--init-layers: --init noise starts from no layers")
    if facts["special_ids"] is None or not facts["special_ids"][0]:
        problems.append("--embedding bert: the tokenizer puts no token before a text, as BERT's [CLS]")
    return problems + (_unlike(flags, inherited) + _too_long(facts, inherited) if inherited else [])


def _too_long(facts: Facts, inherited: Inherited) -> list[str]:
    """What speaks against texts that are longer than those that the layers know."""
    longest, places = facts["max_seq_length"], inherited.shape.max_position_embeddings
    if longest <= places:
        return []
    what = f"starts from layers for {places:,} tokens, but this set has texts of {longest:,}"
    return [f"--embedding bert: {what}; give --init noise, or another --embedding"]


def _unlike(flags: TrainConfig, inherited: Inherited) -> list[str]:
    """Sizes that were given, and are not those of the layers that a bert starts from."""
    sizes = inherited.shape.model_dump() | {"vector_size": inherited.width}
    return [
        f"{flag_name(name)} {value}: the layers that it starts from say {size}"
        for name, size in sizes.items()
        if (value := getattr(flags, name, None)) is not None and value != size
    ]


def _problems(flags: TrainConfig, facts: Facts) -> list[str]:
    problems = _encoder_problems(flags) + _length_problems(flags, facts)
    head = HEADS[flags.head or ENCODERS[flags.embedding].head]
    if flags.window_size is not None and head.reads_tokens:
        problems.append(f"--window-size: --head {flags.head} reads what is known of each token, not of windows")
    if _is_joint(flags, facts) and facts["special_ids"] is None:
        problems.append(f"--pairing {pairing_of(flags)}: the tokenizer adds no tokens between two sentences")
    if facts["target"].kind == "score" and flags.temperature != 1:
        problems.append("--temperature: a score has none; it is for labels and bins")
    if facts["target"].kind == "score" and flags.soft_loss != "kl":
        problems.append("--soft-loss: a score has its own, the squared error")
    return problems + _vector_problems(flags) + flag_problems(flags) + _label_problems(flags, facts)


def flag_problems(flags: TrainConfig) -> list[str]:
    """Flags that say nothing beside others, of a student of texts or of words."""
    problems, head = [], flags.head or ENCODERS[flags.embedding].head
    if flags.init is not None and flags.init_from is not None:
        problems.append("--init: with --init-from the embeddings start from a run; give one of them")
    if flags.hidden_size is not None and not HEADS[head].has_width:
        problems.append(f"--hidden-size: --head {head} has none")
    if flags.soft_loss == "mse" and flags.temperature != 1:
        problems.append("--temperature: --soft-loss mse has none")
    return problems


def _length_problems(flags: TrainConfig, facts: Facts) -> list[str]:
    """What speaks against texts as long as a set's may be."""
    kind, longest = ENCODERS[flags.embedding], facts["max_seq_length"]
    if not kind.reads_pairs or longest <= MOST_COMPARED:
        return []
    what = f"compares every token with every other, of {MOST_COMPARED:,} at most"
    advice = "take another --embedding, or a set with shorter ones (teacher-dump --max-seq-length)"
    return [f"--embedding {flags.embedding}: {what}, but this set has texts of up to {longest:,}; {advice}"]


def _label_problems(flags: TrainConfig, facts: Facts) -> list[str]:
    target, metric, problems = facts["target"], flags.metric_for_best_model, []
    if metric is not None and metric not in target.metrics:
        problems.append(f"--metric-for-best-model {metric}: {facts['task']!r} has {', '.join(target.metrics)}")
    if metric == "f1" and target.num_logits > 2:
        problems.append("--metric-for-best-model f1: is for two labels; take macro_f1")
    if flags.class_weights is not None and target.kind != "classes":
        problems.append("--class-weights: are for one label a row; labels apart have thresholds, and scores no classes")
    return problems


def build_token_label_config(flags: TrainConfig, facts: Facts) -> TokenLabelConfig:
    """The architecture that the flags ask for, for a task of labelled words with these facts.

    Raises:
        ConfigError: naming every flag that does not fit.
    """
    raise_all(ConfigError, "wrong flags", _token_label_problems(flags, facts))
    kind = ENCODERS[flags.embedding]
    head = HEADS[flags.head or kind.head]
    values = {name: value for name, value in facts.items() if name != "special_ids"} | {
        "metrics": metrics_of(flags, facts),
        "embedding": flags.embedding,
        **kind.parameters(flags, reads_tokens=True),
        "initializer_range": flags.initializer_range,
        "head": flags.head or kind.head,
        "hidden_size": flags.hidden_size or head.default_width,
        "hidden_dropout": kind.hidden_dropout if flags.hidden_dropout is None else flags.hidden_dropout,
    }
    return parse_model(TokenLabelConfig, values, "wrong flags")


def _token_label_problems(flags: TrainConfig, facts: Facts) -> list[str]:
    given = sorted(flags.model_fields_set & NOT_FOR_WORDS)
    fields = TrainConfig.model_fields
    given = [name for name in given if getattr(flags, name) not in (None, fields[name].default)]
    problems = [f"{flag_name(name)}: is not for labelled words" for name in given]
    problems += embedding_problems(flags, "a student of words")
    kind, head, metric = ENCODERS[flags.embedding], HEADS[flags.head or "mlp"], flags.metric_for_best_model
    if kind.is_bert:
        problems.append("--embedding bert: labels no words; take hybrid, cmow, cbow or lstm")
    if head.reads_tokens or head.reads_squares:
        problems.append(f"--head {flags.head}: reads whole sentences; words have mlp, plain-mlp or linear")
    if metric is not None and metric not in facts["metrics"]:
        problems.append(f"--metric-for-best-model {metric}: the task has {', '.join(facts['metrics'])}")
    return problems + _vector_problems(flags) + flag_problems(flags)


def _vector_problems(flags: TrainConfig) -> list[str]:
    """What speaks against vectors that start from a file's."""
    if flags.init_vectors is None:
        return []
    kind, problems = ENCODERS[flags.embedding], []
    if "vector_size" not in kind.sizes or kind.is_bert:
        problems.append(f"--init-vectors: --embedding {flags.embedding} has no vectors of words alone")
    if flags.init_from is not None:
        problems.append("--init-vectors: with --init-from the vectors start from a run; give one of them")
    if flags.init == "teacher":
        problems.append("--init-vectors: with --init teacher the vectors start from the teacher's; give one of them")
    return problems
