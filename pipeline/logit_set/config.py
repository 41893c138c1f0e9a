"""Settings of the commands on sets of tokens; free of torch, so that ``--help`` is quick."""

from typing import ClassVar

from pydantic import Field

from pipeline.config import Config, JsonFlags, SetFlags, UnverifiedFlags
from pipeline.errors import ConfigError
from pipeline.logit_set.parts import SET_NAME, Codec, CodecName


class CodecFlags(Config):
    """Which codec, for the commands that write sets of tokens."""

    codec: CodecName = Field("sampled", description="How distributions over the vocabulary are stored.")
    num_samples: int = Field(50, ge=1, le=255, description="Draws a position (--codec sampled).")
    temperature: float = Field(1.0, gt=0, description="Temperature of the draws (--codec sampled).")
    top_k: int = Field(50, ge=1, description="Candidates a position (--codec topk).")

    def codec_for(self, vocabulary_size: int, hidden_size: int | None) -> Codec:
        """The codec that the flags ask for.

        Raises:
            ConfigError: for more candidates than there are tokens.
        """
        if self.codec == "topk" and self.top_k > vocabulary_size:
            raise ConfigError(f"--top-k: {self.top_k}, but the vocabulary has {vocabulary_size} tokens")
        is_sampled = self.codec == "sampled"
        return Codec(
            name=self.codec,
            vocabulary_size=vocabulary_size,
            hidden_size=hidden_size if self.codec == "hidden" else None,
            top_k=self.top_k if self.codec == "topk" else None,
            num_samples=self.num_samples if is_sampled else None,
            temperature=self.temperature if is_sampled else None,
        )


class RecodeConfig(CodecFlags, SetFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill recode``."""

    helps: ClassVar = {"logits": "Set of tokens with codec hidden or dense: a path, or a name in the store."}
    name: str = Field(pattern=SET_NAME, description="Name of the new set.")
