"""The two methods as the flags want them: what decides their variants, and how to get ready to make them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from accelerate import PartialState

from pipeline.logit_set.parts import (
    Setting,
)
from pipeline.sources import ROWS_AT_ONCE, rows_sha256
from pipeline.tasks.task import Task
from teacher.augment.candidates import distinct_sentences, find_sites, prepare_masked_lm
from teacher.augment.mask_pos import MaskPos, make_pools
from teacher.augment.tagging import pattern_tagger
from teacher.augment.tinybert import TinyBert
from teacher.config import AugmentConfig

RULES = 1  # to be raised when the same settings give other variants


@dataclass(frozen=True)
class Plan:
    """What is known before any long work.

    Attributes:
        settings: all that decides the variants.
        prepare: does what must be done before the first variant; to be called by every process.
    """

    settings: dict[str, Setting]
    prepare: Callable[[PartialState], TinyBert | MaskPos]


def plan_method(config: AugmentConfig, task: Task, rows: pa.Table) -> Plan:
    """Makes sure that the method can be used on these rows.

    Raises:
        DistillError: if a model, a file or a package that it needs cannot be used.
    """
    plan = _tinybert(config, rows) if config.method == "tinybert" else _mask_pos(config, rows)
    own: dict[str, Setting] = {"num_variants": config.variants_of(task), "seed": config.seed}
    return Plan(common_settings(config, task, rows) | own | plan.settings, plan.prepare)


def common_settings(config: AugmentConfig, task: Task, rows: pa.Table) -> dict[str, Setting]:
    """What is being augmented, and by which rules."""
    return {
        "method": config.method,
        "rules": RULES,
        "task": f"{task.name} version {task.version}",
        "source": rows_sha256(rows),
    }


def _tinybert(config: AugmentConfig, rows: pa.Table) -> Plan:
    asked = prepare_masked_lm(config)

    def prepare(state: PartialState) -> TinyBert:
        distinct, numbers_NS = distinct_sentences(rows)
        sites = find_sites(config, asked, distinct, state)
        return TinyBert(sites, numbers_NS, config.replace_probability, config.seed)

    own: dict[str, Setting] = {"pairs": config.pairs, "replace_probability": config.replace_probability}
    return Plan(asked.settings | own, prepare)


def _mask_pos(config: AugmentConfig, rows: pa.Table) -> Plan:
    settings: dict[str, Setting] = {
        "mask_probability": config.mask_probability,
        "pos_probability": config.pos_probability,
        "ngram_probability": config.ngram_probability,
    }
    shares = (config.mask_probability, config.pos_probability, config.ngram_probability)
    if not config.pos_probability:
        return Plan(settings, lambda state: MaskPos(*shares, config.seed))
    name, tagger = pattern_tagger()
    return Plan(
        settings | {"tagger": name},
        lambda state: MaskPos(*shares, config.seed, tagger, make_pools(_texts(rows), tagger)),
    )


def _texts(rows: pa.Table) -> Iterator[str]:
    """Every sentence, with only some of them as Python strings at a time."""
    for batch in rows.select(["sentence1", "sentence2"]).to_batches(max_chunksize=ROWS_AT_ONCE):
        for column in batch.columns:
            yield from (text for text in column.to_pylist() if text is not None)
