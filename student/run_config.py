"""Settings of the commands about a finished run; free of torch, so that ``--help`` is quick."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from pipeline.config import Config, JsonFlags, StoreFlags, UnverifiedFlags
from student.config import FORMERLY_LOGITS

TableDtype = Literal["float32", "float16", "int8"]
FileTableDtype = Literal["float32", "float16", "bfloat16", "int8"]
HeadDtype = Literal["float32", "bfloat16", "int8"]
STDIN = Path("-")
OUTPUT_FORMATS = (".parquet", ".csv", ".tsv", ".jsonl")


class RunFlags(Config):
    """For the commands about one run."""

    run: Path = Field(description="Folder of a run.", json_schema_extra={"argument": True})


class CostFlags(Config):
    """For the commands that choose labels by what a mistake costs."""

    cost: tuple[str, ...] = Field(
        (), description="What it costs to miss a label, as LABEL=NUMBER; repeat for more. (default: 1 for every label)"
    )


class EvaluatePretrained(RunFlags, StoreFlags, UnverifiedFlags, JsonFlags):
    """What ``distill evaluate`` takes for a pretraining run."""

    set: str | None = Field(
        None, description="Evaluate on this set. (default: what it was trained on)", json_schema_extra=FORMERLY_LOGITS
    )


class EvaluateConfig(CostFlags, EvaluatePretrained):
    """Flags of ``distill evaluate``."""


class ReproduceConfig(RunFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill reproduce``."""

    store: Path | None = Field(None, description="Look for its sets by name in this folder. (default: where they were)")


class PredictConfig(RunFlags, CostFlags, JsonFlags):
    """Flags of ``distill predict``."""

    run: Path = Field(
        description="Folder of a run, or a student's file (distill export --file), which needs no torch.",
        json_schema_extra={"argument": True},
    )
    texts: tuple[str, ...] = Field(
        (), description="Sentences; for a pair task two per input.", json_schema_extra={"argument": True}
    )
    file: Path | None = Field(
        None,
        description="Parquet, CSV, TSV or JSON lines with the task's columns, or with sentence1 (and sentence2); a "
        ".txt with a sentence on each line; or -, JSON lines from standard input.",
    )
    output: Path | None = Field(None, description="File for the answers to --file: .parquet, .csv, .tsv or .jsonl.")
    columns: tuple[str, ...] = Field((), description="Keep this column of --file beside the answers; repeat for more.")
    manifest: Path | None = Field(None, description="YAML file of the task, which names the columns of --file.")
    explain: bool = Field(False, description="Tell of each word, too, what the answer loses without it.")
    abstain: bool = Field(
        False, description="Answer abstain where the student is less sure than `distill certify` has found it must be."
    )

    @property
    def reads_stdin(self) -> bool:
        """Whether rows come from standard input, and answers go to standard output."""
        return self.file == STDIN

    @model_validator(mode="after")
    def _fits(self) -> Self:
        output, file = self.output, self.file
        problems = []
        if bool(self.texts) == (file is not None):
            problems.append("nothing to predict, or too much: give sentences or --file, one of them")
        if output is not None and (file is None or self.reads_stdin):
            problems.append("--output: is for the answers to a file; those to standard input go to standard output")
        if output is not None and output.suffix.lower() not in OUTPUT_FORMATS:
            problems.append(
                f"--output {output}: its ending is none of {', '.join(OUTPUT_FORMATS)}; give it one of these"
            )
        if output is not None and file is not None and output.resolve() == file.resolve():
            problems.append(f"--output {output}: is the file that is read")
        if self.columns and output is None and not self.reads_stdin:
            problems.append("--columns: are kept in --output, or from standard input")
        if self.cost and self.abstain:
            problems.append("--cost: a certificate is about the likeliest label; leave out --abstain")
        if self.explain and (output is not None or self.reads_stdin):
            problems.append("--explain: is for sentences, or a --file whose answers are printed; leave out --output")
        if self.manifest is not None and file is None:
            problems.append("--manifest: names the columns of --file, and there is none")
        if problems:
            raise ValueError("; ".join(problems))
        return self


class MaskedWordsConfig(StoreFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill masked-words``."""

    runs: tuple[str, ...] = Field(description="Folders of runs of one task.", json_schema_extra={"argument": True})
    set: str = Field(
        description="Set of `teacher-dump --augment mask-each`: a path, or a name in the store.",
        json_schema_extra=FORMERLY_LOGITS,
    )
    output: Path | None = Field(None, description="Draw some rows, word by word, on this HTML page.")


class CertifyConfig(RunFlags, StoreFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill certify``."""

    set: str | None = Field(
        None, description="Take rows of this set. (default: what it was trained on)", json_schema_extra=FORMERLY_LOGITS
    )
    where: str = Field(
        description="SQL condition that selects training rows which RUN was not trained on, like 'source_row % 10 = 0'."
    )
    disagreement: float = Field(0.01, gt=0, lt=1, description="Greatest share of answers that differ from the teacher.")
    confidence: float = Field(0.95, gt=0, lt=1, description="Confidence that no more differ.")


class DescribeConfig(JsonFlags):
    """Flags of ``distill describe``."""

    run_or_recipe: str = Field(
        description="Folder of a run, name of a shipped recipe, or a recipe's file.",
        json_schema_extra={"argument": True},
    )


class ExportConfig(RunFlags, StoreFlags, JsonFlags):
    """Flags of ``distill export``."""

    onnx: Path | None = Field(None, description="Write the student as an ONNX file, for any batch and length.")
    html: Path | None = Field(None, description="Write the student as one HTML file, a page that answers by itself.")
    file: Path | None = Field(None, description="Write the student as one file for the engine without torch.")
    table_dtype: FileTableDtype | None = Field(
        None, description="How the embedding tables of --file are stored. (default: float32)"
    )
    head_dtype: HeadDtype | None = Field(None, description="How the head of --file is stored. (default: float32)")
    output_dir: Path | None = Field(None, description="Write the student as a folder, with smaller --tables.")
    tables: TableDtype | None = Field(None, description="How the embedding tables are stored. (default: as in RUN)")
    set: str | None = Field(
        None,
        description="Measure the scores on this set. (default: what it was trained on)",
        json_schema_extra=FORMERLY_LOGITS,
    )
