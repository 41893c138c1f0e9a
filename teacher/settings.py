"""Settings of the commands that run a teacher. The module does not import torch, so that ``--help`` is quick.

`DumpSettings` is a tree of parts: each function takes only the part that it needs. See `pipeline.settings`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pipeline.cluster.launchers import Job, launched_job
from pipeline.cluster.ray_pool import RayWriteFlags
from pipeline.errors import ConfigError
from pipeline.parsing import names_of
from pipeline.sets.codec_text import DistributionCodec, KeepText, Kept, Pooling, VectorCodecText, parse_kept
from pipeline.sets.record_parts import SET_NAME, UNLABELLED, LayerRows, WindowsRecord
from pipeline.settings import Settings
from pipeline.shared_settings import PLACE, JsonFlags, OwnDataFlags, SeedFlags, SetFlags, StoreFlags, UnverifiedFlags
from pipeline.tasks.task import TRAIN, load_task
from teacher.augment.methods import MaskEach, MaskPos, Method, SplitFlags, TinyBert, default_method
from teacher.models.model_settings import BatchFlags, ModelFlags

Packing = Literal["sentences", "blocks"]
MaskingKind = Literal["uniform", "frequency"]
PairsFrom = Literal["columns", "neighbours", "similar"]
ITSELF = "teacher"  # the value of --token-vectors-from for the teacher itself
VARIANTS_NAME: Any = Field(
    None, pattern=SET_NAME, description="Name of the variants. Default: TASK-METHOD.", json_schema_extra=PLACE
)
TOKEN_VECTORS: Any = Field(True, description="Also store a vector of each vocabulary entry, from which students start.")


class CorpusFlags(OwnDataFlags):
    """The text, and how it is cut into sequences."""

    panel: ClassVar = "A corpus"
    chosen_by: ClassVar = "corpus"
    corpus: str = Field(description="Corpus to use instead of a task. See `distill tasks`.", json_schema_extra=PLACE)
    max_documents: int | None = Field(
        None, ge=1, description="Number of documents, from the first one. Default: all.", json_schema_extra=PLACE
    )
    packing: Packing = Field("sentences", description="Sequences: sentences, or blocks filled with several sentences.")
    min_seq_length: int = Field(
        12, ge=3, description="Minimum length of a sequence, including special tokens. Shorter ones are left out."
    )
    validation_every: int = Field(200, ge=2, description="Hold out one document in N for validation.")


class Masking(SeedFlags):
    """The selection of masked tokens."""

    panel: ClassVar = CorpusFlags.panel
    masking: MaskingKind = Field(
        "uniform", description="Selection of masked tokens: uniform, or rare ones more often (count^-0.7)."
    )
    mlm_probability: float = Field(0.15, gt=0, lt=1, description="Share of masked tokens per sequence.")


class JobFlags(Settings):
    """The part of a set that this command writes, if several commands share the work."""

    shard_index: Annotated[str, BeforeValidator(str)] = Field(
        "0",
        pattern=r"^(auto|\d+)$",
        description="Index of this job, from 0. auto: from the environment of Slurm, Kubernetes, SkyPilot, AWS Batch "
        "or Cloud Run.",
        json_schema_extra=PLACE,
    )
    num_shards: int = Field(
        1,
        ge=1,
        description="Number of jobs. With --shard-index auto, the launcher's.",
        json_schema_extra=PLACE,
    )

    @property
    def job(self) -> Job:
        """Returns the number of this command among the jobs that share the work."""
        if self.shard_index == "auto":
            return launched_job(self.num_shards if "num_shards" in self.model_fields_set else None)
        return Job(int(self.shard_index), self.num_shards)

    @model_validator(mode="after")
    def _fit(self) -> Self:
        try:
            job = self.job
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if job.index >= job.count:
            raise ValueError(f"--shard-index: {self.shard_index} is not below --num-shards {self.num_shards}")
        return self


class NoVariants(Settings):
    """Rows alone."""

    augment: Literal["none"] = Field(
        "none",
        description="Method of augmentation, or none. Missing variants are made as by `distill augment`. Default: from "
        "the task's manifest, mostly none.",
        json_schema_extra=PLACE,
    )


class WithTinyBert(TinyBert):
    """`TinyBert`, chosen by ``--augment``."""

    augment: Literal["tinybert"] = Field("tinybert", json_schema_extra=PLACE)
    variants: str | None = VARIANTS_NAME


class WithMaskPos(MaskPos):
    """`MaskPos`, chosen by ``--augment``."""

    augment: Literal["mask-pos"] = Field("mask-pos", json_schema_extra=PLACE)
    variants: str | None = VARIANTS_NAME


class WithMaskEach(MaskEach):
    """`MaskEach`, chosen by ``--augment``."""

    augment: Literal["mask-each"] = Field("mask-each", json_schema_extra=PLACE)
    variants: str | None = VARIANTS_NAME


Variants = NoVariants | WithTinyBert | WithMaskPos | WithMaskEach


class Unlabelled(SeedFlags):
    """The text without gold that is added to a task's training rows."""

    panel: ClassVar = "Text without gold"
    chosen_by: ClassVar = "unlabelled"
    unlabelled: str = Field(
        description="Unlabelled text to add to the training rows: a file, a folder, or the name of a corpus.",
        json_schema_extra=PLACE,
    )
    max_unlabelled: int | None = Field(
        None,
        ge=1,
        description="Number of unlabelled rows, sampled with --seed. Required for a corpus by name. Default: all.",
    )
    keep_near_copies: bool = Field(
        False, description="Also add texts that are near copies of dev rows. Dev scores may then be too high."
    )
    unlabelled_pairs: PairsFrom | None = Field(
        None,
        description="Source of pairs: two columns, neighbouring sentences, or similar sentences. Default: depends on "
        "the text.",
    )


