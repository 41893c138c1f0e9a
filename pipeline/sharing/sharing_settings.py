"""Settings of the commands that share sets. The module has no heavy imports, so that ``--help`` is quick."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from pipeline.sets.record_parts import SET_NAME
from pipeline.shared_settings import JsonFlags, OwnDataFlags, SetFlags, StoreFlags, UnverifiedFlags


class PushSettings(SetFlags, JsonFlags):
    """Flags of ``distill push``."""

    url: str = Field(
        description="Destination: a folder, s3://bucket/path, gs://bucket/path, or hf://datasets/owner/name@revision.",
        json_schema_extra={"argument": True},
    )
    without_text: bool = Field(False, description="Do not upload texts and token ids, only the hash of each text.")
    replace: bool = Field(False, description="Replace a different set at the destination.")
    public: bool = Field(False, description="Make a new repository of the hub public. Default: private.")


class PullSettings(StoreFlags, JsonFlags):
    """Flags of ``distill pull``."""

    url: str = Field(description="Location of the set, as for `distill push`.", json_schema_extra={"argument": True})
    name: str | None = Field(None, pattern=SET_NAME, description="Name of the set in the store. Default: its own.")
    replace: bool = Field(False, description="Replace a different set with this name.")


class VerifySettings(UnverifiedFlags, JsonFlags):
    """Flags of ``distill verify``."""

    set_or_run: str = Field(
        description="Logit set (a path, or a name in the store), or folder of a run.",
        json_schema_extra={"argument": True},
    )
    store: Path | None = Field(
        None,
        description="Folder of logit sets. Default: DISTILL_STORE, and for the sets of a run their old location.",
        json_schema_extra={"decides": False},
    )


class JoinSettings(OwnDataFlags, SetFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill join``."""

    helps: ClassVar = {
        "data": "Folder or file with your rows. Default: DISTILL_DATA, then the hub.",
        "manifest": "YAML file of the task, if it is your own.",
        "json_output": "Print the result as JSON with every row number.",
    }
    name: str = Field(pattern=SET_NAME, description="Name of the joined set.")
