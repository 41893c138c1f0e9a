"""Tasks and corpora, one YAML file each. Tasks have columns, labels, metrics and a default teacher."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from pipeline.errors import ConfigError, did_you_mean, unreadable
from pipeline.parsing import parse_model, parse_yaml

ClassMetric = Literal["accuracy", "f1", "macro_f1", "matthews_correlation"]
LabelMetric = Literal["micro_f1", "macro_f1"]
ScoreMetric = Literal["pearson", "spearmanr"]
WordMetric = Literal["span_f1", "accuracy"]  # for labelled words, computed in `pipeline.tasks.spans`
Metric = Literal[ClassMetric, LabelMetric, ScoreMetric, WordMetric]  # the others `pipeline.tasks.metrics`
# Split names become parts of file names and of SQL, so that quotes, slashes and dots are excluded.
SPLIT_PATTERN = r"^[a-z][a-z0-9_]{0,99}$"
# The split that students are trained on, and to which rows are added.
TRAIN = "train"
MAX_BINS = 10_000
# Identifiers of the Hugging Face hub. They become metadata of cards, so other characters are refused.
HUB_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$"
HUB_LICENSE = r"^[a-z0-9][a-z0-9.-]{0,99}$"
LANGUAGE = r"^[a-z]{2,3}$"
Objective = Literal["classification", "regression"]
TaskType = Literal[Objective, "multilabel", "token_labels"]
METRICS: dict[TaskType, Any] = {
    "classification": ClassMetric,
    "multilabel": LabelMetric,
    "regression": ScoreMetric,
    "token_labels": WordMetric,
}
# The label of a word outside every span.
OUTSIDE = "O"
MASK = "[MASK]"  # the text of a masked word in variants
MethodName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,99}$")]  # of augmentation. The teacher stage defines them
M = TypeVar("M", bound=BaseModel)
N = TypeVar("N", bound="Manifest")
Names = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(lambda v: [v] if isinstance(v, str) else v)]
Rows = Annotated[int, Field(ge=0, le=2**40)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Manifest(_Part):
    """The common keys of the manifests of tasks and corpora.

    Attributes:
        licence: the licence of the texts, in words.
        license: the hub's identifier of that licence, such as ``cc-by-4.0``, for the metadata of cards.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    version: int = Field(default=1, ge=1)
    description: str = ""
    licence: str = "unknown"
    license: str | None = Field(None, pattern=HUB_LICENSE)


class Columns(_Part):
    """Accepted names of each column in a source. The first existing name is used.

    Attributes:
        sentence1: the text. For a task of labelled words, the list of words.
        label: the label. May be missing for a multi-label task, whose labels then have a column each.
        keep: further columns, by which people find a row again. A set shows them beside its rows.
    """

    sentence1: Names
    sentence2: Names | None = None
    label: Names | None = None
    keep: Names | None = None

    @property
    def texts(self) -> tuple[Names, ...]:
        """The names of the columns of text."""
        return (self.sentence1,) if self.sentence2 is None else (self.sentence1, self.sentence2)


class Hub(_Part):
    """The address of the task on the Hugging Face hub."""

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
            raise ValueError(
                f"from {self.low:g} to {self.high:g} in steps of {self.width:g} are not 2 to {MAX_BINS:,} bins"
            )
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
    """The teacher used by default. ``labels`` are the label names in the *teacher's* order."""

    model: str
    revision: str | None = None
    labels: tuple[str, ...] = ()


