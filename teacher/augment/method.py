"""What a method of augmentation is; free of torch and numpy, so that ``--help`` is quick."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from teacher.augment.flags import AugmentFlags, MethodFlags, Pairs
from teacher.augment.words import Edited

if TYPE_CHECKING:
    import pyarrow as pa
    from accelerate import PartialState

    from pipeline.arrays import Ints
    from pipeline.sets.record_parts import Setting

FIRST, SECOND, BOTH = (0,), (1,), (0, 1)
Sides = tuple[tuple[int, ...], ...]  # for each variant of a row, the sentences it changes


class Editor(Protocol):
    """A method with its settings, ready to make variants."""

    def edit(
        self, sentences: Sequence[str], source_rows: "Ints", side: int, variants: "Ints"
    ) -> list[list[Edited | None]]:
        """Variants of sentences.

        Args:
            sentences: N texts.
            source_rows: int64 [N], the rows they belong to.
            side: 0 for first sentences, 1 for second ones.
            variants: int64 [V], the numbers of the variants.

        Returns:
            For each sentence its V variants, None for one that is given up; a function of seed, row, side and number
            alone.
        """


@dataclass(frozen=True)
class PlannedVariants:
    """What is known before any long work.

    Attributes:
        settings: all settings of the method that decide the variants.
        editor: does what must be done before the first variant; to be called by every process.
    """

    settings: "dict[str, Setting]"
    editor: "Callable[[PartialState], Editor]"


class Method(ABC):
    """A method of augmentation. There is one object of each, in `teacher.augment.methods.METHODS`.

    Attributes:
        flags: the fields of `MethodFlags` that not every method has.
        usual_variants: variants of a row, where neither the flags nor the task tell their number.
        for_training: whether its variants are to be learnt from: of the rows of ``train``, each text once. Otherwise
            they are for looking at: of some rows of one split, which all keep theirs.
    """

    flags: ClassVar[frozenset[str]]
    usual_variants: ClassVar[int]
    for_training: ClassVar[bool] = True

    @abstractmethod
    def check(self, flags: AugmentFlags) -> None:
        """Raises ConfigError for values of its flags that do not go together."""

    @abstractmethod
    def special_tokens(self, flags: AugmentFlags) -> tuple[str, ...]:
        """The special tokens in its variants, which the teacher's tokenizer must have."""

    @abstractmethod
    def sides_of_pairs(self, num_variants: int, pairs: Pairs) -> Sides:
        """Which sentences of a pair the variants 1, 2, … change, for so many wanted variants."""

    @abstractmethod
    def plan(self, config: MethodFlags, rows: "pa.Table") -> PlannedVariants:
        """Makes sure that the method can be used on these rows.

        Raises:
            DistillError: if a model, a file or a package that it needs cannot be used.
        """

    def sides(self, is_pair: bool, num_variants: int, pairs: Pairs) -> Sides:
        """Which sentences the variants 1, 2, … of a row change, for so many wanted variants."""
        return self.sides_of_pairs(num_variants, pairs) if is_pair else (FIRST,) * num_variants
