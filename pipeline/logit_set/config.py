"""Settings of the commands on sets; free of torch, so that ``--help`` is quick."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from pipeline.config import Config, JsonFlags, SetFlags, UnverifiedFlags
from pipeline.logit_set.parts import SET_NAME

if TYPE_CHECKING:
    from pipeline.logit_set.codecs import AnyCodec

CodecName = Literal["dense", "hidden", "topk", "sampled"]


class CodecFlags(Config):
    """Which codec, for the commands that write sets of tokens."""

    codec: CodecName = Field("sampled", description="How distributions over the vocabulary are stored.")
    num_samples: int = Field(50, ge=1, le=255, description="Draws a position (--codec sampled).")
    temperature: float = Field(1.0, gt=0, description="Temperature of the draws (--codec sampled).")
    top_k: int = Field(50, ge=1, description="Candidates a position (--codec topk).")

    def codec_for(self, vocabulary_size: int, hidden_size: int | None) -> "AnyCodec":
        """The codec that the flags ask for.

        Args:
            vocabulary_size: of the teacher's last layer, V.
            hidden_size: of its input, H; None where it is not at hand.

        Raises:
            ConfigError: if the flags do not fit these sizes.
        """
        from pipeline.logit_set.codecs import CODECS

        return CODECS[self.codec].of_flags(self, vocabulary_size, hidden_size)


class RecodeConfig(CodecFlags, SetFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill recode``."""

    helps: ClassVar = {"logits": "Set of tokens with codec hidden or dense: a path, or a name in the store."}
    name: str = Field(pattern=SET_NAME, description="Name of the new set.")