class LabelLogits(Settings):
    """A classifier's logits."""

    signal: Literal["logits"] = Field(
        "logits", description="Signal to store: logits for a task, mlm for a corpus, vectors of sentences for both."
    )
    teacher_labels: str | None = Field(
        None,
        description="Label order of the teacher, as comma-separated names, or in quotes. Default: from its config.",
    )
    extend: str | None = Field(
        None,
        description="Set of the same teacher to extend: its files and logits are reused, and only new texts are "
        "predicted.",
    )
    token_vectors: bool = TOKEN_VECTORS
    token_vectors_from: str | None = Field(
        None,
        description="Source of the token vectors: `teacher` (its embeddings), or another encoder with the same "
        "vocabulary (its last states), as a hub id or a folder. Default: from the task's manifest, for pairs "
        "teacher, otherwise the sentence encoder that it was fine-tuned from, if there is one.",
    )

    @model_validator(mode="after")
    def _token_vectors_are_stored(self) -> Self:
        if self.token_vectors_from is not None and not self.token_vectors:
            raise ValueError("--token-vectors-from: cannot be combined with --no-token-vectors. Remove one of them.")
        return self

    @property
    def label_names(self) -> tuple[str, ...]:
        """The given label order of the teacher. Empty without the flag."""
        return names_of(self.teacher_labels)


