"""Settings of training a student, and recipes. The module does not import torch, so that ``--help`` is quick.

`TrainSettings` is a tree of parts: each function takes only the part that it needs. The command line, Python, recipes
and grids of sweeps have the flags of all parts on one level. See `pipeline.settings`. A recipe is a YAML file of such
settings.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from pipeline.cluster.ray_pool import RayFlags
from pipeline.errors import ConfigError, did_you_mean, unreadable
from pipeline.parsing import parse_settings, parse_yaml
from pipeline.settings import Draft, Settings
from pipeline.settings import given as given_flags
from pipeline.shared_settings import PLACE, JsonFlags, ReportFlags, SeedFlags, StoreFlags, UnverifiedFlags
from student.encoders.specs import AnyEncoder, EmbeddingKind, EncoderSpec, Hybrid
from student.source_settings import BestEpoch, CalibrationRows, OneTask, Sets, SeveralTasks, VocabularyFlag

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
OptimizerKind = Literal["adam", "adadelta"]
LEARNING_RATES: dict[OptimizerKind, float] = {"adam": 5e-4, "adadelta": 1.0}
BERT_LEARNING_RATE = 5e-5
FEWEST_EPOCHS, MOST_EPOCHS = 3, 20  # if no flag sets the number
ROWS_READ = 1_000_000  # total rows over all epochs, if the number of epochs is between the two limits
ROWS_OF_BIGRAMS = 10_000  # with more rows, products learn the order of tokens without bigrams


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


class Loss(Settings):
    """The loss of a row: to gold and to the teacher."""

    alpha: float = Field(
        0.5, ge=0, le=1, description="Weight of the loss to gold. The loss to the teacher has 1 - alpha."
    )
    soft: Divergence | SquaredError = Field(default_factory=Divergence, discriminator="soft_loss")
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

    panel: ClassVar = EncoderSpec.panel
    init: str | None = Field(
        None,
        description="Initialization. pretrained: vectors that come with distill, for BERT's uncased vocabulary. "
        "teacher: the set's token vectors, for a bert its teacher's layers. noise: random. A folder: the encoder of "
        "this run, with its head if the task is the same, for a bert the layers of a BERT. A file: word vectors as "
        "text of word2vec or GloVe. Default: the first that exists of pretrained (hybrid, cbow and recurrent of whole "
        "texts), teacher, pretrained (aligned, labelled words), noise.",
        json_schema_extra=PLACE | {"aliases": ["init_from", "init_vectors"]},
    )

    init_layers: str | None = Field(
        None,
        pattern=r"^[1-9]\d*(,[1-9]\d*)*$",
        description="Layers of the teacher that a bert starts from, counted from 1, such as 2,4,6. Default: evenly "
        "spaced.",
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

    @property
    def names(self) -> tuple[LayerLossName, ...]:
        """The names of the layer losses, without repetitions."""
        return tuple(dict.fromkeys(self.layer_loss.split("+")))  # type: ignore[arg-type]


class Head(Settings):
    """The classifier on top of the representations of one or two texts, or of a token."""

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
    pairing: PairingKind | None = Field(
        None,
        description=(
            "Combination of pairs: diffcat [u, w, |u-w|], compare [u, w, u*w, |u-w|], joint (one sequence), "
            "attention (between both). Default: compare, for aligned and biattentive attention, for a bert joint."
        ),
    )
    token_dropout: float = Field(0.0, ge=0, lt=1, description="Share of tokens dropped in each training step.")
    ngrams: bool = Field(
        False,
        description="Also fit a linear model on n-grams of words and characters, and add its logits to the network's. "
        "Held-out or dev rows choose the weights of both.",
    )


def num_bigrams(encoder: EncoderSpec, num_rows: int) -> int | None:
    """Returns the requested number of bigrams, or None for the default."""
    asked: int | None = getattr(encoder, "num_bigrams", None)
    return 0 if asked is None and num_rows > ROWS_OF_BIGRAMS else asked


class Optimizer(Settings):
    """The optimizer and its settings."""

    optimizer: OptimizerKind = Field(
        "adam", description="Optimizer: Adam, or AdaDelta with rho 0.95 (Tang et al. 2019)."
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Peak learning rate with linear decay to 0. Default: 5e-4, for a bert 5e-5, for adadelta 1.",
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Maximum norm of the gradients.")

    @property
    def rate(self) -> float:
        """The peak learning rate: the given one, or the default of the optimizer."""
        return self.learning_rate or LEARNING_RATES[self.optimizer]

    def for_encoder(self, embedding: EmbeddingKind) -> "Optimizer":
        """Returns the same settings with the encoder's learning rate, which is lower for pretrained layers."""
        is_tuned = embedding == "bert" and self.optimizer == "adam" and self.learning_rate is None
        return self.model_copy(update={"learning_rate": BERT_LEARNING_RATE}) if is_tuned else self


