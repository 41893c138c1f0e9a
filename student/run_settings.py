"""Settings of the commands about a finished run. The module does not import torch, so that ``--help`` is quick."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.parsing import names_of
from pipeline.settings import Settings
from pipeline.shared_settings import JsonFlags, StoreFlags, UnverifiedFlags
from student.cascade.cascade_settings import CollectFlags
from student.settings import TableDtype
from student.source_settings import FORMERLY_LOGITS

FileTableDtype = Literal["float32", "float16", "bfloat16", "int8"]
HeadDtype = Literal["float32", "bfloat16", "int8"]
STDIN = Path("-")
OUTPUT_FORMATS = (".parquet", ".csv", ".tsv", ".jsonl")


class RunFlags(Settings):
    """For the commands about one run."""

    run: Path = Field(description="Folder of a run.", json_schema_extra={"argument": True})


class CostFlags(Settings):
    """For the commands that choose labels by the cost of mistakes."""

    cost: tuple[str, ...] = Field(
        (), description="Cost of missing a label, as LABEL=NUMBER. Repeat for more. Default: 1 for every label."
    )


class EvaluateSettings(RunFlags, CostFlags, StoreFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill evaluate``."""

    set: str | None = Field(
        None, description="Logit set to evaluate on. Default: the run's own.", json_schema_extra=FORMERLY_LOGITS
    )
    data: Path | None = Field(
        None,
        description="File of rows with gold to evaluate on: Parquet, CSV, TSV, JSON or JSON lines. Default: --set.",
    )
    text: str | None = Field(None, description="Column of the texts in --data. Default: as in the task's files.")
    text2: str | None = Field(
        None, description="Column of the second texts in --data, if rows are pairs. Default: as in the task's files."
    )
    label: str | None = Field(None, description="Column of the gold in --data. Default: as in the task's files.")
    manifest: Path | None = Field(None, description="YAML file of the task, which names the columns of --data.")
    teacher: Path | None = Field(None, description="Folder of a teacher of texts, to score on --data, too.")
    baseline: bool = Field(
        False,
        description="Also fit a linear model on n-grams of the training rows, or on words with two to either side, and "
        "score it.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        columns = {"--text": self.text, "--text2": self.text2, "--label": self.label, "--manifest": self.manifest}
        columns["--teacher"] = self.teacher
        problems = []
        if self.data is None:
            problems += [f"{flag}: is for --data FILE, which is missing" for flag, given in columns.items() if given]
        elif self.set is not None:
            problems.append("--set: rows are read either from a set or from --data. Remove one of them")
        if problems:
            raise ValueError("; ".join(problems))
        return self


class PredictSettings(RunFlags, CostFlags, CollectFlags, JsonFlags):
    """Flags of ``distill predict``."""

    run: Path = Field(
        description="Folder of a run, or a student's file (distill export --file), which needs no torch.",
        json_schema_extra={"argument": True},
    )
    texts: tuple[str, ...] = Field(
        (), description="Sentences, two per input if the task has pairs.", json_schema_extra={"argument": True}
    )
    tasks: str | None = Field(
        None, description="Tasks to answer, as NAME,NAME, of a run of several. Default: all that RUN has."
    )
    file: Path | None = Field(
        None,
        description="File to predict: Parquet, CSV, TSV or JSON lines with the columns of the task, or sentence1 (and "
        "sentence2), or a .txt with a sentence per line. -: JSON lines from standard input.",
    )
    output: Path | None = Field(None, description="Output file for --file: .parquet, .csv, .tsv or .jsonl.")
    columns: tuple[str, ...] = Field((), description="Column of --file to copy to the output. Repeat for more.")
    manifest: Path | None = Field(None, description="YAML file of the task, which names the columns of --file.")
    explain: bool = Field(False, description="Also show the effect of each word on the prediction.")
    abstain: bool = Field(False, description="Predict abstain below the margin that `distill certify` found.")

    @field_validator("tasks")
    @classmethod
    def _names_tasks(cls, tasks: str | None) -> str | None:
        if tasks is not None and not tasks.strip(", "):
            raise ValueError("names no task. Write it as --tasks mrpc,stsb")
        return tasks

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks to answer. Empty: all."""
        return names_of(self.tasks)

    @property
    def reads_stdin(self) -> bool:
        """Whether rows come from standard input, and answers go to standard output."""
        return self.file == STDIN

    @model_validator(mode="after")
    def _fits(self) -> Self:
        output, file = self.output, self.file
        problems = []
        if bool(self.texts) == (file is not None):
            problems.append("give either sentences or --file. --file - reads JSON lines from standard input")
        if output is not None and (file is None or self.reads_stdin):
            problems.append("--output: needs --file FILE. Predictions for standard input go to standard output")
        if output is not None and output.suffix.lower() not in OUTPUT_FORMATS:
            problems.append(f"--output {output}: unknown extension. Use one of {', '.join(OUTPUT_FORMATS)}")
        if output is not None and file is not None and output.resolve() == file.resolve():
            problems.append(f"--output {output}: is the input file. Choose another file")
        if self.columns and output is None and not self.reads_stdin:
            problems.append("--columns: needs --output, or rows from standard input")
        if self.cost and self.abstain:
            problems.append("--cost: a certificate is about the most probable label. Remove --abstain")
        if self.explain and (output is not None or self.reads_stdin):
            problems.append("--explain: supports sentences, or a --file without --output. Remove --output")
        if self.manifest is not None and file is None:
            problems.append("--manifest: names the columns of --file, but --file is missing")
        if problems:
            raise ValueError("; ".join(problems))
        return self


class MaskedWordsSettings(StoreFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill masked-words``."""

    runs: tuple[str, ...] = Field(description="Folders of runs of one task.", json_schema_extra={"argument": True})
    set: str = Field(
        description="Set written by `teacher-dump --augment mask-each`: a path, or a name in the store.",
        json_schema_extra=FORMERLY_LOGITS,
    )
    output: Path | None = Field(None, description="HTML page to write, with some rows word by word.")


class CertifySettings(RunFlags, StoreFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill certify``."""

    set: str | None = Field(
        None, description="Logit set whose rows are used. Default: the run's own.", json_schema_extra=FORMERLY_LOGITS
    )
    where: str = Field(
        description="SQL condition for training rows that RUN was not trained on, such as 'source_row % 10 = 0'."
    )
    disagreement: float = Field(
        0.01, gt=0, lt=1, description="Largest accepted share of predictions that differ from the teacher's."
    )
    confidence: float = Field(0.95, gt=0, lt=1, description="Confidence of that bound.")
    replace: bool = Field(False, description="Replace a stricter certificate of the same weights.")


class DescribeSettings(StoreFlags, JsonFlags):
    """Flags of ``distill describe``."""

    set_or_run: str = Field(
        description="Logit set (a path, or a name in the store), folder of a run, name of a shipped recipe, or a "
        "recipe's file.",
        json_schema_extra={"argument": True},
    )


class ExportSettings(RunFlags, StoreFlags, JsonFlags):
    """Flags of ``distill export``."""

    onnx: Path | None = Field(None, description="ONNX file to write, for any batch size and length.")
    html: Path | None = Field(None, description="HTML file to write, a page that needs no server.")
    file: Path | None = Field(None, description="File to write for the engine without torch.")
    table_dtype: FileTableDtype | None = Field(
        None, description="Data type of the embedding tables of --file. Default: that of RUN, without any rounding."
    )
    head_dtype: HeadDtype | None = Field(None, description="Data type of the layers in --file. Default: float32.")
    output_dir: Path | None = Field(None, description="Folder to write, with smaller --tables.")
    tables: TableDtype | None = Field(None, description="Data type of the embedding tables. Default: as in RUN.")
    set: str | None = Field(
        None,
        description="Logit set on which scores are measured. Default: the run's own.",
        json_schema_extra=FORMERLY_LOGITS,
    )
