"""The record of a set of sentences before its first shard."""

from pipeline.sets.record import SetRecord, staged
from pipeline.sets.record_parts import Setting
from pipeline.sets.signals import Signals, Vectors
from pipeline.sets.vector_codecs import AnyVectorCodec, Basis
from teacher.config import DumpCorpus, DumpTask
from teacher.dump.records import LIBRARIES, teacher_record
from teacher.dump.sentence_rows import Sample, SentenceRows
from teacher.dump.source_parts import tokenizer_record
from teacher.models.encoder import SentenceEncoder

BYTES_PER_TOKEN = 1.7  # of the ids, measured on Wikipedia


def staged_record(
    config: DumpTask | DumpCorpus,
    rows: SentenceRows,
    encoder: SentenceEncoder,
    codec: AnyVectorCodec,
    basis: Basis | None,
    command: str,
) -> SetRecord:
    """Describes the set that these settings will give; its fingerprint covers all that decides its content."""
    teacher, tokenizer = teacher_record(encoder), tokenizer_record(encoder.tokenizer)
    settings: dict[str, Setting] = {
        "signal": "vectors",
        "teacher.weights": teacher.sha256,
        "tokenizer": tokenizer.sha256,
        "precision": config.precision,
        "max_seq_length": config.max_seq_length,
        **rows.settings(),
        "pooling": encoder.pooling,
        "codec": str(codec),
        **({"basis": basis.sha256} if basis else {}),
    }
    return staged(
        settings,
        command,
        (*LIBRARIES, *(("sentencex",) if isinstance(config, DumpCorpus) else ())),
        name=config.set_name(rows.subject.name),
        kind="sentences",
        signals=Signals(
            vectors=Vectors(codec=codec, pooling=encoder.pooling, basis_sha256=basis.sha256 if basis else None)
        ),
        teacher=teacher,
        tokenizer=tokenizer,
        max_seq_length=config.max_seq_length,
        precision=config.precision,
        shards=rows.shards(config.rows_per_shard),
        **rows.parts(),
    )


def estimated_bytes(sample: Sample, codec: AnyVectorCodec) -> int:
    """About how large a set with this codec will be."""
    return int(sample.multiplier * (len(sample.ids.flat) * BYTES_PER_TOKEN + len(sample.ids) * codec.num_bytes()))
