"""Settings of the teacher's commands; free of torch, so that ``--help`` is quick."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.config import Config, refuse_flags
from pipeline.environment import store_folder
from pipeline.errors import ConfigError, did_you_mean
from pipeline.logit_set.config import SET_NAME, CodecFlags
from pipeline.tasks.corpus import Corpus
from pipeline.tasks.task import Objective, Task
from teacher.augment.config import AugmentFlags
from teacher.augment.methods import METHODS, KnownMethod, flags_of_others

Precision = Literal["fp32", "bf16", "fp16"]
Packing = Literal["sentences", "blocks"]
MaskingKind = Literal["uniform", "frequency"]
Signal = Literal["logits", "mlm"]
TRAIN = "train"  # the split whose rows are augmented


class CorpusConfig(Config):
    """Which text, cut and masked how: for the commands that also read a corpus."""

    corpus: str | None = Field(None, description="A corpus instead of a task; see `distill corpora`.")
    max_documents: int | None = Field(None, ge=1, description="Use so many documents from its start. (default: all)")
    packing: Packing = Field("sentences", description="A sequence is a sentence, or a block packed full.")
    min_seq_length: int = Field(12, ge=3, description="Leave out shorter sequences; special tokens count.")
    validation_every: int = Field(200, ge=2, description="Every so many documents, one is held out for validation.")
    masking: MaskingKind = Field("uniform", description="Mask all tokens alike, or rare ones more (count^-0.7).")
    mlm_probability: float = Field(0.15, gt=0, lt=1, description="Share of a sequence's tokens that is masked.")


class _TaskFinetuneConfig(Config):
    task: str | None = Field(None, description="Task to train for; see `distill tasks`.")
    manifest: Path | None = Field(None, description="YAML file with a task of your own.")
    data: Path | None = Field(None, description="Folder or file with the task's rows (default: DISTILL_DATA, then hub)")
    model_name_or_path: str = Field(description="Encoder to start from: a hub id or a folder.")
    model_revision: str | None = Field(None, description="Branch, tag or commit on the hub.")
    output_dir: Path = Field(description="Folder for the fine-tuned teacher.")
    objective: Literal[Objective, "mlm"] | None = Field(
        None, description="regression or classification (bins) for scores, mlm for a corpus. (default: the task's type)"
    )
    num_train_epochs: int = Field(3, ge=1, description="Passes over the training split.")
    learning_rate: float = Field(5e-5, gt=0, description="Peak learning rate; decays linearly to 0.")
    per_device_train_batch_size: int = Field(32, ge=1, description="Rows per step and process.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this norm.")
    max_seq_length: int = Field(128, ge=4, description="Longest input in tokens.")
    save_steps: int = Field(1000, ge=1, description="Steps between two checkpoints to resume from.")
    seed: int = Field(42, ge=0, description="Seed of the new layers, the order of rows and dropout.")
    json_output: bool = Field(False, description="Print the result as JSON.")


class FinetuneConfig(CorpusConfig, _TaskFinetuneConfig):
    """``distill finetune-teacher``."""

    max_steps: int = Field(10_000, ge=1, description="Steps of training on a corpus.")

    def check_objective(self) -> None:
        """Raises ConfigError for flags of a task given with a corpus, or the other way round."""
        if (self.objective == "mlm") != (self.corpus is not None):
            raise ConfigError("--objective mlm and --corpus go together: masked language modelling is for a corpus")
        if self.corpus is not None:
            refuse_flags(self, {"task", "num_train_epochs"}, "is for a task, not for a corpus")
        else:
            refuse_flags(self, {*CorpusConfig.model_fields, "max_steps"}, "is for a corpus, not for a task")


class _TaskDumpConfig(Config):
    task: str | None = Field(None, description="Task to dump; see `distill tasks`.")
    manifest: Path | None = Field(None, description="YAML file with a task of your own.")
    data: Path | None = Field(None, description="Folder or file with the task's rows (default: DISTILL_DATA, then hub)")
    model_name_or_path: str | None = Field(None, description="Teacher: a hub id or a folder. (default: the task's)")
    model_revision: str | None = Field(None, description="Branch, tag or commit on the hub.")
    teacher_labels: str | None = Field(
        None, description="The teacher's own label order, as names with commas. (default: from its config)"
    )
    splits: str | None = Field(None, description="Splits to dump, with commas. (default: all of the task's)")
    store: Path = Field(default_factory=store_folder, description="Folder of logit sets (DISTILL_STORE).")
    name: str | None = Field(None, pattern=SET_NAME, description="Name of the set. (default: the task's)")
    precision: Precision = Field("fp32", description="Arithmetic of the forward pass; logits are stored in fp32.")
    max_seq_length: int = Field(128, ge=4, description="Longest input in tokens.")
    max_tokens_per_batch: int | None = Field(
        None, ge=1, description="Padded tokens per forward pass. (default: 2048 on CPU, 32768 on GPU)"
    )
    rows_per_shard: int = Field(8192, ge=1, description="Source rows per Parquet file.")
    shard_index: int = Field(0, ge=0, description="Which part of the shards this job writes, from 0.")
    num_shards: int = Field(1, ge=1, description="Number of jobs that share the work (Slurm arrays and the like).")
    plan: bool = Field(False, description="Print rows, shards, bytes, time and memory, and stop.")
    json_output: bool = Field(False, description="Print the result as JSON.")

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits asked for; empty for all."""
        return _names(self.splits)

    @property
    def teacher_label_names(self) -> tuple[str, ...]:
        """The teacher's label order as given; empty if it was not."""
        return _names(self.teacher_labels)


