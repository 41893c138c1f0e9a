"""Flags of the methods of augmentation; free of torch, so that ``--help`` is quick."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from pipeline.cluster.ray_pool import RayFlags
from pipeline.config import Config, SeedFlags, StoreFlags
from teacher.augment.words import MASK
from teacher.models.config import ForwardFlags

Pairs = Literal["each", "both"]


class AugmentFlags(Config):
    """How rows are augmented, for the commands that do it."""

    panel: ClassVar = "Variants of training rows"
    num_variants: int | None = Field(
        None,
        ge=1,
        description="Variants of a row; tinybert: of each of its sentences; mask-each: words masked of each, from its "
        "start. (default: the task's)",
    )
    pairs: Pairs = Field("each", description="tinybert: a variant changes one sentence of a pair, or both.")
    masked_lm: str = Field(
        "bert-base-uncased", description="tinybert: masked LM that proposes words; a hub id or a folder."
    )
    word_vectors: Path | None = Field(
        None, description="tinybert: GloVe or word2vec text file, for words of several pieces. (default: kept)"
    )
    num_candidates: int = Field(15, ge=1, description="tinybert: words to choose from at each place, K.")
    replace_probability: float = Field(0.4, gt=0, le=1, description="tinybert: share of words replaced, p_t.")
    mask_probability: float = Field(0.1, ge=0, lt=1, description="mask-pos: share of words masked.")
    mask_token: str = Field(
        MASK, min_length=1, description="mask-pos, mask-each: how a mask is written; <mask> for RoBERTa and XLM-R."
    )
    pos_probability: float = Field(
        0.1, ge=0, lt=1, description="mask-pos: share of words replaced by one of the same part of speech; 0 for none."
    )
    ngram_probability: float = Field(0.0, ge=0, le=1, description="mask-pos: share of variants cut to 1 to 5 words.")
    sentences: int = Field(200, ge=1, description="mask-each: so many rows of the split, from its start.")


class MethodFlags(AugmentFlags, StoreFlags, ForwardFlags, SeedFlags, RayFlags):
    """All that a method reads."""
