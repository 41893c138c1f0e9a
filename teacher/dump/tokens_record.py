"""The record of a set of tokens before its first shard."""

import hashlib
from importlib.metadata import version

from pipeline.sets.codecs import AnyCodec
from pipeline.sets.record import SetRecord, staged
from pipeline.sets.record_parts import CorpusRecord, KindName, MaskingRecord, Setting, Shard, SplitRecord
from pipeline.sets.signals import Mlm, Signals
from pipeline.sets.writer import plan_shards
from teacher.config import DumpCorpus
from teacher.corpus.masking import MaskingPlan
from teacher.corpus.text import SPLITS, VALIDATION, Text
from teacher.dump.records import LIBRARIES, teacher_record
from teacher.dump.source_parts import tokenizer_record
from teacher.models.masked_lm import MaskedLm


def all_shards(text: Text, rows_per_shard: int, folder: KindName = "masked_words") -> tuple[Shard, ...]:
    """Ranges of documents for both splits, validation first, so that what is wrong with a teacher shows early."""
    shards = []
    for split in SPLITS:
        documents = rows_per_shard * (text.config.validation_every if split == VALIDATION else 1)
        shards += plan_shards(split, text.documents.num_documents, documents, folder)
    return tuple(shards)


def corpus_record(text: Text) -> CorpusRecord:
    """Describes a corpus, and how it is cut."""
    return CorpusRecord(
        name=text.corpus.name,
        version=text.corpus.version,
        language=text.corpus.language,
        licence=text.corpus.licence,
        packing=text.config.packing,
        min_seq_length=text.config.min_seq_length,
        validation_every=text.config.validation_every,
    )


def how_cut() -> str:
    """What decides where a sentence ends."""
    return f"sentencex {version('sentencex')}"


def staged_record(
    config: DumpCorpus, text: Text, lm: MaskedLm, plan: MaskingPlan, codec: AnyCodec, command: str
) -> SetRecord:
    """Describes the set that these settings will give; its fingerprint covers all that decides its content."""
    corpus = corpus_record(text)
    masking = MaskingRecord(
        kind=config.masking,
        probability=config.mlm_probability,
        num_copies=config.num_copies,
        seed=config.seed,
        mask_id=lm.tokens.mask_id,
    )
    teacher = teacher_record(lm)
    tokenizer = tokenizer_record(lm.tokens.tokenizer)
    documents = text.documents
    settings: dict[str, Setting] = {
        "signal": "mlm",
        "teacher.weights": teacher.sha256,
        "tokenizer": tokenizer.sha256,
        "precision": config.precision,
        "documents": documents.sha256,
        **{f"corpus.{name}": value for name, value in corpus.model_dump(exclude={"licence"}).items()},
        "max_seq_length": config.max_seq_length,
        "cut": how_cut() if config.packing == "sentences" else f"{config.rows_per_shard}",
        **{f"masking.{name}": value for name, value in masking.model_dump().items()},
        "masking.weights": hashlib.sha256(plan.weight_V.tobytes()).hexdigest(),
        "codec": str(codec),
    }
    described = SplitRecord(rows=documents.num_documents, rows_sha256=documents.sha256)
    return staged(
        settings,
        command,
        (*LIBRARIES, "sentencex"),
        name=config.set_name(text.corpus.name),
        kind="masked_words",
        signals=Signals(mlm=Mlm(codec=codec)),
        corpus=corpus,
        masking=masking,
        teacher=teacher,
        tokenizer=tokenizer,
        max_seq_length=config.max_seq_length,
        precision=config.precision,
        source=documents.description,
        splits=dict.fromkeys(SPLITS, described),
        shards=all_shards(text, config.rows_per_shard),
    )
