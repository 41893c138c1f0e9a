"""Settings of the commands about sets. The module has no heavy imports, so that ``--help`` is quick."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator

from pipeline.sets.codec_text import RecodedText
from pipeline.sets.record_parts import SET_NAME
from pipeline.shared_settings import JsonFlags, OwnDataFlags, SetFlags, StoreFlags, UnverifiedFlags


class RecodeSettings(SetFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill recode``."""

    helps: ClassVar = {
        "set": "Set of masked words with codec hidden or dense, or of examples with layer outputs: a path, or a "
        "name in the store."
    }
    codec: RecodedText = Field(
        "sampled-50",
        description="Codec of distributions: sampled-N, sampled-N@T (temperature T), topk-K or dense. Of layers: "
        "SIGNAL=CODEC, such as `states=pca-64 attention=u8`.",
    )
    name: str | None = Field(None, pattern=SET_NAME, description="Name of the new set.")
    plan: bool = Field(False, description="Print the size and the loss of each codec, measured on a sample, and stop.")
    sample: int | None = Field(
        None, ge=1, description="Sample of --plan. Default: 2000 masked positions, or 512 rows with layers."
    )

    @model_validator(mode="after")
    def _written_or_planned(self) -> Self:
        if self.plan:
            extra = sorted({"codec", "name"} & self.model_fields_set)
            if extra:
                raise ValueError(f"--plan: measures all codecs and writes nothing. Remove --{extra[0]}.")
        elif self.name is None:
            raise ValueError("--name: missing. Give the new set a name, or use --plan.")
        elif self.sample is not None:
            raise ValueError("--sample: is the sample of --plan. Add --plan, or remove it.")
        return self


class DiffSettings(StoreFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill diff``."""

    a: str = Field(description="Logit set: a path, or a name in the store.", json_schema_extra={"argument": True})
    b: str = Field(description="Logit set to compare it with.", json_schema_extra={"argument": True})
    tolerance: float = Field(1e-4, ge=0, description="Largest difference of logits that counts as equal.")


class SqlSettings(StoreFlags):
    """Flags of ``distill sql``."""

    query: str | None = Field(
        None,
        description="One SELECT. Tables: sets, shards, teachers, examples, and a view per set. -: read it from "
        "standard input. Without a query, a terminal shows a prompt.",
        json_schema_extra={"argument": True},
    )
    file: Path | None = Field(None, description="Read the query from a file.")
    explain_row: str | None = Field(
        None, description="Show the origin of the row SET:SPLIT:ROW[:VARIANT] instead of a query."
    )
    csv: bool = Field(False, description="Print rows as CSV.")
    parquet: Path | None = Field(None, description="Write rows to a Parquet file.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        is_query = self.query is not None or self.file is not None
        if self.explain_row is not None and (is_query or self.csv or self.parquet is not None):
            raise ValueError("--explain-row can only be combined with --store and --json. Remove the other flags.")
        if self.query is not None and self.file is not None:
            raise ValueError("the query is given twice, as an argument and as --file. Remove one of them.")
        return self


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
