"""The macros of ``macros.sql`` for each meaning of logits."""

from typing import NamedTuple

from pipeline.tasks.target import Target, TargetKind


class TargetMacros(NamedTuple):
    """Names of macros.

    Attributes:
        answer: the macro for the prediction of a row of logits.
        kl: the macro for the divergence of two rows of logits.
        mix: the macro for the mixture of several teachers' logits.
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
    """Returns the macros for the logits of a target."""
    return MACROS.get(target.kind, TargetMacros())