class TextLogits(LabelLogits):
    """A classifier's logits of texts, including variants and unlabelled ones, and the outputs of its layers."""

    doc_stride: int | None = Field(
        None,
        ge=0,
        description="Overlap of windows in tokens. Texts longer than --max-seq-length are read by windows, and the "
        "mean of their logits is stored. Default: truncate them.",
    )
    variants: Variants = Field(default_factory=NoVariants, discriminator="augment")
    unlabelled: Unlabelled | None = None
    keep: KeepText | None = Field(
        None,
        description="Outputs of layers to store, as SIGNAL=LAYERS:CODEC, such as `states=2,4:pca-64 cls attention=12`. "
        "Signals: states, cls, attention, values, and init (weights from which a bert can start). Layer 0: embeddings. "
        "Default: all layers, states and cls as float16, attention and values as u8.",
    )
    layers_of: LayerRows = Field(
        "originals",
        description="Rows with layer outputs: originals, or all, which includes variants and unlabelled rows.",
    )

    @classmethod
    def member_for(cls, options: Sequence[type[Settings]], name: str, given: Mapping[str, Any]) -> type[Settings]:
        """The variants set in the task's manifest, if all training rows are there and no set is extended."""
        splits, named = names_of(given.get("splits")), given.keys() & {"task", "manifest"}
        if name != "variants" or not named or "extend" in given or (splits and TRAIN not in splits):
            return options[0]
        manifest = Path(given["manifest"]) if "manifest" in given else None
        method = default_method(load_task(given.get("task"), manifest))
        return next((one for one in options if issubclass(one, Method) and one.name == method), options[0])

    def windows(self, max_seq_length: int) -> WindowsRecord | None:
        """How longer texts are read, if they are not truncated."""
        return None if self.doc_stride is None else WindowsRecord(size=max_seq_length, stride=self.doc_stride)

    @property
    def kept_layers(self) -> tuple[Kept, ...]:
        """The signals of layers to store."""
        return tuple(one for one in parse_kept(self.keep) if one.name != "init") if self.keep else ()

    def init_layers(self, depth: int) -> tuple[int, ...]:
        """The layers whose weights are stored in the set, of a teacher with so many."""
        kept = parse_kept(self.keep) if self.keep else ()
        return next((one.numbers(depth) for one in kept if one.name == "init"), ())

    @property
    def method(self) -> Method | None:
        """The method of the variants, if there are any."""
        return self.variants if isinstance(self.variants, Method) else None

    @property
    def adds_by_default(self) -> bool:
        """Whether the variants come from the manifest and not from a flag."""
        return self.method is not None and "augment" not in self.variants.model_fields_set

    def set_name(self, task: str) -> str:
        """The default name of a set: that of its variants or its task, and of added text."""
        named = getattr(self.variants, "variants", None)
        by_flag = self.method is not None and not self.adds_by_default
        base = named or (f"{task}-{self.variants.augment}" if by_flag else task)
        return f"{base}-{UNLABELLED}" if self.unlabelled else base

    @model_validator(mode="after")
    def _fit(self) -> Self:
        method, layers = self.method, self.kept_layers
        if layers and self.doc_stride is not None:
            names = " and ".join(one.name for one in layers)
            raise ValueError(
                f"--doc-stride: averages logits over windows, but layer outputs belong to single tokens. Remove "
                f"{names} from --keep."
            )
        if not layers and self.layers_of != "originals":
            raise ValueError("--layers-of: is about layer outputs. Add --keep, or remove it.")
        if method is not None and self.extend is not None:
            raise ValueError("--extend: does not support sets with variants. Remove --augment.")
        if method is not None and not method.for_training and self.unlabelled is not None:
            raise ValueError(
                f"--unlabelled: cannot be combined with --augment {method.name}, which makes rows for analysis. "
                "Remove one of them"
            )
        return self


class VectorFlags(Settings):
    """An encoder's vectors of sentences."""

    panel: ClassVar = "Vectors of sentences"
    signal: Literal["vectors"] = "vectors"
    pooling: Pooling | None = Field(
        None,
        description="Pooling of a sentence's vector: the mean of its tokens' states, or the first one. Default: from "
        "the sentence-transformers folder, else mean.",
    )
    codec: VectorCodecText = Field("int8", description="Codec of vectors: int8, float16, or pca-K (K numbers).")
    token_vectors: bool = TOKEN_VECTORS

    def set_name(self, subject: str) -> str:
        """The default name of a set."""
        return f"{subject}-vectors"


class MaskedWordFlags(Masking):
    """A masked LM's predictions at masked positions."""

    num_copies: int = Field(
        1, ge=1, description="Masked copies of each sequence. About 1 / probability copies mask all tokens."
    )
    signal: Literal["mlm"] = "mlm"
    codec: DistributionCodec = Field("sampled-50", description="Codec of distributions.")

    def set_name(self, corpus: str) -> str:
        """The default name of a set."""
        return corpus


