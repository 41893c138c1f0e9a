"""``teacher-dump --corpus … --plan``: rows, shards, bytes, time and memory, before any model is loaded."""

from collections.abc import Callable
from typing import Any

import numpy as np
from accelerate import PartialState
from transformers import AutoModelForMaskedLM

from pipeline.logit_set.parts import Codec
from pipeline.logit_set.tokens import MaskedRows, no_statistics
from teacher.config import DumpConfig
from teacher.corpus.masking import MaskingPlan, mask
from teacher.corpus.text import SPLITS, Text, masking_plan, open_text
from teacher.dump.calibration import seconds_of
from teacher.dump.plan_examples import Plan, memory_bytes
from teacher.dump.tokens import rows_of, said_about
from teacher.dump.tokens_record import all_shards, estimate_size
from teacher.inference.batches import default_tokens_per_batch
from teacher.inference.loaded import load_config
from teacher.inference.masked_lm import MaskedLm, MlmTokenizer, load_mlm_tokenizer
from teacher.inference.precision import inference_mode

SAMPLED_ROWS = 256


def estimate_mlm(config: DumpConfig) -> Plan:
    """Estimates a dump from a sample of the corpus and the teacher's config, whose shape is timed on this machine."""
    text = open_text(config)
    name, revision = config.teacher_for(text.corpus)
    tokens = load_mlm_tokenizer(name, revision, config.max_seq_length)
    shape = load_config(name, revision)
    codec = config.codec_for(shape.vocab_size, shape.hidden_size)
    plan = masking_plan(text, tokens, config.seed, config.num_copies)
    size = estimate_size(text, tokens, plan)
    sample = _sample(text, tokens, plan)
    seconds = None
    if sample is not None:
        seconds = _seconds(config, shape, tokens, codec, sample) * size.tokens / len(sample.ids.flat)
    return Plan(
        rows={"documents": size.documents, "masked sequences": size.rows, "masked positions": size.positions},
        shards=len(all_shards(text, config.rows_per_shard)),
        tokens=size.tokens,
        disk_bytes=int(size.num_bytes(codec)),
        seconds=seconds,
        memory_bytes=memory_bytes(config, shape),
    )


def _sample(text: Text, tokens: MlmTokenizer, plan: MaskingPlan) -> MaskedRows | None:
    """Some masked rows of the corpus's first documents; None if there are none."""
    for split in reversed(SPLITS):
        for sequences in text.sequences(tokens, split, 0, text.documents.num_documents):
            masked = mask(sequences, plan)
            if len(masked.positions.flat):
                return rows_of(sequences, masked.take(np.arange(min(SAMPLED_ROWS, len(masked.sequence_R)))))
    return None


def _seconds(config: DumpConfig, shape: Any, tokens: MlmTokenizer, codec: Codec, sample: MaskedRows) -> float:
    """Seconds for a sample, from the forward pass to the codec's columns."""
    device = PartialState().device
    max_tokens = config.max_tokens_per_batch or default_tokens_per_batch(device)

    def make(shallow: Any) -> Callable[[], object]:
        lm = MaskedLm("plan", None, AutoModelForMaskedLM.from_config(shallow).eval().to(device), tokens)

        def run() -> object:
            with inference_mode(device, config.precision):
                return said_about(lm, codec, sample, config.seed, max_tokens, no_statistics())

        return run

    return seconds_of(shape, make)
