"""Tasks and corpora, one YAML file each: columns, labels, metrics and a default teacher; unlabelled text."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from pipeline.config import parse_model, parse_yaml
from pipeline.errors import ConfigError, did_you_mean, unreadable

ClassMetric = Literal["accuracy", "f1", "macro_f1", "matthews_correlation"]
LabelMetric = Literal["micro_f1", "macro_f1"]
ScoreMetric = Literal["pearson", "spearmanr"]
WordMetric = Literal["span_f1", "accuracy"]  # of labelled words, which `pipeline.tasks.spans` works out
Metric = Literal[ClassMetric, LabelMetric, ScoreMetric, WordMetric]  # the others `pipeline.tasks.metrics`
# Split names become parts of file names and of SQL, so that quotes, slashes and dots are excluded.
SPLIT_PATTERN = r"^[a-z][a-z0-9_]{0,99}$"
# The split that students learn from, and that rows are added to.
TRAIN = "train"
MAX_BINS = 10_000
Objective = Literal["classification", "regression"]
TaskType = Literal[Objective, "multilabel", "token_labels"]
METRICS: dict[TaskType, Any] = {
    "classification": ClassMetric,
    "multilabel": LabelMetric,
    "regression": ScoreMetric,
    "token_labels": WordMetric,
}
# The label of a word that is in no span.
OUTSIDE = "O"
MethodName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,99}$")]  # of augmentation. The teacher stage defines them
M = TypeVar("M", bound=BaseModel)
N = TypeVar("N", bound="Manifest")
Names = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(lambda v: [v] if isinstance(v, str) else v)]
Rows = Annotated[int, Field(ge=0, le=2**40)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Manifest(_Part):
    """What the manifests of tasks and corpora have in common."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    version: int = Field(default=1, ge=1)
    description: str = ""


class Columns(_Part):
    """Names under which a source may hold each column; the first one present is used.

    Attributes:
        sentence1: the text; of a task of labelled words the list of its words.
        label: may be missing of a multi-label task, whose labels then have a column each.
    """

    sentence1: Names
    sentence2: Names | None = None
    label: Names | None = None

    @property
    def texts(self) -> tuple[Names, ...]:
        """The names of the columns of text."""
        return (self.sentence1,) if self.sentence2 is None else (self.sentence1, self.sentence2)


class Hub(_Part):
    """Where the task lives on the Hugging Face hub."""

    id: str
    config: str | None = None
    revision: str | None = None


