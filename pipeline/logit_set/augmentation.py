"""What a set says about its augmented rows."""

from pydantic import Field

from pipeline.logit_set.records import MAX_COUNT, Count, Record, Setting, Sha256
from pipeline.tasks import Method


class Sample(Record):
    """An augmented row, and the one it was made from."""

    source_row: Count
    variant: Count
    origin: str
    original: tuple[str, ...]
    text: tuple[str, ...]


class AugmentationRecord(Record):
    """How the rows of the split ``train`` were augmented, and what came of it.

    Attributes:
        method: its name.
        settings: all that decides the rows.
        source_rows: rows of the split.
        tried: variants asked for, in all.
        generated: those that the method did not give up.
        unchanged: dropped, as an original reads the same.
        repeated: dropped, as an earlier variant reads the same.
        rows: variants that are left.
        changed_words: words of theirs that are not the original's.
        words: words of the sentences that they change.
        rows_sha256: hash of their keys and texts.
        sample: some of them.
    """

    method: Method
    settings: dict[str, Setting]
    source_rows: int = Field(ge=1, le=MAX_COUNT)
    tried: Count
    generated: Count
    unchanged: Count
    repeated: Count
    rows: Count
    changed_words: Count
    words: Count
    rows_sha256: Sha256
    sample: tuple[Sample, ...]

    @property
    def multiplier(self) -> float:
        """How many times as many rows the split has with them."""
        return 1 + self.rows / self.source_rows

    @property
    def change_rate(self) -> float:
        """Share of words that were changed, in the sentences that a variant changes."""
        return self.changed_words / max(1, self.words)

    def lines(self) -> dict[str, int | float | str]:
        """What people want to know, by name."""
        return {
            "method": self.method,
            "source rows": self.source_rows,
            "variants tried": self.tried,
            "given up, no word left as it was": self.tried - self.generated,
            "dropped, as an original reads the same": self.unchanged,
            "dropped, as another variant reads the same": self.repeated,
            "variants kept": self.rows,
            "multiplier": round(self.multiplier, 3),
            "words changed": round(self.change_rate, 4),
        }
