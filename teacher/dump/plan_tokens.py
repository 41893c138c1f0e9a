"""``teacher-dump --corpus … --plan``: rows, shards, bytes, time and memory, before any model is loaded."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForMaskedLM

from pipeline.devices import processes
from pipeline.sets.codecs import codec_for
from pipeline.sets.kinds.masked_words import MaskedRows, no_statistics
from teacher.config import DumpCorpus
from teacher.corpus.masking import MaskingPlan, mask
from teacher.corpus.text import SPLITS, Text, masking_plan, open_text
from teacher.dump.calibration import seconds_of
from teacher.dump.corpus_size import estimate_size
from teacher.dump.plan_examples import Plan, memory_bytes
from teacher.dump.tokens import encoded_predictions, rows_of
from teacher.dump.tokens_record import all_shards
from teacher.models.batches import tokens_per_batch
from teacher.models.loaded import inference_mode, load_config
from teacher.models.masked_lm import MaskedLm, MlmTokenizer, load_mlm_tokenizer

SAMPLED_ROWS = 256


def estimate_mlm(config: DumpCorpus) -> Plan:
    """Estimates a dump from a sample of the corpus and the teacher's config, whose shape is timed on this machine."""
    text = open_text(config, config.max_seq_length)
    name, revision = config.teacher_for(text.corpus)
    tokens = load_mlm_tokenizer(name, revision, config.max_seq_length)
    shape = load_config(name, revision)
    codec = codec_for(config, shape.vocab_size, shape.hidden_size)
    plan = masking_plan(text, tokens, config.seed, config.num_copies)
    size = estimate_size(text, tokens, plan)
    sample = _sample(text, tokens, plan)
    device = processes().device
    max_tokens = tokens_per_batch(device, config.max_tokens_per_batch)

    def dump(lm: MaskedLm) -> object:
        with inference_mode(device, config.precision):
            return encoded_predictions(lm, codec, sample, config.seed, max_tokens, no_statistics())

    return Plan(
        rows={"documents": size.documents, "masked sequences": size.rows, "masked positions": size.positions},
        shards=len(all_shards(text, config.rows_per_shard)),
        tokens=size.tokens,
        disk_bytes=int(size.num_bytes(codec)),
        seconds=_seconds(shape, tokens, device, dump) * size.tokens / len(sample.ids.flat),
        memory_bytes=memory_bytes(shape, max_tokens),
    )


def _sample(text: Text, tokens: MlmTokenizer, plan: MaskingPlan) -> MaskedRows:
    """At most SAMPLED_ROWS masked rows of the corpus's first documents; it has some, as the estimate has seen."""
    stop = text.documents.num_documents
    parts = (part for split in reversed(SPLITS) for part in text.sequences(tokens, split, 0, stop))
    masked_parts = ((part, mask(part, plan)) for part in parts)
    sequences, masked = next((part, masked) for part, masked in masked_parts if len(masked.positions.flat))
    return rows_of(sequences, masked.take(np.arange(min(SAMPLED_ROWS, len(masked.sequence_R)))))


def _seconds(shape: Any, tokens: MlmTokenizer, device: torch.device, dump: Callable[[MaskedLm], object]) -> float:
    """Seconds that ``dump`` takes with a masked LM of this shape (its transformers config) and random weights."""

    def make(shallow: Any) -> Callable[[], object]:
        model = AutoModelForMaskedLM.from_config(shallow).eval().to(device)
        return partial(dump, MaskedLm("plan", None, model, tokens))

    return seconds_of(shape, make)
