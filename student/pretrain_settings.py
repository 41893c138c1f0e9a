"""Settings of pretraining and of filters. The module does not import torch, so that ``--help`` is quick."""

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from pipeline.errors import ConfigError, raise_all
from pipeline.settings import deciding, flag_name, given
from pipeline.shared_settings import PLACE, JsonFlags, ReportFlags, SeedFlags, StoreFlags, UnverifiedFlags
from student.encoders.specs import Cbow, Cmow, Hybrid, Recurrent
from student.settings import LAYERS
from student.source_settings import FORMERLY_LOGITS, VocabularyFlag

VectorLoss = Literal["cosine-mse", "cosine", "mse", "gram"]
VectorMap = Literal["linear", "none"]
# The flags that apply to sets of one kind only.
OF_KIND: dict[str, set[str]] = {"masked_words": {"alpha"}, "sentences": {"init", "vector_map", "vector_loss"}}


class PretrainSettings(StoreFlags, UnverifiedFlags, SeedFlags, ReportFlags, JsonFlags, VocabularyFlag):
    """Settings of ``distill pretrain-student``. The kind of the set decides which flags apply.

    The defaults are the paper's recipe, except for its batches of 512 and 2,048.
    """

    helps: ClassVar = {
        "seed": "Seed of the weights and the order of rows.",
        "embedding": "Encoder: cmow (ordered products of matrices), cbow (sums of vectors), hybrid (both), or, for "
        "sentences, recurrent (an element-wise recurrence).",
        "vector_size": "Width of token vectors. Default: 400 for hybrid and recurrent, 784 for cbow.",
    }
    no_flags: ClassVar = frozenset({"window_size", "num_bigrams"})
    encoder: Hybrid | Cmow | Cbow | Recurrent = Field(default_factory=Hybrid, discriminator="embedding")
    set: str = Field(
        description="Set of masked words or of sentences to train on: a path, or a name in the store.",
        json_schema_extra=FORMERLY_LOGITS | PLACE,
    )
    output_dir: Path | None = Field(
        None, description="Folder of the run. Default: runs/NAME-OF-SET.", json_schema_extra=PLACE
    )
    num_train_epochs: int = Field(1, ge=1, description="Number of epochs.")
    max_steps: int | None = Field(
        None,
        ge=1,
        description="Maximum number of steps. Default: all steps of the epochs.",
        json_schema_extra={"decides": False},  # counts all steps, so it does not depend on epochs
    )
    learning_rate: float = Field(5e-4, gt=0, description="Peak learning rate of AdamW with linear decay to 0.")
    warmup_steps: float = Field(
        0.05,
        ge=0,
        description="Steps of linear warm-up. Below 1: ratio of all steps.",
        json_schema_extra={"aliases": ["warmup_ratio"]},
    )
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay of the prediction head.")
    per_device_train_batch_size: int = Field(256, ge=1, description="Masked sequences per step and process.")
    max_grad_norm: float = Field(5.0, gt=0, description="Maximum norm of the gradients.")
    save_steps: int = Field(
        1000,
        ge=1,
        description="Steps between two checkpoints to resume from.",
        json_schema_extra={"decides": False},
    )
    alpha: float = Field(
        0.5, ge=0, le=1, description="Weight of the loss of the masked tokens. The loss to the teacher has 1 - alpha."
    )
    temperature: float = Field(1.0, gt=0, description="Temperature of teacher and student in the loss to the teacher.")
    init: Literal["teacher", "noise"] | None = Field(
        None,
        description="Initialization of the token vectors. teacher: from the set's. noise: random. Default: teacher, if "
        "the set has token vectors.",
        json_schema_extra=PLACE,
    )
    vector_map: VectorMap = Field(
        "linear", description="Projection from the representation to the teacher's vector, or none."
    )
    vector_loss: VectorLoss = Field(
        "cosine-mse",
        description="Loss of vectors: 1 - cosine, squared error, both, or the divergence of similarities (gram).",
    )

    @model_validator(mode="after")
    def _has_vectors(self) -> Self:
        if self.init == "teacher" and not self.encoder.has_vectors:
            raise ValueError(
                f"--init teacher: --embedding {self.encoder.embedding} has no vectors to start from the teacher's"
            )
        return self

    def check_kind(self, kind: str) -> None:
        """Raises ConfigError, naming every given flag that does not apply to a set of this kind."""
        problems = [
            f"{flag_name(name)}: applies to a set of {other}, but this is a set of {kind}".replace(
                "masked_words", "masked words"
            )
            for other, names in OF_KIND.items()
            for name in sorted(names & given(self).keys())
            if other != kind
        ]
        if kind == "sentences" and self.vector_loss != "gram" and "temperature" in given(self):
            problems.append("--temperature: belongs to --vector-loss gram")
        raise_all(ConfigError, "wrong flags", problems)

    def decided(self, kind: str) -> dict[str, Any]:
        """Returns the values that decide the weights for a set of this kind, as JSON."""
        others = {name for other, names in OF_KIND.items() if other != kind for name in names}
        if kind == "sentences" and self.vector_loss != "gram":
            others.add("temperature")
        return {name: value for name, value in deciding(self).items() if name not in others}


class FiltersSettings(StoreFlags, UnverifiedFlags, SeedFlags, JsonFlags):
    """Flags of ``distill filters``."""

    helps: ClassVar = {"seed": "Seed of the filters, the order of rows and dropout."}
    set: str = Field(
        description="Set with hidden states: a path, or a name in the store.",
        json_schema_extra={"argument": True} | PLACE,
    )
    layers: str | None = Field(
        None, pattern=LAYERS, description="Layers that get a filter, such as 2,4,6. Default: all stored layers."
    )
    dim: int = Field(128, ge=1, description="Output width of a filter.")
    output_dir: Path | None = Field(
        None, description="Folder of the filters. Default: filters/NAME-OF-SET.", json_schema_extra=PLACE
    )
    alpha: float = Field(
        1.0, ge=0, le=1, description="Weight of the loss to gold. The loss to the teacher has 1 - alpha."
    )
    num_train_epochs: int = Field(3, ge=1, description="Number of epochs.")
    learning_rate: float = Field(1e-3, gt=0, description="Peak learning rate of Adam with linear decay to 0.")
    per_device_train_batch_size: int = Field(32, ge=1, description="Rows per step.")
