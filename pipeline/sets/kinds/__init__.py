"""The kinds of rows that a set may have: one file each, with the class of its opened sets."""

from pathlib import Path

from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.kinds.masked_words import MaskedWordSet
from pipeline.sets.kinds.sentences import SentenceSet
from pipeline.sets.kinds.token_labels import TokenLabelSet
from pipeline.sets.open import LogitSet
from pipeline.sets.record import SetRecord, read_set_record
from pipeline.sets.row_kind import RowKind

SETS: dict[str, type[LogitSet]] = {
    one.row_kind.name: one for one in (ExampleSet, MaskedWordSet, SentenceSet, TokenLabelSet)
}


def kind_of(record: SetRecord) -> RowKind:
    """Returns the kind of a set's rows."""
    return SETS[record.kind].row_kind


def open_set(path: Path | str, allow_unverified: bool = False) -> LogitSet:
    """Opens a set of any kind for use, as the class of its kind: `ExampleSet`, `TokenLabelSet` or another.

    Raises:
        ConfigError: if it contains examples without their text. See `ExampleSet.open`.
        IntegrityError: if it is not a set, or its state is not ``verified`` and that is not allowed.
    """
    return SETS[read_set_record(Path(path)).kind].open(path, allow_unverified)
