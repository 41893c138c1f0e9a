"""Settings of the teacher's commands; free of torch, so that ``--help`` is quick."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from pipeline.cluster.launchers import Job, launched_job
from pipeline.cluster.ray_pool import RayWriteFlags
from pipeline.config import (
    JsonFlags,
    OwnDataFlags,
    ReportFlags,
    SeedFlags,
    SetFlags,
    StoreFlags,
    UnverifiedFlags,
    names_of,
    refuse_flags,
)
from pipeline.errors import ConfigError
from pipeline.sets.config import CodecFlags, VectorFlags
from pipeline.sets.record_parts import SET_NAME, UNLABELLED, WindowsRecord
from pipeline.settings import flag_name
from pipeline.tasks.task import TRAIN, Objective
from teacher.augment.augment_settings import AugmentConfig
from teacher.augment.methods import METHODS, AugmentFlags, MethodOrNone, check_flags, flags_of_others
from teacher.dump.layer_flags import LayerFlags, WhichLayers
from teacher.models.config import ForwardFlags, ModelFlags
from teacher.unlabelled.flags import UnlabelledFlags

Packing = Literal["sentences", "blocks"]
MaskingKind = Literal["uniform", "frequency"]
SignalName = Literal["logits", "mlm", "vectors"]
ITSELF = "teacher"  # of --token-vectors-from
OBJECTIVE = "--objective mlm and --corpus go together: masked language modelling is for a corpus"
SIGNAL = "--signal mlm and --corpus go together; --signal logits is for a task"


class CorpusFlags(OwnDataFlags):
    """Which text, cut and masked how: for the commands that read a corpus."""

    panel: ClassVar = "A corpus"
    corpus: str | None = Field(None, description="A corpus instead of a task; see `distill corpora`.")
    max_documents: int | None = Field(None, ge=1, description="Use only its first N documents. (default: all)")
    packing: Packing = Field("sentences", description="A sequence is a sentence, or a block packed full.")
    min_seq_length: int = Field(12, ge=3, description="Leave out shorter sequences; special tokens count.")
    validation_every: int = Field(200, ge=2, description="Hold out one document in N for validation.")
    masking: MaskingKind = Field("uniform", description="Mask all tokens alike, or rare ones more (count^-0.7).")
    mlm_probability: float = Field(0.15, gt=0, lt=1, description="Share of a sequence's tokens that is masked.")


class MaskedCorpusFlags(CorpusFlags):
    """Which text, and how often it is masked: for the commands that ask a masked LM about it."""

    panel: ClassVar = "A corpus"
    num_copies: int = Field(1, ge=1, description="Masked copies of each sequence; about 1 / probability mask all.")


class FinetuneFlags(OwnDataFlags, ModelFlags, SeedFlags, ReportFlags, JsonFlags):
    """Flags of ``distill finetune-teacher``, for a task or a corpus."""

    helps: ClassVar = {
        "manifest": "YAML file with a task or a corpus of your own.",
        "data": "Folder or file with its rows or its text. (default: DISTILL_DATA, then the hub)",
        "seed": "Seed of the new layers, the order of rows and dropout.",
    }
    model_name_or_path: str = Field(description="Encoder to start from: a hub id or a folder.")
    output_dir: Path = Field(description="Folder for the fine-tuned teacher.")
    objective: Literal[Objective, "mlm"] | None = Field(
        None, description="regression or classification (bins) for scores, mlm for a corpus. (default: the task's type)"
    )
    learning_rate: float = Field(5e-5, gt=0, description="Peak learning rate; decays linearly to 0.")
    per_device_train_batch_size: int = Field(32, ge=1, description="Rows per step and process.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this norm.")
    max_seq_length: int = Field(128, ge=4, description="Longest input in tokens.")
    save_steps: int = Field(1000, ge=1, description="Steps between two checkpoints to resume from.")


class FinetuneTask(FinetuneFlags):
    """Flags of ``distill finetune-teacher --task``."""

    task: str | None = Field(None, description="Task to train for; see `distill tasks`.")
    tasks: str | None = Field(
        None,
        description="Train a teacher for each of these tasks, names or manifests with commas, on one encoder.",
    )
    num_train_epochs: int = Field(3, ge=1, description="Passes over the training split.")
    held_out: float | None = Field(
        None, gt=0, lt=1, description="Share of the training rows held out to choose the best epoch. (default: by dev)"
    )

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks of ``tasks``."""
        return names_of(self.tasks)

    def check(self) -> None:
        """Raises ConfigError for the objective of a corpus, or flags that do not go together."""
        if self.objective == "mlm":
            raise ConfigError(OBJECTIVE)
        if self.tasks is not None:
            refuse_flags(self, {"task", "manifest"}, "is for one task; name all in --tasks, manifests by their files")
            if not self.task_names:
                raise ConfigError(f"--tasks {self.tasks!r}: names no task")


