"""Settings of the student's commands; free of torch, so that ``--help`` is quick."""

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.cluster.ray_pool import RayFlags
from pipeline.config import Config, JsonFlags, ReportFlags, SeedFlags, StoreFlags, UnverifiedFlags, names_of
from pipeline.tasks.task import Metric
from student.layer_flags import LayerFlags
from student.model.flags import BertFlags, EmbeddingFlags, LstmFlags

PairingKind = Literal["diffcat", "joint", "compare", "attention"]
HeadKind = Literal["mlp", "plain-mlp", "linear", "cnn", "bilstm", "dense"]
SoftLoss = Literal["kl", "mse"]
OptimizerKind = Literal["adam", "adadelta"]
ClassWeights = Literal["balanced"]
TableDtype = Literal["float32", "float16", "int8"]
VectorLoss = Literal["cosine-mse", "cosine", "mse", "gram"]
VectorMap = Literal["linear", "none"]
STDIN = Path("-")
FORMERLY_LOGITS: Any = {"aliases": ["logits"]}  # the flag's name before it was --set
LEARNING_RATES: dict[OptimizerKind, float] = {"adam": 5e-4, "adadelta": 1.0}
BERT_LEARNING_RATE = 5e-5
FEWEST_EPOCHS, MOST_EPOCHS = 3, 20  # where no flag tells how many
ROWS_READ = 1_000_000  # in all epochs, where these are between the two
ROWS_OF_BIGRAMS = 10_000  # of more rows products learn by themselves which token follows which