class AugmentConfig(AugmentFlags):
    """``distill augment``."""

    task: str | None = Field(None, description="Task to augment; see `distill tasks`.")
    method: KnownMethod = Field(
        description="tinybert: words a masked LM proposes; mask-pos: masks and words of a kind."
    )
    manifest: Path | None = Field(None, description="YAML file with a task of your own.")
    data: Path | None = Field(None, description="Folder or file with the task's rows (default: DISTILL_DATA, then hub)")
    store: Path = Field(default_factory=store_folder, description="Folder of logit sets (DISTILL_STORE).")
    name: str | None = Field(None, pattern=SET_NAME, description="Name of the variants. (default: TASK-METHOD)")
    precision: Precision = Field("fp32", description="tinybert: arithmetic of the masked LM.")
    max_seq_length: int = Field(128, ge=4, description="tinybert: longest input of the masked LM in tokens.")
    seed: int = Field(42, ge=0, description="Seed of all choices.")
    json_output: bool = Field(False, description="Print the result as JSON.")

    def check(self) -> None:
        """Raises ConfigError for flags of the other method."""
        self.check_method(self.method)
        refuse_flags(self, flags_of_others(self.method), f"is not for method {self.method}")

    def variants_of(self, task: Task) -> int:
        """How many variants are wanted: as the flag says, or the task, or as usual.

        Raises:
            ConfigError: if the task tells the number for a method that there is not.
        """
        unknown = next((name for name in task.num_variants if name not in METHODS), None)
        if unknown is not None:
            problem = f"unknown method {unknown!r}: {did_you_mean(unknown, METHODS)}"
            raise ConfigError(f"task {task.name!r}: num_variants: {problem}")
        return self.num_variants or task.num_variants.get(self.method, METHODS[self.method].usual_variants)