class Task(Manifest):
    """One supervised task, as its manifest in ``data_manifests/`` describes it.

    Attributes:
        type: ``multilabel`` if each label of a row holds or not, independently of the others. ``token_labels`` if each
            word of a row has a label.
        label_separator: the separator between the labels of a row, if a multi-label source has them in one text.
        language: ISO 639-1 code of the texts, for the metadata of cards.
        augment: the method of augmentation that a dump uses by default, because it improved the task's students in
            experiments.
        num_variants: the number of variants per row by method of augmentation, if it differs from the default.
        token_vectors_from: the source of the token vectors that a dump stores by default: ``teacher`` for a task whose
            students improved with its vectors in experiments.
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
    language: str | None = Field(None, pattern=LANGUAGE)
    teacher: DefaultTeacher | None = None
    headerless_tsv_columns: tuple[str, ...] = ()
    augment: MethodName | None = None
    num_variants: dict[MethodName, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    token_vectors_from: Literal["teacher"] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        # All problems at once: a user corrects a manifest in one go.
        if problems := self._problems():
            raise ValueError(". ".join(problems))
        return self

    def _problems(self) -> list[str]:
        """What in the manifest contradicts its type."""
        problems = []
        if self.type != "regression" and len(self.labels) < 2:
            problems.append(f"a {self.type} task needs at least two labels, in the order of their numbers")
        if self.type != "multilabel" and self.columns.label is None:
            problems.append("columns: label is missing. Only the labels of a multilabel task may have a column each")
        if len(set(self.labels)) != len(self.labels):
            problems.append(f"labels: {list(self.labels)} repeats a label")
        if self.score_range is not None and self.score_range[0] >= self.score_range[1]:
            problems.append(f"score_range: {list(self.score_range)} is not [low, high]")
        if self.type == "regression" and (self.labels or self.score_range is None):
            problems.append("a regression task needs score_range: [low, high] and no labels")
        fitting = get_args(METRICS[self.type])
        wrong = set(self.metrics) - set(fitting)
        if wrong:
            problems.append(f"metrics {sorted(wrong)} do not fit a {self.type} task. Use {', '.join(fitting)}")
        # GLUE's F1 is that of class 1, which is meaningless for more than two classes. Those have macro_f1.
        if "f1" in self.metrics and len(self.labels) != 2:
            problems.append("f1 requires exactly two labels. Use macro_f1")
        return problems

    @model_validator(mode="after")
    def _labels_spans(self) -> Self:
        if self.type != "token_labels":
            return self
        odd = [name for name in self.labels if name != OUTSIDE and not re.match("[BI]-.", name)]
        if odd or OUTSIDE not in self.labels:
            wrong = f"{odd[0]!r} has another form" if odd else f"there is no {OUTSIDE}"
            raise ValueError(
                f"labels: a token_labels task has the labels {OUTSIDE}, B-NAME and I-NAME (IOB2), but {wrong}"
            )
        if self.augment is not None:
            raise ValueError(
                f"augment: {self.augment}: labelled words have no variants. Remove it from a token_labels task."
            )
        if self.is_pair:
            raise ValueError("columns: a token_labels task has one sentence per row. Remove sentence2")
        return self

    @property
    def is_pair(self) -> bool:
        """Whether an input is two sentences."""
        return self.columns.sentence2 is not None

    @property
    def dev_splits(self) -> tuple[str, ...]:
        """Every split except ``train``. The first one decides which weights are saved."""
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
        raise ConfigError(f"--task: {name} is a file. Use --manifest for your own manifest")
    if name not in task_names():
        raise ConfigError(f"--task: unknown task {name!r}. {did_you_mean(name, task_names())}")
    text = files("data_manifests").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return parse_manifest(Task, text, f"data_manifests/{name}.yaml")


def load_task_of_set(root: Path, task_name: str, manifest: Path | None) -> Task:
    """Returns the task of a set, from distill's manifests or from the user's.

    Raises:
        ConfigError: if distill does not have the task, and no manifest is given.
    """
    if manifest is None and task_name not in task_names():
        raise ConfigError(f"{root}: belongs to task {task_name!r}, which distill does not have. Give its --manifest.")
    return load_task(None if manifest else task_name, manifest)


def own_manifest(model: type[N], path: Path, name: str | None, flag: str) -> N:
    """Reads a user's manifest.

    Args:
        model: the class for a task or a corpus.
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
        raise ConfigError(
            f"{flag} {name!r} differs from the name in --manifest {path}, {manifest.name!r}. Use the same name"
        )
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
        columns: accepted names of the text column. The first existing name is used.
        language: ISO 639-1 code, used to split text into sentences.
    """

    columns: Names = ("text",)
    language: str = Field("en", pattern=LANGUAGE)
    hub: Hub | None = None
    hub_split: str = "train"
    teacher: DefaultTeacher | None = None


def corpus_names() -> list[str]:
    """Names of the corpora shipped with the package."""
    entries = files("data_manifests").joinpath(FOLDER).iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


def load_corpus(name: str | None = None, manifest: Path | None = None, data: Path | None = None) -> Corpus:
    """Reads a shipped corpus by name or a user's own from a YAML file. A user's own name needs ``data``.

    Args:
        name: a shipped corpus, or a name for the text in ``data``.
        manifest: YAML file with a user's corpus.
        data: the location of its text, if the user gives one.

    Raises:
        ConfigError: for an unknown name or a manifest that does not parse, listing every problem.
    """
    if manifest is not None:
        return own_manifest(Corpus, manifest, name, "--corpus")
    if name is None:
        raise ConfigError("no corpus given: use --corpus NAME (see `distill tasks`) or --manifest FILE")
    if name in corpus_names():
        text = files("data_manifests").joinpath(FOLDER).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
        return parse_manifest(Corpus, text, f"data_manifests/{FOLDER}/{name}.yaml")
    if data is None:
        known = did_you_mean(name, corpus_names())
        raise ConfigError(f"--corpus: unknown corpus {name!r}. {known} For text of your own add --data PATH")
    return parse_model(Corpus, {"name": name}, "--corpus")