class FinetuneCorpus(CorpusFlags, FinetuneFlags):
    """Flags of ``distill finetune-teacher --corpus``."""

    max_steps: int = Field(10_000, ge=1, description="Steps of training on a corpus.")

    def check(self) -> None:
        """Raises ConfigError for the objective of a task."""
        if self.objective != "mlm":
            raise ConfigError(OBJECTIVE)


class DumpFlags(VectorFlags, OwnDataFlags, ModelFlags, ForwardFlags, StoreFlags, SeedFlags, RayWriteFlags, JsonFlags):
    """Flags of ``distill teacher-dump``, of a task or a corpus."""

    helps: ClassVar = {
        "manifest": "YAML file with a task or a corpus of your own.",
        "data": "Folder or file with its rows or its text. (default: DISTILL_DATA, then the hub)",
        "model_name_or_path": "Teacher: a hub id or a folder. (default: the task's or the corpus's)",
        "precision": "Arithmetic of the forward pass; logits are stored in fp32.",
        "seed": "Seed of masking, draws, variants and unlabelled rows.",
    }
    signal: SignalName | None = Field(
        None, description="What to write: logits for a task, mlm for a corpus, vectors of sentences for either."
    )
    name: str | None = Field(
        None,
        pattern=SET_NAME,
        description="Name of the set. (default: the task's or the corpus's, plus -vectors for --signal vectors)",
    )
    max_tokens_per_batch: int | None = Field(
        None, ge=1, description="Padded tokens per forward pass. (default: 2048 on CPU, 32768 on GPU)"
    )
    rows_per_shard: int = Field(8192, ge=1, description="Source rows per Parquet file.")
    shard_index: Annotated[str, BeforeValidator(str)] = Field(
        "0",
        pattern=r"^(auto|\d+)$",
        description="Which part of the shards this job writes, from 0; auto: as Slurm, Kubernetes, SkyPilot, AWS Batch "
        "or Cloud Run says.",
    )
    num_shards: int = Field(1, ge=1, description="Number of jobs that share the work; with --shard-index auto theirs.")
    plan: bool = Field(False, description="Print rows, shards, bytes, time and memory, and stop.")
    token_vectors: bool = Field(
        True, description="Store what the teacher says of each vocabulary entry, too; a student can start from it."
    )

    def check(self) -> None:
        """Raises ConfigError for flags that do not go together."""
        self.job()
        self.check_ray()
        if self.signal != "vectors":
            refuse_flags(self, VectorFlags.model_fields, "is for --signal vectors")
        elif self.vector_codec != "pca":
            refuse_flags(self, {"pca_dims"}, "is for --vector-codec pca")

    def job(self) -> Job:
        """Which of the jobs that share the work this command is.

        Raises:
            ConfigError: if the numbers do not fit each other, or no launcher tells them.
        """
        if self.shard_index == "auto":
            return launched_job(self.num_shards if "num_shards" in self.model_fields_set else None)
        if int(self.shard_index) >= self.num_shards:
            raise ConfigError(f"--shard-index: {self.shard_index} is not below --num-shards {self.num_shards}")
        return Job(int(self.shard_index), self.num_shards)


OF_LOGITS = {
    *("teacher_labels", "extend", "token_vectors_from", "augment", "variants", "seed", "doc_stride"),
    *AugmentFlags.model_fields,
    *UnlabelledFlags.model_fields,
    *LayerFlags.model_fields,
}