class DumpTask(OwnDataFlags, SplitFlags):
    """A task's rows, and the signals of a teacher."""

    chosen_by: ClassVar = "task"
    task: str | None = Field(None, description="Task to dump. See `distill tasks`.", json_schema_extra=PLACE)
    signal: TextLogits | VectorFlags = Field(default_factory=TextLogits, discriminator="signal")

    @model_validator(mode="after")
    def _have_training_rows(self) -> Self:
        splits = self.split_names
        if not splits or not isinstance(self.signal, TextLogits):
            return self
        if self.signal.unlabelled is not None:
            raise ValueError(
                f"--splits {','.join(splits)}: --unlabelled adds rows that no other split has, so it needs all splits"
            )
        method = self.signal.method
        if method is not None and method.for_training and TRAIN not in splits:
            raise ValueError(f"--splits: --augment needs the split {TRAIN!r}")
        return self


class DumpCorpus(CorpusFlags):
    """A corpus, and the signals of a teacher."""

    signal: MaskedWordFlags | VectorFlags = Field(default_factory=MaskedWordFlags, discriminator="signal")

    @model_validator(mode="after")
    def _are_sentences(self) -> Self:
        if self.packing != "sentences" and isinstance(self.signal, VectorFlags):
            raise ValueError("--packing blocks: vectors belong to sentences. Use --packing sentences.")
        return self


class RunFlags(Settings):
    """The settings for running a teacher."""

    teacher: ModelFlags = Field(default_factory=ModelFlags)
    forward: BatchFlags = Field(default_factory=BatchFlags)
    jobs: JobFlags = Field(default_factory=JobFlags)
    cluster: RayWriteFlags | None = None


class SetPlace(StoreFlags):
    """The location of a set, and its files."""

    name: str | None = Field(
        None,
        pattern=SET_NAME,
        description="Name of the set. Default: the task's or the corpus's, plus -vectors for --signal vectors.",
        json_schema_extra=PLACE,
    )
    rows_per_shard: int = Field(
        8192,
        ge=1,
        description="Source rows per Parquet file.",
        json_schema_extra={"decides": False},  # except for blocks, which do not cross files
    )

    def root(self, usual_name: str) -> Path:
        """The folder of the set."""
        return self.store / (self.name or usual_name)


class DumpSettings(JsonFlags):
    """Settings of ``distill teacher-dump``."""

    helps: ClassVar = {
        "manifest": "YAML file of your own task or corpus.",
        "data": "Folder or file with its rows or its text. Default: DISTILL_DATA, then the hub.",
        "model_name_or_path": "Teacher: a hub id or a folder. Default: the task's or the corpus's.",
        "precision": "Precision of the teacher's forward pass. Logits are stored in fp32.",
        "seed": "Seed of masking, samples, variants and unlabelled rows.",
        "splits": "Comma-separated splits. Default: all splits of the task.",
        "codec": "Codec. Of distributions (--signal mlm): sampled-N, sampled-N@T (temperature T), topk-K, hidden or "
        "dense. Default: sampled-50. Of vectors (--signal vectors): int8, float16, or pca-K. Default: int8.",
    }
    rows: DumpTask | DumpCorpus
    place: SetPlace = Field(default_factory=SetPlace)
    run: RunFlags = Field(default_factory=RunFlags)
    plan: bool = Field(
        False, description="Print rows, shards, bytes, time and memory, and stop.", json_schema_extra={"decides": False}
    )

    @model_validator(mode="after")
    def _can_be_planned(self) -> Self:
        if self.plan and getattr(self.rows.signal, "extend", None) is not None:
            raise ValueError("--plan: cannot estimate what --extend saves. Leave one of them out.")
        return self


class CheckSettings(SetFlags, ModelFlags, SeedFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill check``."""

    helps: ClassVar = {
        "model_name_or_path": "New location of the teacher. Default: its old one.",
        "seed": "Seed of the sample.",
    }
    sample: int = Field(256, ge=1, description="Number of rows that the teacher predicts again.")
    tolerance: float | None = Field(
        None,
        gt=0,
        description="Largest accepted difference of a logit. Default: 4 times that between two runs on this machine, "
        "at least 1e-3.",
    )
    manifest: Path | None = Field(None, description="YAML file of the task, if it is your own.")
