"""Settings of ``distill cascade``, and flags of commands that use one, without torch so that ``--help`` is quick."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from pipeline.settings import Settings
from pipeline.shared_settings import JsonFlags, StoreFlags, UnverifiedFlags

MOST_STAGES = 8


class CascadeSettings(StoreFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill cascade``."""

    stage: tuple[str, ...] = Field(
        description="Folder or file of a student. Repeat, the cheapest first. The last one may be the URL of a server."
    )
    output_dir: Path = Field(description="Folder of the cascade.")
    set: str | None = Field(
        None, description="Logit set whose rows choose the thresholds. Default: that of the first stage."
    )
    where: str = Field(
        description="SQL condition for training rows that no stage was trained on, such as 'source_row % 10 = 0'."
    )
    disagreement: float = Field(
        0.01, gt=0, lt=1, description="Largest accepted share of a stage's answers that differ from the last stage's."
    )
    confidence: float = Field(0.95, gt=0, lt=1, description="Confidence of that bound.")
    budget: float | None = Field(
        None, gt=0, description="Instead of that bound: largest mean cost, as a share of the last stage's cost."
    )
    target_accuracy: float | None = Field(
        None, gt=0, le=1, description="Instead of that bound: least accuracy, at the lowest cost."
    )
    cost: tuple[str, ...] = Field((), description="Cost of an answer of each stage, in its order. Default: measured.")
    timeout: float = Field(10.0, gt=0, description="Seconds that an answer of the server may take.")

    @property
    def costs(self) -> list[float]:
        """The costs that were given, as numbers."""
        return [float(cost) for cost in self.cost]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        problems = []
        if not 2 <= len(self.stage) <= MOST_STAGES:
            problems.append(f"--stage: {len(self.stage)} stages are given, but a cascade has 2 to {MOST_STAGES}")
        twice = sorted({source for source in self.stage if self.stage.count(source) > 1})
        problems += [f"--stage {source}: is there twice" for source in twice]
        if self.cost and len(self.cost) != len(self.stage):
            problems.append(f"--cost: {len(self.cost)} costs of {len(self.stage)} stages. Give one for each, or none")
        problems += [f"--cost {cost}: is no number above 0" for cost in self.cost if not _is_cost(cost)]
        if self.budget is not None and self.target_accuracy is not None:
            problems.append("--budget and --target-accuracy: give one of them")
        if problems:
            raise ValueError("; ".join(problems))
        return self


class CollectFlags(Settings):
    """For the commands by which a cascade answers."""

    collect: Path | None = Field(
        None,
        description="Folder to which a cascade appends the inputs that it hands on, with the later stage's answer. See "
        "`distill import --extend`.",
    )
    collect_without_text: bool = Field(False, description="Collect hashes of these inputs instead of their text.")

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.collect_without_text and self.collect is None:
            raise ValueError("--collect-without-text: give the folder by --collect")
        return self


def _is_cost(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False
