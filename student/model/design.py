"""From flags to the architecture of a student, and which flags exclude each other."""

from pipeline.config import flag_name, parse_model
from pipeline.errors import ConfigError, raise_all
from pipeline.tasks.task import Metric
from student.config import EmbeddingFlags, TrainConfig
from student.model.architecture import Facts, StudentConfig
from student.model.encoders import ENCODERS, SIZES
from student.model.heads import HEADS
from student.model.pairings import PAIRINGS


def design(flags: TrainConfig, facts: Facts) -> StudentConfig:
    """The architecture that the flags ask for, for a task with these facts.

    Raises:
        ConfigError: naming every flag that does not fit the others or the task.
    """
    raise_all(ConfigError, "wrong flags", _problems(flags, facts))
    head = HEADS[flags.head]
    encoder = ENCODERS[flags.embedding].parameters(flags, head.reads_tokens)
    if head.reads_squares and encoder["matrix_size"] and encoder["vector_size"] and flags.vector_size is None:
        encoder["vector_size"] = encoder["matrix_size"] ** 2
    values = facts | {
        "metrics": metrics_of(flags, facts),
        "pairing": flags.pairing,
        "special_ids": facts["special_ids"] if _is_joint(flags, facts) else None,
        "embedding": flags.embedding,
        **encoder,
        "window_size": flags.window_size,
        "head": flags.head,
        "hidden_size": flags.hidden_size or head.default_width,
        "token_dropout": flags.token_dropout,
        "hidden_dropout": flags.hidden_dropout,
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
    missing = [name for name in SIZES if name not in ENCODERS[flags.embedding].sizes]
    problems = [
        f"{flag_name(name)}: --embedding {flags.embedding} has none"
        for name in missing
        if getattr(flags, name) is not None
    ]
    if flags.pooling == "sum+max" and "vector_size" in missing:
        problems.append(f"--pooling sum+max: --embedding {flags.embedding} has no vectors")
    if flags.init == "teacher" and "vector_size" in missing:
        problems.append(f"--init teacher: is for vectors, and --embedding {flags.embedding} has none")
    if flags.pooling == "sum+max" and token_reader is not None:
        problems.append(f"--pooling sum+max: {token_reader} reads what is known of each token, without maxima")
    return problems


def _is_joint(flags: TrainConfig, facts: Facts) -> bool:
    return facts["is_pair"] and PAIRINGS[flags.pairing].compare is None


def _problems(flags: TrainConfig, facts: Facts) -> list[str]:
    problems = embedding_problems(flags, f"--head {flags.head}" if HEADS[flags.head].reads_tokens else None)
    if flags.window_size is not None and HEADS[flags.head].reads_tokens:
        problems.append(f"--window-size: --head {flags.head} reads what is known of each token, not of windows")
    if flags.init is not None and flags.init_from is not None:
        problems.append("--init: with --init-from the embeddings start from a run; give one of them")
    if flags.hidden_size is not None and not HEADS[flags.head].has_width:
        problems.append(f"--hidden-size: --head {flags.head} has none")
    if _is_joint(flags, facts) and facts["special_ids"] is None:
        problems.append(f"--pairing {flags.pairing}: the tokenizer adds no tokens between two sentences")
    if facts["target"].kind == "score" and flags.temperature != 1:
        problems.append("--temperature: a score has none; it is for labels and bins")
    if facts["target"].kind == "score" and flags.soft_loss != "kl":
        problems.append("--soft-loss: a score has its own, the squared error")
    if flags.soft_loss == "mse" and flags.temperature != 1:
        problems.append("--temperature: --soft-loss mse has none")
    return problems + _label_problems(flags, facts)


def _label_problems(flags: TrainConfig, facts: Facts) -> list[str]:
    target, metric, problems = facts["target"], flags.metric_for_best_model, []
    if metric is not None and metric not in target.metrics:
        problems.append(f"--metric-for-best-model {metric}: {facts['task']!r} has {', '.join(target.metrics)}")
    if metric == "f1" and target.num_logits > 2:
        problems.append("--metric-for-best-model f1: is for two labels; take macro_f1")
    if flags.class_weights is not None and target.kind != "classes":
        problems.append("--class-weights: are for one label a row; labels apart have thresholds, and scores no classes")
    return problems
