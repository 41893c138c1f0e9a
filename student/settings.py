"""Settings of training a student. The module does not import torch, so that ``--help`` is quick.

`TrainSettings` is a tree of parts: each function takes only the part that it needs. The command line, Python, recipes
and grids of sweeps have the flags of all parts on one level. See `pipeline.settings`.
"""

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from pipeline.cluster.ray_pool import RayFlags
from pipeline.config import PLACE, JsonFlags, ReportFlags, SeedFlags, StoreFlags, UnverifiedFlags, names_of
from pipeline.errors import did_you_mean
from pipeline.settings import Draft, Settings
from student.calibration_rows import BestEpoch, CalibrationRows, Epochs, Optimizer
from student.model.flags import (
    AnyEncoder,
    Cbow,
    Cmow,
    EncoderSettings,
    Hybrid,
    HybridOfTexts,
    Lstm,
    WithVectors,
)

PairingKind = Literal["diffcat", "joint", "compare", "attention"]
HeadKind = Literal["mlp", "plain-mlp", "linear", "cnn", "bilstm", "dense"]
SoftLoss = Literal["kl", "mse"]
ClassWeights = Literal["balanced"]
Weights = Literal["float32", "rounded"]
TableDtype = Literal["float32", "float16", "int8"]  # of exported tables
LayerLossName = Literal["hid-cls", "hid-cls-contrast", "pkd", "hid-seq", "att-mse", "att-kl", "val-kl"]
LAYER_LOSSES = get_args(LayerLossName)
INITS = ("pretrained", "teacher", "noise")
LAYERS = r"^\d+(,\d+)*$"
FORMERLY_LOGITS: Any = {"aliases": ["logits"]}  # the flag's name before it was --set
ROWS_OF_BIGRAMS = 10_000  # with more rows, products learn the order of tokens without bigrams


class Where(Settings):
    """The rows that match a condition."""

    chosen_by: ClassVar = "where"
    where: str = Field(description="SQL condition for training rows, such as 'margin(logits) < 0.9'.")


class Query(Settings):
    """The rows that a query selects."""

    chosen_by: ClassVar = "query"
    query: str = Field(
        description="SELECT that returns the training rows: source_row, variant, and optionally weight and logits."
    )


class OneName(Settings):
    """The set of this name in the store."""

    chosen_by: ClassVar = "task"
    task: str = Field(description="Task: train on the logit set of this name in the store.", json_schema_extra=PLACE)

    @property
    def names(self) -> tuple[str, ...]:
        """The sets that a student is trained from."""
        return (self.task,)


class OneTask(OneName):
    """All or some of its rows."""

    chosen: Where | Query | None = None
    mix: ClassVar = None