class Epochs(Settings):
    """The number and the size of the steps."""

    num_train_epochs: int | None = Field(
        None,
        ge=1,
        description="Maximum number of epochs. Default: 20, above 50,000 training rows enough for 1,000,000 rows in "
        "total, at least 3.",
    )
    early_stopping_patience: int = Field(
        5, ge=1, description="Number of epochs without improvement after which training stops."
    )
    warmup_steps: float = Field(0, ge=0, description="Steps of linear warm-up. Below 1: ratio of all steps.")
    per_device_train_batch_size: int = Field(32, ge=1, description="Rows per step.")

    def for_rows(self, num_rows: int) -> "Epochs":
        """Returns the same settings with the number of epochs for so many training rows, unless a flag sets it."""
        usual = max(FEWEST_EPOCHS, min(MOST_EPOCHS, ROWS_READ // max(1, num_rows)))
        return self.model_copy(update={"num_train_epochs": self.num_train_epochs or usual})


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


class TrainSettings(RunPlaces, ReportFlags, SeedFlags, VocabularyFlag):
    """Settings of ``distill train-student``.

    The defaults are the paper's best student, with the changes that improved it in experiments.
    """

    helps: ClassVar = {"seed": "Seed of the weights, the order of rows and dropout."}
    # See student.model.build_config.with_default_encoder.
    open_choices: ClassVar = ("embedding",)
    source: OneTask | Sets | SeveralTasks | None = None
    encoder: AnyEncoder = Field(default_factory=Hybrid, discriminator="embedding")
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
        return with_recipe(given)

    @property
    def layers(self) -> LayerLosses | None:
        """The losses of layers, whose layers for a bert are those that it starts from."""
        losses = self.layer_losses
        return losses and losses.model_copy(update={"layers": losses.layers or self.start.init_layers})

    def for_rows(self, num_rows: int) -> Self:
        """Returns the settings with the defaults for so many rows and the encoder."""
        optimizer = self.optimizer.for_encoder(self.encoder.embedding)
        return self.model_copy(update={"optimizer": optimizer, "epochs": self.epochs.for_rows(num_rows)})

    @model_validator(mode="after")
    def _fit(self) -> Self:
        embedding, has_vectors, problems = self.encoder.embedding, self.encoder.has_vectors, []
        reads_words = self.start.init == "pretrained" or self.start.words is not None
        if reads_words and (not has_vectors or embedding == "bert"):
            problems.append(f"--init {self.start.init}: --embedding {embedding} has no vectors of single words")
        if self.start.init == "teacher" and not has_vectors:
            problems.append(f"--init teacher: --embedding {embedding} has no vectors to start from the teacher's")
        if self.start.init_layers is not None and embedding != "bert":
            problems.append("--init-layers: belongs to --embedding bert")
        if self.start.init_layers is not None and self.start.init == "noise":
            problems.append("--init-layers: --init noise does not start from layers. Remove one of them")
        if self.head.ngrams and isinstance(self.source, SeveralTasks):
            problems.append("--ngrams: is not supported with --tasks. Remove one of them")
        if self.head.ngrams and embedding == "bert":
            problems.append("--ngrams: is not supported with --embedding bert, whose files transformers can read")
        if self.layer_losses is not None and isinstance(self.source, SeveralTasks):
            problems.append("--layer-loss: is not supported with --tasks. Remove one of them")
        if self.layer_losses is not None and isinstance(self.source, Sets) and len(self.source.set) > 1:
            problems.append("--layer-loss: needs the layers of a single teacher. Give one --set")
        if problems:
            raise ValueError("; ".join(problems))
        return self


# A recipe names one source of sets. A flag for another kind of source replaces it.
SETS = {source.chosen_by for source in (OneTask, Sets, SeveralTasks)}


@dataclass(frozen=True)
class Recipe:
    """The content of a recipe.

    Attributes:
        settings: the settings with the recipe's values.
        grid: values to try in a sweep, by setting.
    """

    settings: TrainSettings
    grid: dict[str, list[Any]]


def recipe_names() -> list[str]:
    """Returns the names of the recipes in the package."""
    folder = files("student").joinpath("recipes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_recipe(name_or_path: str) -> Recipe:
    """Reads a shipped recipe by name, or a file.

    Raises:
        ConfigError: for an unknown name, or a file with unknown keys or wrong values, listing every problem.
    """
    if name_or_path in recipe_names():
        text = files("student").joinpath("recipes", f"{name_or_path}.yaml").read_text(encoding="utf-8")
    else:
        text = _read(name_or_path)
    values = parse_yaml(text, f"--recipe {name_or_path}")
    if not isinstance(values, dict):
        raise ConfigError(f"--recipe {name_or_path}: not a mapping of settings")
    # `TrainSettings` refuses unknown keys, so the grid is taken out before parsing.
    grid = values.pop("grid", {})
    places = RunPlaces.model_fields.keys() & values.keys()
    # A recipe is shared between machines, where paths of its author mean nothing.
    if places:
        raise ConfigError(f"--recipe {name_or_path}: {sorted(places)} cannot be set in a recipe. Use flags")
    if not isinstance(grid, dict) or not all(isinstance(v, list) and v for v in grid.values()):
        raise ConfigError(f"--recipe {name_or_path}: grid: give a list of values for each setting (got {grid!r})")
    return Recipe(parse_settings(TrainSettings, values, f"--recipe {name_or_path}"), grid)


def with_recipe(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the given values by flag, with the recipe's values for the other flags.

    Raises:
        ConfigError: if the recipe is wrong.
    """
    if values.get("recipe") is None:
        return dict(values)
    taken = given_flags(load_recipe(values["recipe"]).settings)
    # Naming another source replaces the recipe's source as a whole, otherwise both would be set.
    if SETS & values.keys():
        taken = {key: value for key, value in taken.items() if key not in SETS}
    return taken | dict(values)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"--recipe: no file and no shipped recipe {path!r}. {did_you_mean(path, recipe_names())}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--recipe {path}: {unreadable(error)}") from error


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
    cluster: RayFlags | None = None
