"""Settings of ``distill augment``. The module does not import torch, so that ``--help`` is quick."""

from typing import ClassVar, Literal

from pydantic import Field

from pipeline.sets.record_parts import SET_NAME
from pipeline.shared_settings import JsonFlags, OwnDataFlags, StoreFlags
from teacher.augment.methods import MaskEach, MaskPos, TinyBert


class ByTinyBert(TinyBert):
    """`TinyBert`, chosen by ``--method``."""

    method: Literal["tinybert"] = Field(json_schema_extra={"decides": False})


class ByMaskPos(MaskPos):
    """`MaskPos`, chosen by ``--method``."""

    method: Literal["mask-pos"] = Field(json_schema_extra={"decides": False})


class ByMaskEach(MaskEach):
    """`MaskEach`, chosen by ``--method``."""

    method: Literal["mask-each"] = Field(json_schema_extra={"decides": False})


class AugmentSettings(OwnDataFlags, StoreFlags, JsonFlags):
    """Settings of ``distill augment``."""

    helps: ClassVar = {
        "method": "Method. tinybert: words proposed by a masked LM. mask-pos: masks, and words of the same part of "
        "speech. mask-each: each word of dev rows masked in turn, to see which ones matter.",
        "precision": "tinybert: precision of the masked LM.",
        "max_seq_length": "tinybert: maximum input length of the masked LM in tokens.",
    }
    task: str | None = Field(None, description="Task to augment. See `distill tasks`.")
    by: ByTinyBert | ByMaskPos | ByMaskEach = Field(discriminator="method")
    name: str | None = Field(None, pattern=SET_NAME, description="Name of the variants. Default: TASK-METHOD.")
