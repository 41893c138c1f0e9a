"""Settings of ``distill augment``; free of torch, so that ``--help`` is quick."""

from typing import ClassVar, Literal

from pydantic import Field

from pipeline.config import JsonFlags, OwnDataFlags, StoreFlags
from pipeline.sets.record_parts import SET_NAME
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
        "method": "tinybert: words a masked LM proposes; mask-pos: masks and words of a kind; mask-each: each word "
        "masked in turn, of dev rows, to see which ones matter.",
        "precision": "tinybert: arithmetic of the masked LM.",
        "max_seq_length": "tinybert: longest input of the masked LM in tokens.",
    }
    task: str | None = Field(None, description="Task to augment; see `distill tasks`.")
    by: ByTinyBert | ByMaskPos | ByMaskEach = Field(discriminator="method")
    name: str | None = Field(None, pattern=SET_NAME, description="Name of the variants. (default: TASK-METHOD)")
