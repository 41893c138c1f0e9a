"""Settings of the commands on sets of tokens; free of torch, so that ``--help`` is quick."""

from pathlib import Path

from pydantic import Field

from pipeline.config import Config
from pipeline.environment import store_folder
from pipeline.errors import ConfigError
from pipeline.logit_set.parts import Codec, CodecName

SET_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


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


class DiffConfig(Config):
    """``distill diff``."""

    a: str = Field(description="A set: a path, or a name in the store.", json_schema_extra={"argument": True})
    b: str = Field(description="The set to compare it with.", json_schema_extra={"argument": True})
    tolerance: float = Field(1e-4, ge=0, description="Logits that differ by more have moved.")
    store: Path = Field(default_factory=store_folder, description="Folder of logit sets (DISTILL_STORE).")
    allow_unverified: bool = Field(False, description="Compare sets that are complete but not verified.")
    json_output: bool = Field(False, description="Print the result as JSON.")


class RecodeConfig(CodecFlags):
    """``distill recode``."""

    logits: str = Field(
        description="Set of tokens with codec hidden or dense: a path, or a name in the store.",
        json_schema_extra={"argument": True},
    )
    name: str = Field(pattern=SET_NAME, description="Name of the new set.")
    store: Path = Field(default_factory=store_folder, description="Folder of logit sets (DISTILL_STORE).")
    allow_unverified: bool = Field(False, description="Read a set that is complete but not verified.")
    json_output: bool = Field(False, description="Print the result as JSON.")
