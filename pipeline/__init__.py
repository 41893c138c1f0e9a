"""The contract between the two stages, and the command line."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.logit_set.reader import LogitSet, open_set

__all__ = ["LogitSet", "open_set"]


def __getattr__(name: str) -> Any:
    """Imports what this package offers when it is first asked for; its other parts can do without."""
    if name in __all__:
        from pipeline.logit_set import reader

        return getattr(reader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
