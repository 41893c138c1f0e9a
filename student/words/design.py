"""From flags to the architecture of a student of words, and which flags are not for one."""

from pipeline.config import parse_model
from pipeline.errors import ConfigError, raise_all
from pipeline.sets.word_reader import TokenLabelSet
from pipeline.settings import flag_name
from student.config import TrainConfig
from student.layer_flags import LayerFlags
from student.model.architecture import TokenLabelConfig
from student.model.build_config import embedding_problems, flag_problems, metrics_of
from student.model.encoders import ENCODERS
from student.model.flags import BertFlags
from student.model.heads import HEADS

NOT_FOR_WORDS = {
    *("mix", "where", "query", "init_vectors", "window_size", "num_bigrams", "pairing"),
    *("token_dropout", "class_weights", "held_out"),
    *BertFlags.model_fields,
    *LayerFlags.model_fields,
}


def build_token_label_config(flags: TrainConfig, words: TokenLabelSet) -> TokenLabelConfig:
    """The architecture that the flags ask for, for a set of words.

    Raises:
        ConfigError: naming every flag that does not fit.
    """
    record = words.record
    raise_all(ConfigError, "wrong flags", _problems(flags, words))
    kind = ENCODERS[flags.embedding]
    head = HEADS[flags.head or kind.head]
    values = {
        "vocabulary_size": record.tokenizer.vocabulary_size,
        "pad_id": record.tokenizer.pad_id,
        "tokenizer_sha256": record.tokenizer.sha256,
        "max_seq_length": record.max_seq_length,
        "task": record.dataset_name,
        "target": record.target,
        "metrics": metrics_of(flags, {"metrics": record.metrics}),
        "embedding": flags.embedding,
        **kind.parameters(flags, reads_tokens=True),
        "initializer_range": flags.initializer_range,
        "head": flags.head or kind.head,
        "hidden_size": flags.hidden_size or head.default_width,
        "hidden_dropout": kind.hidden_dropout if flags.hidden_dropout is None else flags.hidden_dropout,
    }
    return parse_model(TokenLabelConfig, values, "wrong flags")


def _problems(flags: TrainConfig, words: TokenLabelSet) -> list[str]:
    given = sorted(flags.model_fields_set & NOT_FOR_WORDS)
    problems = [f"{flag_name(name)}: is not for labelled words" for name in given if getattr(flags, name) is not None]
    problems += embedding_problems(flags, "a student of words")
    kind, head, metric = ENCODERS[flags.embedding], HEADS[flags.head or "mlp"], flags.metric_for_best_model
    if kind.is_bert:
        problems.append("--embedding bert: labels no words; take hybrid, cmow, cbow or lstm")
    if head.reads_tokens or head.reads_squares:
        problems.append(f"--head {flags.head}: reads whole sentences; words have mlp, plain-mlp or linear")
    if metric is not None and metric not in words.record.metrics:
        problems.append(f"--metric-for-best-model {metric}: the task has {', '.join(words.record.metrics)}")
    return problems + flag_problems(flags)