class OneSet(Settings):
    """A set by its path, or its name."""

    chosen_by: ClassVar = "set"
    set: tuple[str, ...] = Field(
        min_length=1,
        description="Logit set to train on: a path, or a name in the store. Repeat for several teachers.",
        json_schema_extra=FORMERLY_LOGITS | PLACE,
    )

    @field_validator("set", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value  # a recipe names a single set without a list

    @property
    def names(self) -> tuple[str, ...]:
        """The sets that a student is trained from."""
        return self.set


class Sets(OneSet):
    """One set, or the sets of several teachers for the same rows. All rows, or some."""

    mix: str | None = Field(
        None, description="Combination of several teachers: mean, weighted:0.7,0.3 or vote. Default: mean."
    )
    chosen: Where | Query | None = None

    @model_validator(mode="after")
    def _mixes_several(self) -> Self:
        if self.mix is not None and isinstance(self.chosen, Query):
            raise ValueError("--mix: --query mixes by itself: select mix([a.logits, b.logits], [0.7, 0.3]) as logits …")
        if self.mix is not None and len(self.set) < 2:
            raise ValueError(f"--mix {self.mix}: needs several teachers. Repeat --set for each set.")
        return self


class SeveralTasks(Settings):
    """A set for each of several students that share one encoder."""

    chosen_by: ClassVar = "tasks"
    tasks: str = Field(
        description="Comma-separated sets (names or paths) to train on together, with one encoder and a head each.",
        json_schema_extra=PLACE,
    )
    chosen: Where | None = None

    @field_validator("tasks")
    @classmethod
    def _some(cls, value: str) -> str:
        if not names_of(value):
            raise ValueError(f"{value!r} contains no name of a set")
        return value

    @property
    def each(self) -> list[Sets]:
        """The set of each student."""
        return [Sets(set=(name,), chosen=self.chosen) for name in names_of(self.tasks)]


Source = OneTask | Sets


class Divergence(Settings):
    """The teacher's term: the divergence of the student's distribution from the teacher's."""

    soft_loss: Literal["kl"] = Field(
        "kl", description="Loss to the teacher: kl of the distributions, or mse of the logits."
    )
    temperature: float = Field(1.0, gt=0, description="Temperature of teacher and student in the loss to the teacher.")


class SquaredError(Settings):
    """The teacher's term: the squared error of the logits."""

    soft_loss: Literal["mse"] = "mse"
    temperature: ClassVar = 1.0


class TokenLoss(Settings):
    """The losses to gold and to the teacher."""

    alpha: float = Field(
        0.5, ge=0, le=1, description="Weight of the loss to gold. The loss to the teacher has 1 - alpha."
    )
    soft: Divergence | SquaredError = Field(default_factory=Divergence, discriminator="soft_loss")


class Loss(TokenLoss):
    """The loss of a row."""

    class_weights: ClassWeights | None = Field(
        None, description="Weights of classes. balanced: all classes count the same. Default: all rows count the same."
    )

    def of_task(self, kind: str, kinds: Set[str]) -> "Loss":
        """Returns the loss of one of several tasks, without settings that only apply to other kinds of tasks.

        Args:
            kind: the kind of the task's target.
            kinds: the kinds of all tasks' targets.
        """
        soft = Divergence() if kind == "score" and kinds != {"score"} else self.soft
        weights = None if kind != "classes" and "classes" in kinds else self.class_weights
        return self.model_copy(update={"soft": soft, "class_weights": weights})


class Start(Settings):
    """The initial weights of a student."""

    panel: ClassVar = EncoderSettings.panel
    init: str | None = Field(
        None,
        description="Initialization. pretrained: vectors that come with distill, for BERT's uncased vocabulary. "
        "teacher: the set's token vectors, for a bert its teacher's layers. noise: random. A folder: the encoder of "
        "this run, with its head if the task is the same, for a bert the layers of a BERT. A file: word vectors as "
        "text of word2vec or GloVe. Default: the first that exists of pretrained (hybrid, cbow and recurrent of whole "
        "texts), teacher, pretrained (aligned, labelled words), noise.",
        json_schema_extra=PLACE | {"aliases": ["init_from", "init_vectors"]},
    )

    @field_validator("init", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        return str(value) if isinstance(value, Path) else value

    @property
    def path(self) -> Path | None:
        """The folder or file with the initial weights, if they come from one."""
        return None if self.init is None or self.init in INITS else Path(self.init)

    @property
    def words(self) -> Path | None:
        """The file of word vectors."""
        return self.path if self.path is not None and self.path.is_file() else None

    @property
    def folder(self) -> Path | None:
        """The folder of a run or of a BERT."""
        return self.path if self.words is None else None


class LayerLosses(Settings):
    """The losses to the teacher's stored layers."""

    panel: ClassVar = "Learning from the teacher's layers"
    chosen_by: ClassVar = "layer_loss"
    layer_loss: str = Field(
        description=(
            f"Losses between layers, joined by +: {', '.join(LAYER_LOSSES)}. Default: none, only the loss of the "
            "logits."
        ),
        json_schema_extra={"aliases": ["objective"]},
    )
    layers: str | None = Field(
        None,
        pattern=LAYERS,
        description=(
            "Layers of the teacher for the student's last layers, such as 2,4,6. Default: those of --init-layers "
            "or of the set, for students without layers the last one."
        ),
    )
    intermediate_epochs: int = Field(
        0, ge=0, description="Epochs with only the layer loss, before those with the logits. 0: both losses together."
    )
    layer_loss_weight: float | None = Field(
        None,
        gt=0,
        description="Weight of the layer loss relative to the loss of the logits. Default: 1.",
        json_schema_extra={"aliases": ["objective_weight"]},
    )
    filters: Path | None = Field(
        None,
        description="Folder of `distill filters`. hid-seq then compares through these filters (TED).",
        json_schema_extra=PLACE,
    )

    @field_validator("layer_loss")
    @classmethod
    def _are_layer_losses(cls, value: str) -> str:
        for name in value.split("+"):
            if name not in LAYER_LOSSES:
                raise ValueError(f"{name!r} is not a layer loss. {did_you_mean(name, LAYER_LOSSES)}")
        return value

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.intermediate_epochs and self.layer_loss_weight is not None:
            raise ValueError(
                "--layer-loss-weight: combines both losses, but --intermediate-epochs trains with one after "
                "the other. Remove one of the flags."
            )
        if self.filters is not None and "hid-seq" not in self.names:
            raise ValueError("--filters: applies only to --layer-loss hid-seq. Remove it, or add that loss")
        return self

    def for_encoder(self, encoder: EncoderSettings) -> "LayerLosses":
        """Returns the same settings with the layers that a bert starts from, unless other layers are given."""
        return self.model_copy(update={"layers": self.layers or getattr(encoder, "init_layers", None)})

    @property
    def names(self) -> tuple[LayerLossName, ...]:
        """The names of the layer losses, without repetitions."""
        return tuple(dict.fromkeys(self.layer_loss.split("+")))  # type: ignore[arg-type]


class TokenHead(Settings):
    """The classifier on top of a representation of a text or a token."""

    head: HeadKind | None = Field(
        None, description="Classifier on top of the representation. Default: mlp, for a bert dense."
    )
    hidden_size: int | None = Field(
        None, ge=1, description="Width of the head. Default: 128, for bilstm the width of its input."
    )
    hidden_dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Dropout of the representation, and in the layers of a bert. Default: 0.2, for a bert 0.1.",
    )


class Head(TokenHead):
    """The classifier on top of the representations of one or two texts."""

    pairing: PairingKind | None = Field(
        None,
        description=(
            "Combination of pairs: diffcat [u, w, |u-w|], compare [u, w, u*w, |u-w|], joint (one sequence), "
            "attention (between both). Default: compare, for aligned and biattentive attention, for a bert joint."
        ),
    )
    token_dropout: float = Field(0.0, ge=0, lt=1, description="Share of tokens dropped in each training step.")


def num_bigrams(encoder: EncoderSettings, num_rows: int) -> int | None:
    """Returns the requested number of bigrams, or None for the default."""
    asked: int | None = getattr(encoder, "num_bigrams", None)
    return 0 if asked is None and num_rows > ROWS_OF_BIGRAMS else asked


class Storage(Settings):
    """The storage of a student."""

    weights: Weights | None = Field(
        None,
        description=(
            "Weights on disk: rounded (about 5 bits per number), or float32. Default: rounded, for lstm, "
            "biattentive and bert float32."
        ),
    )


class RunPlaces(StoreFlags, UnverifiedFlags, JsonFlags):
    """Locations of a run's inputs and outputs, which are never part of a recipe."""

    output_dir: Path | None = Field(
        None, description="Folder of the run. Default: runs/NAME-OF-SET.", json_schema_extra=PLACE
    )
    recipe: str | None = Field(
        None,
        description="Settings from a shipped recipe (a task's name) or a YAML file.",
        json_schema_extra=PLACE,
    )


class TrainSettings(RunPlaces, ReportFlags, SeedFlags):
    """Settings of ``distill train-student``.

    The defaults are the paper's best student, with the changes that improved it in experiments.
    """

    helps: ClassVar = {"seed": "Seed of the weights, the order of rows and dropout."}
    # See student.model.build_config.with_default_encoder.
    open_choices: ClassVar = ("embedding",)
    source: OneTask | Sets | SeveralTasks | None = None
    encoder: AnyEncoder = Field(default_factory=HybridOfTexts, discriminator="embedding")
    start: Start = Field(default_factory=Start)
    head: Head = Field(default_factory=Head)
    loss: Loss = Field(default_factory=Loss)
    layer_losses: LayerLosses | None = None
    best: BestEpoch = Field(default_factory=BestEpoch)
    calibration: CalibrationRows = Field(default_factory=CalibrationRows)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    epochs: Epochs = Field(default_factory=Epochs)
    storage: Storage = Field(default_factory=Storage)

    @classmethod
    def complete(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adds the settings of the recipe, if one was given. Given flags override it."""
        from student.recipe import with_recipe

        return with_recipe(given)

    @property
    def layers(self) -> LayerLosses | None:
        """The losses of layers, whose layers for a bert are those that it starts from."""
        return None if self.layer_losses is None else self.layer_losses.for_encoder(self.encoder)

    def for_rows(self, num_rows: int) -> Self:
        """Returns the settings with the defaults for so many rows and the encoder."""
        optimizer = self.optimizer.for_encoder(self.encoder.embedding)
        return self.model_copy(update={"optimizer": optimizer, "epochs": self.epochs.for_rows(num_rows)})

    @model_validator(mode="after")
    def _fit(self) -> Self:
        embedding, has_vectors, problems = self.encoder.embedding, isinstance(self.encoder, WithVectors), []
        reads_words = self.start.init == "pretrained" or self.start.words is not None
        if reads_words and (not has_vectors or embedding == "bert"):
            problems.append(f"--init {self.start.init}: --embedding {embedding} has no vectors of single words")
        if self.start.init == "teacher" and not has_vectors:
            problems.append(f"--init teacher: --embedding {embedding} has no vectors to start from the teacher's")
        if self.layer_losses is not None and isinstance(self.source, SeveralTasks):
            problems.append("--layer-loss: is not supported with --tasks. Remove one of them")
        if self.layer_losses is not None and isinstance(self.source, Sets) and len(self.source.set) > 1:
            problems.append("--layer-loss: needs the layers of a single teacher. Give one --set")
        if problems:
            raise ValueError("; ".join(problems))
        return self


class LabelHead(TokenHead):
    """The classifier on top of the representation of a token."""

    head: Literal["mlp", "plain-mlp", "linear"] = Field("mlp", description="Classifier of a token.")


class LabelSettings(RunPlaces, ReportFlags, SeedFlags):
    """The part of `TrainSettings` that ``distill train-student`` accepts for a set of labelled words."""

    source: OneName | OneSet
    num_bigrams: Literal[0] | None = Field(None, description="None: a label belongs to one token.")
    encoder: Hybrid | Cmow | Cbow | Lstm = Field(default_factory=Hybrid, discriminator="embedding")
    start: Start = Field(default_factory=Start)
    head: LabelHead = Field(default_factory=LabelHead)
    loss: TokenLoss = Field(default_factory=TokenLoss)
    best: BestEpoch = Field(default_factory=BestEpoch)
    calibration: CalibrationRows = Field(default_factory=CalibrationRows)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    epochs: Epochs = Field(default_factory=Epochs)
    storage: Storage = Field(default_factory=Storage)


class SweepSettings(Settings):
    """Settings of ``distill sweep``: those of its students, and the values to try.

    ``output_dir`` is the folder of all runs, and ``seed`` the first seed.
    """

    student: Annotated[dict[str, Any], Draft(TrainSettings)] = Field(default_factory=dict)
    grid: tuple[str, ...] = Field(
        (), description="Values to try, such as learning_rate=1e-3,5e-4 or tasks=a,b,a+b. Repeat for more."
    )
    seeds: int = Field(1, ge=1, description="Number of seeds for each combination of values.")
    processes: int = Field(1, ge=1, description="Number of students trained at the same time.")
    storage: str | None = Field(None, description="Storage of Optuna. Default: SQLite in the output folder.")
    cluster: RayFlags | None = None
