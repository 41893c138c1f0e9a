"""A student's architecture in words."""

from student.model.architecture import EncoderConfig, TaskConfig
from student.model.encoders import ENCODERS
from student.model.heads import HEADS
from student.model.pairings import PAIRINGS


def summary(config: TaskConfig) -> dict[str, str]:
    """Returns a student's architecture in words, by part."""
    width = f", {config.hidden_size} wide" if config.hidden_size else ""
    words = {"embedding": embedding_summary(config)}
    if config.table_dtype != "float32":
        words["tables"] = f"{config.table_dtype} tables"
    if config.used_rows is not None:
        words["tokens"] = used_summary(config)
    if config.pairing and config.is_pair:
        words["pairs"] = PAIRINGS[config.pairing].words
    return words | {"head": HEADS[config.head].words + width}


def used_summary(config: EncoderConfig) -> str:
    """Returns in words how many tokens say something: trained, or started from the teacher's vectors."""
    if config.used_rows is None:
        return "tokens not counted"
    return f"{config.used_rows:,} of {config.num_tokens:,} tokens known, the others neutral"


def embedding_summary(config: EncoderConfig) -> str:
    """Returns in words what an encoder makes of the tokens' embeddings."""
    words, parts = ENCODERS[config.embedding].words, []
    if config.lstm is not None:
        tables = ", of which one stays as it starts" if config.lstm.channels == 2 else ""
        channels = f"{config.lstm.channels} x {config.vector_size}" if tables else str(config.vector_size)
        return f"{words}: {config.lstm.hidden_size} wide in each direction, over vectors of {channels}{tables}"
    if config.vector_size:
        pooled = "sums and maxima" if config.pooling == "sum+max" else "sums"
        parts.append(f"{pooled} of vectors of {config.vector_size}")
    if config.bert is not None:
        heads = f"{config.bert.num_attention_heads} heads"
        parts = [f"{config.bert.num_hidden_layers} layers of attention, {config.vector_size} wide, {heads}"]
        parts[0] += ", of whose states of [CLS] the mean is taken" if config.pooler else ""
    if config.matrix_size:
        ways = "both ways" if config.bidirectional else "left to right"
        parts.append(f"products of {config.matrix_size} x {config.matrix_size} matrices, {ways}")
    if config.num_bigrams:
        parts.append(f"sums of vectors of {config.bigram_size} for {config.num_bigrams:,} pairs of neighbouring tokens")
    windows = f", averaged over windows of {config.window_size} tokens" if config.window_size else ""
    return f"{words}: {' and '.join(parts)}{windows}"
