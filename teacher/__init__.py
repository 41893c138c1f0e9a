"""Stage one: fine-tuned BERT teachers and the logit sets they write."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from teacher.functions import dump_teacher, finetune_teacher

__all__ = ["dump_teacher", "finetune_teacher"]


def __getattr__(name: str) -> Any:
    """Imports what this package offers when it is first asked for: torch takes seconds, and ``--help`` needs none."""
    if name in __all__:
        from teacher import functions

        return getattr(functions, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
