"""``teacher-dump --corpus … --plan``: how much a corpus comes to, from a sample of it."""

from dataclasses import dataclass

import numpy as np

from pipeline.logit_set.codec import Codec
from pipeline.logit_set.codecs import CODECS
from teacher.config import DumpConfig
from teacher.estimate import Plan, cost
from teacher.mlm.masking import MaskingPlan, mask
from teacher.mlm.model import MlmTokenizer, load_mlm_tokenizer
from teacher.mlm.staging import all_shards
from teacher.mlm.text import SPLITS, Text, masking_plan, open_text
from teacher.models import load_config

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


def estimate_mlm(config: DumpConfig) -> Plan:
    """Estimates a dump from a sample of the corpus and the teacher's config; loads no weights."""
    text = open_text(config)
    name, revision = config.teacher_for(text.corpus)
    tokens = load_mlm_tokenizer(name, revision, config.max_seq_length)
    model = load_config(name, revision)
    codec = config.codec_for(model.vocab_size, model.hidden_size)
    size = estimate_size(text, tokens, masking_plan(text, tokens, config.seed, config.num_copies))
    seconds, memory = cost(config, name, revision, size.tokens + tokens.num_special * size.rows, size.positions)
    return Plan(
        rows={"documents": size.documents, "masked sequences": size.rows, "masked positions": size.positions},
        shards=len(all_shards(text, config.rows_per_shard)),
        tokens=size.tokens,
        disk_bytes=int(size.num_bytes(codec)),
        seconds=seconds,
        memory_bytes=memory,
    )