class Bins(_Part):
    """Classes cut from a score: ``low, low + width, …, high``."""

    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    width: float = Field(gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _few(self) -> Self:
        if not 0 < self.high - self.low < MAX_BINS * self.width:
            raise ValueError(f"from {self.low:g} to {self.high:g} by {self.width:g} are not 2 to {MAX_BINS:,} bins")
        return self

    @property
    def values(self) -> tuple[float, ...]:
        """The score in the middle of each bin."""
        # Rounding removes float noise such as 0.30000000000000004, which would end up in labels and reports.
        return tuple(round(self.low + k * self.width, 6) for k in range(self.count))

    @property
    def count(self) -> int:
        """Number of bins, both ends included."""
        # round(), because 5 / 0.2 may come out slightly below 25.
        return round((self.high - self.low) / self.width) + 1


class DefaultTeacher(_Part):
    """The teacher used when none is named; ``labels`` is *its* order of the label names."""

    model: str
    revision: str | None = None
    labels: tuple[str, ...] = ()


class Task(Manifest):
    """One supervised task, as its manifest in ``data_manifests/`` describes it.

    Attributes:
        type: ``multilabel`` if any number of labels may hold of a row, each by itself; ``token_labels`` if each of its
            words has a label.
        label_separator: what stands between the labels of a row where a multi-label source has them in one text.
        augment: the method of augmentation that a dump uses by default: one that was seen to improve
            the task's students.
        num_variants: how many variants of a row a method of augmentation makes, where it is not the usual number.
        token_vectors_from: the source of the token vectors that a dump stores by default: ``teacher``, for a task
            whose students were seen to gain by its own.
    """

    type: TaskType
    columns: Columns
    labels: tuple[str, ...] = ()
    label_separator: str = Field(default=",", min_length=1)
    score_range: tuple[float, float] | None = None
    bins: Bins | None = None
    splits: dict[Annotated[str, Field(pattern=SPLIT_PATTERN)], Rows | None] = Field(min_length=1)
    metrics: tuple[Metric, ...] = Field(min_length=1)
    hub: Hub | None = None
    licence: str = "unknown"
    teacher: DefaultTeacher | None = None
    headerless_tsv_columns: tuple[str, ...] = ()
    augment: MethodName | None = None
    num_variants: dict[MethodName, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    token_vectors_from: Literal["teacher"] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.type != "regression" and len(self.labels) < 2:
            raise ValueError(f"a {self.type} task needs at least two labels, in the order of their numbers")
        if self.type != "multilabel" and self.columns.label is None:
            raise ValueError("columns: label is missing; only the labels of a multilabel task may have a column each")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError(f"labels: {list(self.labels)} names one twice")
        if self.score_range is not None and self.score_range[0] >= self.score_range[1]:
            raise ValueError(f"score_range: {list(self.score_range)} is not [low, high]")
        if self.type == "regression" and (self.labels or self.score_range is None):
            raise ValueError("a regression task needs score_range: [low, high] and no labels")
        fitting = get_args(METRICS[self.type])
        wrong = set(self.metrics) - set(fitting)
        if wrong:
            raise ValueError(f"metrics {sorted(wrong)} do not fit a {self.type} task; those are {', '.join(fitting)}")
        # GLUE's F1 is that of class 1, which is meaningless for more classes; macro_f1 is for those.
        if "f1" in self.metrics and len(self.labels) != 2:
            raise ValueError("f1 is for two labels")
        return self

    @model_validator(mode="after")
    def _labels_spans(self) -> Self:
        if self.type != "token_labels":
            return self
        odd = [name for name in self.labels if name != OUTSIDE and not re.match("[BI]-.", name)]
        if odd or OUTSIDE not in self.labels:
            wrong = f"{odd[0]!r} is none of these" if odd else f"there is no {OUTSIDE}"
            raise ValueError(f"labels: of words they are {OUTSIDE}, B-NAME and I-NAME (IOB2), but {wrong}")
        if self.augment is not None:
            raise ValueError(
                f"augment: {self.augment}: labelled words have no variants. Leave it out of a token_labels task."
            )
        if self.is_pair:
            raise ValueError("columns: a token_labels task has one sentence a row, so no sentence2")
        return self

    @property
    def is_pair(self) -> bool:
        """Whether an input is two sentences."""
        return self.columns.sentence2 is not None

    @property
    def dev_splits(self) -> tuple[str, ...]:
        """Every split but ``train``; the first one decides which weights are best."""
        return tuple(name for name in self.splits if name != TRAIN)


def task_names() -> list[str]:
    """Names of the tasks shipped with the package."""
    return sorted(
        entry.name.removesuffix(".yaml") for entry in files("data_manifests").iterdir() if entry.name.endswith(".yaml")
    )


def load_task(name: str | None = None, manifest: Path | None = None) -> Task:
    """Reads a shipped task by name, or a user's own from a YAML file.

    Raises:
        ConfigError: for an unknown name or a manifest that does not parse, listing every problem.
    """
    if manifest is not None:
        return own_manifest(Task, manifest, name, "--task")
    if name is None:
        raise ConfigError("no task given: use --task NAME (see `distill tasks`) or --manifest FILE")
    if name.endswith((".yaml", ".yml")):
        raise ConfigError(f"no task, but a file: {name}; a manifest of one's own is given with --manifest")
    if name not in task_names():
        raise ConfigError(f"--task: unknown task {name!r}: {did_you_mean(name, task_names())}")
    text = files("data_manifests").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return parse_manifest(Task, text, f"data_manifests/{name}.yaml")


def load_task_of_set(root: Path, task_name: str, manifest: Path | None) -> Task:
    """The task that a set is of, as distill has it or as a user's manifest describes it.

    Raises:
        ConfigError: if it is none of distill's own, and there is no manifest.
    """
    if manifest is None and task_name not in task_names():
        raise ConfigError(f"{root}: is of task {task_name!r}, which distill does not have. Give its --manifest.")
    return load_task(None if manifest else task_name, manifest)


def own_manifest(model: type[N], path: Path, name: str | None, flag: str) -> N:
    """Reads a user's manifest.

    Args:
        model: of a task or a corpus.
        path: the YAML file.
        name: the name given by ``flag``, if any.
        flag: for the message.

    Raises:
        ConfigError: if it cannot be read, or describes something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--manifest {path}: {unreadable(error)}") from error
    manifest = parse_manifest(model, text, str(path))
    if name is not None and name != manifest.name:
        raise ConfigError(f"{flag} {name!r} is not what --manifest {path} describes: that is {manifest.name!r}")
    return manifest


def parse_manifest(model: type[M], text: str, context: str) -> M:
    """Reads YAML as a manifest.

    Raises:
        ConfigError: if it is not YAML, or naming every key that is wrong.
    """
    return parse_model(model, parse_yaml(text, context), context)


FOLDER = "corpora"


class Corpus(Manifest):
    """One corpus, as its manifest in ``data_manifests/corpora/`` describes it.

    Attributes:
        columns: names under which a source may hold the text; the first one present is used.
        language: ISO 639-1 code, for cutting into sentences.
    """

    columns: Names = ("text",)
    language: str = Field("en", pattern=r"^[a-z]{2,3}$")
    hub: Hub | None = None
    hub_split: str = "train"
    licence: str = "unknown"
    teacher: DefaultTeacher | None = None


def corpus_names() -> list[str]:
    """Names of the corpora shipped with the package."""
    entries = files("data_manifests").joinpath(FOLDER).iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


def load_corpus(name: str | None = None, manifest: Path | None = None, data: Path | None = None) -> Corpus:
    """Reads a shipped corpus by name or a user's own from a YAML file. A user's own name needs ``data``.

    Args:
        name: a shipped corpus, or what to call the text in ``data``.
        manifest: YAML file with a user's corpus.
        data: where its text lies, if the user says so.

    Raises:
        ConfigError: for an unknown name or a manifest that does not parse, listing every problem.
    """
    if manifest is not None:
        return own_manifest(Corpus, manifest, name, "--corpus")
    if name is None:
        raise ConfigError("no corpus given: use --corpus NAME (see `distill corpora`) or --manifest FILE")
    if name in corpus_names():
        text = files("data_manifests").joinpath(FOLDER).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
        return parse_manifest(Corpus, text, f"data_manifests/{FOLDER}/{name}.yaml")
    if data is None:
        known = did_you_mean(name, corpus_names())
        raise ConfigError(f"--corpus: unknown corpus {name!r}: {known} For text of your own add --data PATH")
    return parse_model(Corpus, {"name": name}, "--corpus")
