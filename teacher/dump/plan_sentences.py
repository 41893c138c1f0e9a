"""``teacher-dump --signal vectors --plan``: rows, shards, bytes, time and memory, before any model is loaded."""

from pipeline.devices import processes
from pipeline.sets.vector_codecs import vector_codec_for
from teacher.config import DumpCorpus, DumpTask
from teacher.dump.calibration import classifier_seconds
from teacher.dump.plan_examples import TOKENS_ALONE, Plan, memory_bytes, token_vectors_bytes
from teacher.dump.sentence_rows import open_rows
from teacher.dump.sentences import SAMPLED_ROWS
from teacher.dump.sentences_record import estimated_bytes
from teacher.models.batches import tokens_per_batch
from teacher.models.loaded import load_config, load_tokenizer


def estimate_vectors(config: DumpTask | DumpCorpus) -> Plan:
    """Estimates a dump from a sample of sentences and the teacher's config, whose shape is timed on this machine."""
    rows = open_rows(config)
    name, revision = config.teacher_for(rows.subject)
    shape = load_config(name, revision)
    tokens = load_tokenizer(name, revision, shape, config.max_seq_length)
    codec = vector_codec_for(config, shape.hidden_size)
    sample = rows.sample(tokens, SAMPLED_ROWS)
    lengths = [length + tokens.num_special for length in sample.ids.lengths.tolist()]
    device = processes().device
    max_tokens = tokens_per_batch(device, config.max_tokens_per_batch)
    seconds = classifier_seconds(shape, lengths, max_tokens, device, config.precision) if lengths else 0.0
    of_rows = sum(lengths) * sample.multiplier
    alone = shape.vocab_size * TOKENS_ALONE if config.token_vectors else 0
    return Plan(
        rows={"sentences": round(len(lengths) * sample.multiplier)},
        shards=len(rows.shards(config.rows_per_shard)),
        tokens=round(of_rows) + alone,
        disk_bytes=estimated_bytes(sample, codec) + (token_vectors_bytes(shape) if alone else 0),
        seconds=seconds * sample.multiplier * (1 + alone / of_rows) if of_rows else 0.0,
        memory_bytes=memory_bytes(shape, max_tokens),
    )
