"""The macros of ``macros.sql`` that fit what logits mean."""

from typing import NamedTuple

from pipeline.tasks.target import Target, TargetKind


class TargetMacros(NamedTuple):
    """Names of macros.

    Attributes:
        answer: of a row of logits.
        kl: of two rows of logits.
        mix: of several teachers' logits.
        label_scores: of a table.
    """

    answer: str = "argmax"
    kl: str = "kl"
    mix: str = "mix"
    label_scores: str = "class_scores"


MACROS: dict[TargetKind, TargetMacros] = {
    "labels": TargetMacros("likely_labels", "label_kl", "mix_labels", "label_scores"),
}


def macros_of(target: Target) -> TargetMacros:
    """The macros that read the logits of a target."""
    return MACROS.get(target.kind, TargetMacros())
