"""How the rows of a set were read that are longer than the teacher takes."""

from pydantic import Field

from pipeline.sets.record_parts import MAX_SEQ_LENGTH, Part


class WindowsRecord(Part):
    """Longer rows were read by windows, the mean of whose logits is the teacher's answer.

    Attributes:
        size: most tokens of a window, special tokens counted in.
        stride: tokens that a window has in common with the one before.
    """

    size: int = Field(ge=1, le=MAX_SEQ_LENGTH)
    stride: int = Field(ge=0, le=MAX_SEQ_LENGTH)


def reading(windows: WindowsRecord | None, max_seq_length: int) -> str:
    """How much the teacher read at once, in a few words."""
    if windows is None:
        return f"at most {max_seq_length} tokens"
    return f"longer texts by windows of {windows.size} tokens that overlap by {windows.stride}, their logits averaged"