class TrainConfig(
    LayerFlags, BertFlags, LstmFlags, EmbeddingFlags, StoreFlags, UnverifiedFlags, SeedFlags, ReportFlags, JsonFlags
):
    """Flags of ``distill train-student``. The defaults are the paper's best student, and what was seen to better it."""

    helps: ClassVar = {"seed": "Seed of the weights, the order of rows and dropout."}
    task: str | None = Field(None, description="Train from the logit set of this name in the store.")
    set: tuple[str, ...] = Field(
        (),
        description="Train from this logit set: a path, or a name in the store; repeat for several teachers.",
        json_schema_extra=FORMERLY_LOGITS,
    )
    tasks: str | None = Field(
        None,
        description="Train a student for each of these sets, names or paths with commas, that share one encoder.",
    )
    mix: str | None = Field(
        None, description="How several teachers speak as one: mean, weighted:0.7,0.3 or vote. (default: mean)"
    )
    output_dir: Path | None = Field(None, description="Folder of the run. (default: runs/NAME-OF-SET)")
    where: str | None = Field(None, description="SQL condition that selects training rows, like 'margin(logits) < 0.9'")
    query: str | None = Field(
        None, description="SELECT that chooses training rows by source_row, variant, and if given weight and logits."
    )
    recipe: str | None = Field(None, description="Settings from a shipped recipe (a task's name) or a YAML file.")
    init_from: Path | None = Field(
        None,
        description="Start from the encoder of this run, and if it is one of the same task from its head; a bert from "
        "the layers of a BERT's folder.",
    )
    init_vectors: Path | None = Field(
        None, description="Vectors of tokens start from those of words in this file, of word2vec or GloVe as text."
    )
    window_size: int | None = Field(
        None, ge=1, description="Read longer texts by windows of so many tokens, and average what they give."
    )
    num_bigrams: int | None = Field(
        None,
        ge=0,
        le=2**20,
        description="How many pairs of neighbouring tokens have a vector of their own: the most frequent that several "
        "training rows have. (default: 16384 up to 10,000 training rows, where sums and products are read whole)",
    )
    pairing: PairingKind | None = Field(
        None,
        description="How pairs are joined: diffcat [u; w; |u-w|], compare [u; w; u*w; |u-w|], joint as one "
        "sequence, attention each in view of the other. (default: compare; attention for biattentive, joint for bert)",
    )
    head: HeadKind | None = Field(
        None, description="Classifier on top of the representation. (default: mlp; dense bert)"
    )
    hidden_size: int | None = Field(
        None, ge=1, description="Width of the head. (default: 400 mlp and plain-mlp, its input bilstm)"
    )
    hidden_dropout: float | None = Field(
        None, ge=0, lt=1, description="Dropout on the representation, and in a bert's layers. (default: 0.2; 0.1 bert)"
    )
    token_dropout: float = Field(0.0, ge=0, lt=1, description="Share of tokens left out of each training step.")
    alpha: float = Field(0.5, ge=0, le=1, description="Weight of the gold labels; 1 - alpha is the teacher's.")
    soft_loss: SoftLoss = Field("kl", description="The teacher's term: divergence, or squared error of the logits.")
    temperature: float = Field(1.0, gt=0, description="Softens teacher and student in the teacher's term.")
    class_weights: ClassWeights | None = Field(
        None, description="balanced: rows of a rare class count more, so that all classes do the same. (default: alike)"
    )
    num_train_epochs: int | None = Field(
        None,
        ge=1,
        description="Most passes over the training rows. (default: 20; above 50,000 rows as many as read 1,000,000 in "
        "all, at least 3)",
    )
    metric_for_best_model: Metric | None = Field(
        None, description="Metric that chooses the best epoch, such as macro_f1. (default: the task's first)"
    )
    held_out: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the training rows held out to choose the best epoch, so that dev chooses nothing. "
        "(default: by dev)",
    )
    early_stopping_patience: int = Field(5, ge=1, description="Stop after so many epochs without a better one.")
    optimizer: OptimizerKind = Field("adam", description="Adam, or AdaDelta with rho 0.95 (Tang et al. 2019).")
    learning_rate: float | None = Field(
        None, gt=0, description="Peak learning rate; decays linearly to 0. (default: 5e-4, of a bert 5e-5; 1 adadelta)"
    )
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    per_device_train_batch_size: int = Field(32, ge=1, description="Rows per step.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this norm.")

    @property
    def task_names(self) -> tuple[str, ...]:
        """The sets of ``tasks``."""
        return names_of(self.tasks)

    @field_validator("set", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value  # a recipe names a single set without a list

    @property
    def peak_learning_rate(self) -> float:
        """That of the flag, or the optimizer's own, which for layers that know something already is lower."""
        is_tuned = self.embedding == "bert" and self.optimizer == "adam"
        return self.learning_rate or (BERT_LEARNING_RATE if is_tuned else LEARNING_RATES[self.optimizer])

    def for_rows(self, num_rows: int) -> Self:
        """The settings with what so many training rows ask for, if the flags leave that open: epochs, no bigrams."""
        epochs = max(FEWEST_EPOCHS, min(MOST_EPOCHS, ROWS_READ // max(1, num_rows)))
        num_bigrams = 0 if self.num_bigrams is None and num_rows > ROWS_OF_BIGRAMS else self.num_bigrams
        return self.model_copy(update={"num_train_epochs": self.num_train_epochs or epochs, "num_bigrams": num_bigrams})


class PretrainConfig(EmbeddingFlags, StoreFlags, UnverifiedFlags, SeedFlags, ReportFlags, JsonFlags):
    """Flags of ``distill pretrain-student``. The defaults are the paper's recipe; its batches were of 512 and 2,048."""

    helps: ClassVar = {
        "seed": "Seed of the weights and the order of rows.",
        "embedding": "Ordered products of matrices, sums of vectors, or both.",
    }
    set: str = Field(
        description="Train from this set of tokens or of sentences: a path, or a name in the store.",
        json_schema_extra=FORMERLY_LOGITS,
    )
    output_dir: Path | None = Field(None, description="Folder of the run. (default: runs/NAME-OF-SET)")
    alpha: float = Field(0.5, ge=0, le=1, description="Weight of the masked tokens; 1 - alpha is the teacher's.")
    temperature: float = Field(1.0, gt=0, description="Softens teacher and student in the teacher's term.")
    vector_loss: VectorLoss = Field(
        "cosine-mse", description="Distance of vectors: 1 - cosine, squared error, or that of similarities (gram)."
    )
    vector_map: VectorMap = Field(
        "linear", description="Projection from the representation to the teacher's vector, or none."
    )
    num_train_epochs: int = Field(1, ge=1, description="Passes over the training rows.")
    max_steps: int | None = Field(None, ge=1, description="Stop after so many steps. (default: all of the passes)")
    learning_rate: float = Field(5e-4, gt=0, description="Peak learning rate of AdamW; decays linearly to 0.")
    warmup_ratio: float = Field(0.05, ge=0, lt=1, description="Share of the steps with linear warm-up.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay of the prediction head.")
    per_device_train_batch_size: int = Field(256, ge=1, description="Masked sequences per step and process.")
    max_grad_norm: float = Field(5.0, gt=0, description="Gradients are clipped to this norm.")
    save_steps: int = Field(1000, ge=1, description="Steps between two checkpoints to resume from.")


class RunFlags(Config):
    """For the commands about one run."""

    run: Path = Field(description="Folder of a run.", json_schema_extra={"argument": True})


class CostFlags(Config):
    """For the commands that choose labels by what a mistake costs."""

    cost: tuple[str, ...] = Field(
        (), description="What it costs to miss a label, as LABEL=NUMBER; repeat for more. (default: 1 for every label)"
    )


class EvaluateConfig(RunFlags, CostFlags, StoreFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill evaluate``."""

    set: str | None = Field(
        None, description="Evaluate on this set. (default: what it was trained on)", json_schema_extra=FORMERLY_LOGITS
    )


class ReproduceConfig(RunFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill reproduce``."""

    store: Path | None = Field(None, description="Look for its sets by name in this folder. (default: where they were)")


class PredictConfig(RunFlags, CostFlags, JsonFlags):
    """Flags of ``distill predict``."""

    texts: tuple[str, ...] = Field(
        (), description="Sentences; for a pair task two per input.", json_schema_extra={"argument": True}
    )
    file: Path | None = Field(
        None,
        description="Parquet, CSV, TSV or JSON lines with the task's columns, or with sentence1 (and sentence2); a "
        ".txt with a sentence on each line; or -, JSON lines from standard input.",
    )
    output: Path | None = Field(None, description="Parquet file for the answers to --file.")
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
        if output is not None and output.suffix != ".parquet":
            problems.append(f"--output {output}: is a Parquet file; let its name end in .parquet")
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


class SweepConfig(TrainConfig, RayFlags):
    """Flags of ``distill sweep``: every flag of ``distill train-student``, and what to try.

    ``output_dir`` is the folder of all its runs, ``seed`` the first of its seeds.
    """

    grid: tuple[str, ...] = Field(
        (), description="Values to try, like learning_rate=1e-3,5e-4 or tasks=a,b,a+b; repeat for more."
    )
    seeds: int = Field(1, ge=1, description="Runs with different seeds for each combination of values.")
    processes: int = Field(1, ge=1, description="Students trained at the same time.")
    storage: str | None = Field(None, description="Optuna's storage. (default: SQLite in the output folder)")


class ExportConfig(RunFlags, StoreFlags, JsonFlags):
    """Flags of ``distill export``."""

    onnx: Path | None = Field(None, description="Write the student as an ONNX file, for any batch and length.")
    html: Path | None = Field(None, description="Write the student as one HTML file, a page that answers by itself.")
    output_dir: Path | None = Field(None, description="Write the student as a folder, with smaller --tables.")
    tables: TableDtype | None = Field(None, description="How the embedding tables are stored. (default: as in RUN)")
    set: str | None = Field(
        None,
        description="Measure the scores on this set. (default: what it was trained on)",
        json_schema_extra=FORMERLY_LOGITS,
    )
