"""Settings of the commands that share sets; free of heavy imports, so that ``--help`` is quick."""

from typing import ClassVar

from pydantic import Field

from pipeline.config import JsonFlags, OwnDataFlags, SetFlags, StoreFlags, UnverifiedFlags
from pipeline.sets.record_parts import SET_NAME


class PushConfig(SetFlags, JsonFlags):
    """Flags of ``distill push``."""

    url: str = Field(
        description="Where to: a folder, s3://bucket/path, gs://bucket/path, hf://datasets/owner/name@revision.",
        json_schema_extra={"argument": True},
    )
    without_text: bool = Field(False, description="Leave texts and token ids out; rows keep the hash of their text.")
    replace: bool = Field(False, description="Take the place of a different set that is there.")
    public: bool = Field(False, description="Make a new repository of the hub public. (default: private)")


class PullConfig(StoreFlags, JsonFlags):
    """Flags of ``distill pull``."""

    url: str = Field(description="Where the set lies, as for `distill push`.", json_schema_extra={"argument": True})
    name: str | None = Field(None, pattern=SET_NAME, description="Name of the set here. (default: its own)")
    replace: bool = Field(False, description="Take the place of a different set of this name.")


class VerifyConfig(SetFlags, JsonFlags):
    """Flags of ``distill verify``."""


class CardConfig(SetFlags):
    """Flags of ``distill card``."""

    write: bool = Field(False, description="Write it as the set's README.md instead of printing it.")


class JoinConfig(OwnDataFlags, SetFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill join``."""

    helps: ClassVar = {
        "data": "Folder or file with your rows. (default: DISTILL_DATA, then the hub)",
        "manifest": "YAML file with the task, if it is one of your own.",
        "json_output": "Print the result as JSON, every row number included.",
    }
    name: str = Field(pattern=SET_NAME, description="Name of the joined set.")
