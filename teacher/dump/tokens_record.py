"""The record of a set of tokens before its first shard."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np

from pipeline.logit_set.codecs import CODECS
from pipeline.logit_set.parts import (
    Codec,
    CorpusRecord,
    MaskingRecord,
    Setting,
    SplitRecord,
    TeacherRecord,
    TokenizerRecord,
)
from pipeline.logit_set.record import (
    TokensRecord,
    TokensShard,
    fingerprint,
)
from pipeline.logit_set.writer import plan_shards
from pipeline.text.tokenizer import pad_id, tokenizer_sha256, vocabulary_size
from teacher.config import DumpCorpus
from teacher.corpus.masking import MaskingPlan, mask
from teacher.corpus.text import SPLITS, VALIDATION, Text
from teacher.dump.examples_record import LIBRARIES
from teacher.inference.loaded import weights_sha256
from teacher.inference.masked_lm import MaskedLm, MlmTokenizer


def all_shards(text: Text, rows_per_shard: int) -> tuple[TokensShard, ...]:
    """Ranges of documents for both splits, validation first, so that what is wrong with a teacher shows early."""
    shards = []
    for split in SPLITS:
        documents = rows_per_shard * (text.config.validation_every if split == VALIDATION else 1)
        planned = plan_shards(split, text.documents.num_documents, documents)
        shards += [TokensShard(**shard.model_dump()) for shard in planned]
    return tuple(shards)


def staged_record(
    config: DumpCorpus, text: Text, lm: MaskedLm, plan: MaskingPlan, codec: Codec, command: str
) -> TokensRecord:
    """Describes the set that these settings will give; its fingerprint covers all that decides its content."""
    corpus = CorpusRecord(
        name=text.corpus.name,
        version=text.corpus.version,
        language=text.corpus.language,
        licence=text.corpus.licence,
        packing=config.packing,
        min_seq_length=config.min_seq_length,
        validation_every=config.validation_every,
    )
    masking = MaskingRecord(
        kind=config.masking,
        probability=config.mlm_probability,
        num_copies=config.num_copies,
        seed=config.seed,
        mask_id=lm.tokens.mask_id,
    )
    teacher = TeacherRecord(
        name=lm.name,
        revision=lm.revision,
        weights_sha256=weights_sha256(lm.model),
        num_parameters=sum(p.numel() for p in lm.model.parameters()),
        labels=(),
    )
    tokenizer = TokenizerRecord(
        sha256=tokenizer_sha256(lm.tokens.tokenizer.to_str()),
        vocabulary_size=vocabulary_size(lm.tokens.tokenizer),
        pad_id=pad_id(lm.tokens.tokenizer),
    )
    documents = text.documents
    settings: dict[str, Setting] = {
        "signal": "mlm",
        "teacher.weights": teacher.weights_sha256,
        "tokenizer": tokenizer.sha256,
        "precision": config.precision,
        "documents": documents.sha256,
        **{f"corpus.{name}": value for name, value in corpus.model_dump(exclude={"licence"}).items()},
        "max_seq_length": config.max_seq_length,
        "cut": f"sentencex {version('sentencex')}" if config.packing == "sentences" else f"{config.rows_per_shard}",
        **{f"masking.{name}": value for name, value in masking.model_dump().items()},
        "masking.weights": hashlib.sha256(plan.weight_V.tobytes()).hexdigest(),
        "codec": str(codec),
    }
    record = SplitRecord(rows=documents.num_documents, expected_rows=None, rows_sha256=documents.sha256)
    return TokensRecord(
        name=config.set_name(text.corpus.name),
        state="staged",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        corpus=corpus,
        masking=masking,
        codec=codec,
        teacher=teacher,
        tokenizer=tokenizer,
        max_seq_length=config.max_seq_length,
        precision=config.precision,
        source=documents.description,
        splits=dict.fromkeys(SPLITS, record),
        settings=settings,
        fingerprint=fingerprint(settings),
        shards=all_shards(text, config.rows_per_shard),
        versions={name: version(name) for name in (*LIBRARIES, "sentencex")},
    )


SAMPLED_DOCUMENTS = 512
BYTES_PER_TOKEN = 2.25  # of the masked ids, positions and targets, measured on Wikipedia


@dataclass(frozen=True)
class Size:
    """Of a corpus, all copies counted; an estimate."""

    documents: int
    rows: int
    tokens: int
    positions: int

    def num_bytes(self, codec: Codec) -> float:
        """About how large a set with this codec will be."""
        return self.tokens * BYTES_PER_TOKEN + self.positions * CODECS[codec.name].num_bytes(codec)


def estimate_size(text: Text, tokens: MlmTokenizer, plan: MaskingPlan) -> Size:
    """Cuts and masks documents spread evenly over the corpus, and multiplies."""
    total = text.documents.num_documents
    starts = np.unique(np.linspace(0, max(0, total - 8), -(-min(total, SAMPLED_DOCUMENTS) // 8)).astype(int))
    documents = rows = num_tokens = positions = 0
    for start in starts.tolist():
        stop = min(start + 8, total)
        documents += stop - start
        for split in SPLITS:
            for sequences in text.sequences(tokens, split, start, stop):
                masked = mask(sequences, plan)
                rows += len(masked.sequence_R)
                num_tokens += len(masked.ids.flat)
                positions += len(masked.positions.flat)
    factor = total / documents
    return Size(total, round(rows * factor), round(num_tokens * factor), round(positions * factor))
