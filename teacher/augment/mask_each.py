"""The method ``mask-each``: every word masked in turn, to see which of them a teacher's answer rests on."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from pipeline.text.word_pieces import with_each_word_replaced
from teacher.augment.flags import AugmentFlags, MethodFlags, Pairs
from teacher.augment.method import FIRST, SECOND, Method, PlannedVariants, Sides
from teacher.augment.words import MASK, Edited

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.arrays import Ints
    from pipeline.sets.record_parts import Setting


class MaskEach(Method):
    """One word masked in each variant: variant 1 has the first one masked, 2 the second, and so on.

    Those of the second sentence of a pair are counted from the most words that are masked of a sentence, plus 1.
    """

    flags = frozenset({"mask_token", "splits", "sentences"})
    usual_variants = 128  # words of a sentence; the teacher usually reads no more tokens
    for_training = False

    def check(self, flags: AugmentFlags) -> None:
        """Accepts all values, which are independent of each other."""

    def special_tokens(self, flags: AugmentFlags) -> tuple[str, ...]:
        """The mask."""
        return (flags.mask_token,)

    def sides_of_pairs(self, num_variants: int, pairs: Pairs) -> Sides:
        """So many words of the first sentence, then so many of the second."""
        return (FIRST,) * num_variants + (SECOND,) * num_variants

    def plan(self, config: MethodFlags, rows: "pa.Table") -> PlannedVariants:
        """Needs nothing that could be missing."""
        settings: dict[str, Setting] = {} if config.mask_token == MASK else {"mask_token": config.mask_token}
        return PlannedVariants(settings, lambda state: MaskEachEditor(config.mask_token))


@dataclass(frozen=True)
class MaskEachEditor:
    """The method with its setting: how a masked word is written."""

    mask: str

    def edit(
        self, sentences: Sequence[str], source_rows: "Ints", side: int, variants: "Ints"
    ) -> list[list[Edited | None]]:
        """Variants of sentences, as `Editor.edit` says; None for one beyond the last word."""
        return [self._edited(text, len(variants)) for text in sentences]

    def _edited(self, text: str, count: int) -> list[Edited | None]:
        words = len(text.split())
        masked = islice(with_each_word_replaced(text, self.mask), count)
        edited: list[Edited | None] = [Edited(part, frozenset({"mask"}), 1, words) for part in masked]
        return edited + [None] * (count - len(edited))