class DumpConfig(AugmentFlags, CodecFlags, CorpusConfig, _TaskDumpConfig):
    """``distill teacher-dump``."""

    augment: KnownMethod | None = Field(
        None, description="Add variants of the training rows: those of `distill augment`, made if they are missing."
    )
    extend: str | None = Field(
        None, description="A set of the same teacher: take its files and answers over, ask only what is new."
    )
    variants: str | None = Field(None, pattern=SET_NAME, description="Name of the variants. (default: TASK-METHOD)")
    signal: Signal | None = Field(None, description="What to write: logits for a task, mlm for a corpus.")
    num_copies: int = Field(1, ge=1, description="Masked copies of each sequence; about 1 / probability mask all.")
    seed: int = Field(42, ge=0, description="Seed of masking, draws and variants.")

    def check(self) -> None:
        """Raises ConfigError for flags that do not go together, such as those of a task given with a corpus."""
        if self.plan and self.extend is not None:
            raise ConfigError("--plan: cannot tell what --extend saves; leave one of them out")
        if self.shard_index >= self.num_shards:
            raise ConfigError(f"--shard-index: {self.shard_index} is not below --num-shards {self.num_shards}")
        if self.signal is not None and (self.signal == "mlm") != (self.corpus is not None):
            raise ConfigError("--signal mlm and --corpus go together; --signal logits is for a task")
        own = {*CorpusConfig.model_fields, *CodecFlags.model_fields, "num_copies"}
        if self.corpus is not None:
            refuse_flags(
                self, {"task", "teacher_labels", "splits", "augment", "extend"}, "is for a task, not for a corpus"
            )
        else:
            refuse_flags(self, own if self.augment else own | {"seed"}, "is for a corpus, not for a task")
        self.check_method(self.augment)
        if self.augment is None:
            refuse_flags(self, {"variants"}, "is for augmentation; give --augment METHOD, too")
        elif self.extend is not None:
            raise ConfigError("--extend: new versions of sets with variants cannot be made; leave --augment out")
        elif self.split_names and TRAIN not in self.split_names:
            raise ConfigError(f"--splits: --augment needs the split {TRAIN!r}, whose rows are augmented")

    def augmentation(self) -> AugmentConfig | None:
        """The settings of the variants to add, if any: those flags that `distill augment` takes, too."""
        if self.augment is None:
            return None
        shared = AugmentConfig.model_fields.keys() & self.model_fields_set - {"name", "json_output"}
        shared -= flags_of_others(self.augment)
        values = {name: getattr(self, name) for name in shared}
        return AugmentConfig(**values | {"method": self.augment, "name": self.variants})

    def teacher_for(self, subject: Task | Corpus) -> tuple[str, str | None]:
        """The teacher to load and its revision: those named, or those of the task or corpus.

        Raises:
            ConfigError: if there is neither.
        """
        if self.model_name_or_path:
            return self.model_name_or_path, self.model_revision
        if subject.teacher is None:
            kind = "task" if isinstance(subject, Task) else "corpus"
            raise ConfigError(f"--model-name-or-path: {kind} {subject.name!r} has no default teacher; name one")
        return subject.teacher.model, self.model_revision or subject.teacher.revision

    def set_name(self, subject: str) -> str:
        """The name of the set: as given, or that of its variants, its task or its corpus."""
        return self.name or self.variants or (f"{subject}-{self.augment}" if self.augment else subject)


class BudgetConfig(CorpusConfig):
    """``distill budget``."""

    logits: str | None = Field(
        None,
        description="Set of tokens with codec hidden or dense: a path, or a name in the store.",
        json_schema_extra={"argument": True},
    )
    store: Path = Field(default_factory=store_folder, description="Folder of logit sets (DISTILL_STORE).")
    positions: int = Field(2000, ge=1, description="Masked positions to try the codecs on.")
    manifest: Path | None = Field(None, description="YAML file with a corpus of your own.")
    data: Path | None = Field(None, description="Folder or file with the corpus (default: DISTILL_DATA, then the hub)")
    model_name_or_path: str | None = Field(None, description="Teacher: a hub id or a folder. (default: the corpus's)")
    model_revision: str | None = Field(None, description="Branch, tag or commit on the hub.")
    precision: Precision = Field("fp32", description="Arithmetic of the teacher's forward pass.")
    max_seq_length: int = Field(128, ge=4, description="Longest input in tokens.")
    num_copies: int = Field(1, ge=1, description="Masked copies of each sequence.")
    seed: int = Field(42, ge=0, description="Seed of masking and draws.")
    json_output: bool = Field(False, description="Print the result as JSON.")


class CheckConfig(Config):
    """``distill check``."""

    logits: str = Field(description="A set: a path, or a name in the store.", json_schema_extra={"argument": True})
    sample: int = Field(256, ge=1, description="Rows to ask the teacher about again.")
    tolerance: float | None = Field(
        None,
        gt=0,
        description="Most that a logit may differ. (default: 4 times what two runs here differ, at least 1e-3)",
    )
    manifest: Path | None = Field(None, description="YAML file with the task, if it is one of your own.")
    model_name_or_path: str | None = Field(None, description="The teacher, if it is not where it was.")
    model_revision: str | None = Field(None, description="Branch, tag or commit on the hub.")
    store: Path = Field(default_factory=store_folder, description="Folder of logit sets (DISTILL_STORE).")
    seed: int = Field(42, ge=0, description="Seed of the sample.")
    allow_unverified: bool = Field(False, description="Check a set that is complete but not verified.")
    json_output: bool = Field(False, description="Print the result as JSON.")


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
