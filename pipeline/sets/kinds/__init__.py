"""The kinds of rows that a set may have: one class in one file each."""

from pipeline.sets.kinds.examples import ExamplesKind
from pipeline.sets.kinds.masked_words import MaskedWordsKind
from pipeline.sets.kinds.sentences import SentencesKind
from pipeline.sets.kinds.token_labels import TokenLabelsKind
from pipeline.sets.row_kind import RowKind

KINDS: dict[str, RowKind] = {
    kind.name: kind for kind in (ExamplesKind(), MaskedWordsKind(), SentencesKind(), TokenLabelsKind())
}