class DumpTask(LayerFlags, UnlabelledFlags, AugmentFlags, DumpFlags):
    """Flags of ``distill teacher-dump --task``."""

    task: str | None = Field(None, description="Task to dump; see `distill tasks`.")
    teacher_labels: str | None = Field(
        None,
        description="The teacher's own label order, as names with commas, or in quotes. (default: from its config)",
    )
    splits: str | None = Field(None, description="Splits to dump, with commas. (default: all of the task's)")
    extend: str | None = Field(
        None, description="A set of the same teacher: take its files and answers over, ask only what is new."
    )
    token_vectors_from: str | None = Field(
        None,
        description="Which model gives the token vectors: `teacher`, its embeddings; or another encoder with its "
        "vocabulary, its last states, as a hub id or a folder. (default: what the task's manifest says, else the "
        "sentence encoder that the teacher was fine-tuned from, else teacher)",
    )
    augment: MethodOrNone | None = Field(
        None,
        description="Add variants of rows: those of `distill augment`, made if they are missing; or none. (default: as "
        "the task's manifest says, of most none)",
    )
    variants: str | None = Field(None, pattern=SET_NAME, description="Name of the variants. (default: TASK-METHOD)")
    doc_stride: int | None = Field(
        None,
        ge=0,
        description="Read longer texts than --max-seq-length by windows that overlap by so many tokens, and store the "
        "mean of their logits. (default: cut them)",
    )

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits asked for; empty for all."""
        return names_of(self.splits)

    @property
    def teacher_label_names(self) -> tuple[str, ...]:
        """The teacher's label order as given; empty if it was not."""
        return names_of(self.teacher_labels)

    @property
    def windows(self) -> WindowsRecord | None:
        """How longer texts are read, if they are not cut."""
        return None if self.doc_stride is None else WindowsRecord(size=self.max_seq_length, stride=self.doc_stride)

    def check(self) -> None:
        """Raises ConfigError for flags that do not go together."""
        if self.plan and self.extend is not None:
            raise ConfigError("--plan: cannot tell what --extend saves; leave one of them out")
        super().check()
        if self.signal == "mlm":
            raise ConfigError(SIGNAL)
        if self.signal == "vectors":
            refuse_flags(self, OF_LOGITS, "is for --signal logits")
            return
        self.check_layers()
        if self.layers and self.doc_stride is not None:
            flags = " and ".join(map(flag_name, self.layers))
            raise ConfigError(f"--doc-stride: pools logits, and layers say something of each token; leave {flags} out")
        if self.augment is None and self.unlabelled is None:
            refuse_flags(self, {"seed"}, "is for a corpus, or for rows that are added to a task's")
        if self.unlabelled is None:
            reason = "is for unlabelled rows; give --unlabelled PATH, too"
            refuse_flags(self, UnlabelledFlags.model_fields.keys(), reason)
        elif self.split_names:
            raise ConfigError(f"--splits: --unlabelled adds to {TRAIN!r} what is no copy of other splits; it needs all")
        if not self.token_vectors:
            refuse_flags(self, {"token_vectors_from"}, "names whose vectors are stored; leave --no-token-vectors out")
        self._check_augmentation()

    def _check_augmentation(self) -> None:
        check_flags(self, self.augment)
        if self.augment is None:
            refuse_flags(self, {"variants"}, "is for augmentation; give --augment METHOD, too")
        elif self.extend is not None:
            raise ConfigError("--extend: new versions of sets with variants cannot be made; leave --augment out")
        elif not METHODS[self.augment].for_training:
            if self.unlabelled is not None:
                raise ConfigError(f"--unlabelled: adds rows to learn from, and --augment {self.augment} is of others")
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

    def set_name(self, task: str) -> str:
        """The name of the set: as given, or that of its variants or its task, and of what is added."""
        if self.signal == "vectors":
            return self.name or f"{task}-vectors"
        base = self.variants or (f"{task}-{self.augment}" if self.augment else task)
        return self.name or (f"{base}-{UNLABELLED}" if self.unlabelled else base)


class DumpCorpus(MaskedCorpusFlags, CodecFlags, DumpFlags):
    """Flags of ``distill teacher-dump --corpus``."""

    def check(self) -> None:
        """Raises ConfigError for flags that do not go together."""
        super().check()
        if self.signal == "logits":
            raise ConfigError(SIGNAL)
        if self.signal != "vectors":
            refuse_flags(self, {"token_vectors"}, "is for a task, or for --signal vectors")
            return
        of_masks = {"masking", "mlm_probability", "num_copies", "seed", *CodecFlags.model_fields}
        refuse_flags(self, of_masks, "is for --signal mlm")
        if self.packing != "sentences":
            raise ConfigError("--packing blocks: a vector is one of a sentence; use --packing sentences")

    def set_name(self, corpus: str) -> str:
        """The name of the set: as given, or that of its corpus."""
        return self.name or (f"{corpus}-vectors" if self.signal == "vectors" else corpus)


class BudgetConfig(MaskedCorpusFlags, ModelFlags, ForwardFlags, StoreFlags, SeedFlags, JsonFlags):
    """Flags of ``distill budget``."""

    helps: ClassVar = {
        "manifest": "YAML file with a corpus of your own.",
        "data": "Folder or file with the corpus. (default: DISTILL_DATA, then the hub)",
        "model_name_or_path": "Teacher: a hub id or a folder. (default: the corpus's)",
        "seed": "Seed of masking and draws.",
    }
    set: str | None = Field(
        None,
        description="Set of tokens with codec hidden or dense: a path, or a name in the store.",
        json_schema_extra={"argument": True},
    )
    positions: int = Field(2000, ge=1, description="Masked positions to try the codecs on.")


class BudgetTask(WhichLayers, OwnDataFlags, ModelFlags, ForwardFlags, JsonFlags):
    """Flags of ``distill budget --task``."""

    task: str | None = Field(None, description="A task of whose rows layers are tried; see `distill tasks`.")
    sample: int = Field(512, ge=1, description="Training rows to try the codecs on; a fifth of them is measured.")

    def check(self) -> None:
        """Raises ConfigError if no layer is named."""
        if not self.layers:
            raise ConfigError("what to measure: give layers by --states, --cls, --attention or --values")


class CheckConfig(SetFlags, ModelFlags, SeedFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill check``."""

    helps: ClassVar = {"model_name_or_path": "The teacher, if it is not where it was.", "seed": "Seed of the sample."}
    sample: int = Field(256, ge=1, description="Rows to ask the teacher about again.")
    tolerance: float | None = Field(
        None,
        gt=0,
        description="Largest difference of a logit. (default: 4 times that of two runs here, at least 1e-3)",
    )
    manifest: Path | None = Field(None, description="YAML file with the task, if it is one of your own.")
