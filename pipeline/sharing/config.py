"""Settings of the commands that share sets; free of heavy imports, so that ``--help`` is quick."""

from pathlib import Path

from pydantic import Field

from pipeline.config import Config
from pipeline.environment import store_folder
from pipeline.logit_set.config import SET_NAME


class _SetConfig(Config):
    logits: str = Field(description="A set: a path, or a name in the store.", json_schema_extra={"argument": True})
    store: Path = Field(default_factory=store_folder, description="Folder of logit sets (DISTILL_STORE).")


class PushConfig(_SetConfig):
    """``distill push``."""

    url: str = Field(
        description="Where to: a folder, s3://bucket/path, gs://bucket/path, hf://datasets/owner/name@revision.",
        json_schema_extra={"argument": True},
    )
    without_text: bool = Field(False, description="Leave texts and token ids out; rows keep the hash of their text.")
    replace: bool = Field(False, description="Take the place of a different set that is there.")
    public: bool = Field(False, description="Make a new repository of the hub public. (default: private)")
    json_output: bool = Field(False, description="Print the result as JSON.")


class PullConfig(Config):
    """``distill pull``."""

    url: str = Field(description="Where the set lies, as for `distill push`.", json_schema_extra={"argument": True})
    name: str | None = Field(None, pattern=SET_NAME, description="Name of the set here. (default: its own)")
    store: Path = Field(default_factory=store_folder, description="Folder of logit sets (DISTILL_STORE).")
    replace: bool = Field(False, description="Take the place of a different set of this name.")
    json_output: bool = Field(False, description="Print the result as JSON.")


class VerifyConfig(_SetConfig):
    """``distill verify``."""

    json_output: bool = Field(False, description="Print the result as JSON.")


class CardConfig(_SetConfig):
    """``distill card``."""

    write: bool = Field(False, description="Write it as the set's README.md instead of printing it.")


class JoinConfig(_SetConfig):
    """``distill join``."""

    data: Path | None = Field(None, description="Folder or file with your rows. (default: DISTILL_DATA, then the hub)")
    manifest: Path | None = Field(None, description="YAML file with the task, if it is one of your own.")
    name: str = Field(pattern=SET_NAME, description="Name of the joined set.")
    allow_unverified: bool = Field(False, description="Join a set that is complete but not verified.")
    json_output: bool = Field(False, description="Print the result as JSON, every row number included.")
