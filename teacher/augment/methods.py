"""The methods of augmentation, by the names that flags, tasks and sets call them, and their flags.

Free of torch and numpy, so that ``--help`` is quick: what makes variants, an `Editor`, has a file of its own if it is
longer than a few lines.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from pydantic import Field

from pipeline.cluster.ray_pool import RayFlags
from pipeline.config import Config, SeedFlags, StoreFlags, refuse_flags
from pipeline.errors import ConfigError
from teacher.augment.edits import MASK, Edited
from teacher.models.config import ForwardFlags

if TYPE_CHECKING:
    import pyarrow as pa
    from accelerate import PartialState

    from pipeline.arrays import Ints
    from pipeline.sets.record_parts import Setting

Pairs = Literal["each", "both"]
# Numbers of the sentences of a pair that a variant changes.
FIRST, SECOND, BOTH = (0,), (1,), (0, 1)
# For each variant of a row, the sentences it changes.
Sides = tuple[tuple[int, ...], ...]


class AugmentFlags(Config):
    """How rows are augmented, for the commands that do it."""

    panel: ClassVar = "Variants of training rows"
    num_variants: int | None = Field(
        None,
        ge=1,
        description="Variants of a row; tinybert: of each of its sentences; mask-each: words masked of each, from its "
        "start. (default: the task's)",
    )
    pairs: Pairs = Field("each", description="tinybert: a variant changes one sentence of a pair, or both.")
    masked_lm: str = Field(
        "bert-base-uncased", description="tinybert: masked LM that proposes words; a hub id or a folder."
    )
    word_vectors: Path | None = Field(
        None, description="tinybert: GloVe or word2vec text file, for words of several pieces. (default: kept)"
    )
    num_candidates: int = Field(15, ge=1, description="tinybert: words to choose from at each place, K.")
    replace_probability: float = Field(0.4, gt=0, le=1, description="tinybert: share of words replaced, p_t.")
    mask_probability: float = Field(0.1, ge=0, lt=1, description="mask-pos: share of words masked.")
    mask_token: str = Field(
        MASK, min_length=1, description="mask-pos, mask-each: how a mask is written; <mask> for RoBERTa and XLM-R."
    )
    pos_probability: float = Field(
        0.1, ge=0, lt=1, description="mask-pos: share of words replaced by one of the same part of speech; 0 for none."
    )
    ngram_probability: float = Field(0.0, ge=0, le=1, description="mask-pos: share of variants cut to 1 to 5 words.")
    sentences: int = Field(200, ge=1, description="mask-each: so many rows of the split, from its start.")


class MethodFlags(AugmentFlags, StoreFlags, ForwardFlags, SeedFlags, RayFlags):
    """All that a method reads."""


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
    """A method of augmentation. There is one object of each, in `METHODS`.

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


class TinyBert(Method):
    """Each word replaced, with a certain probability, by one of its candidates."""

    flags = frozenset(
        {
            "pairs",
            "masked_lm",
            "word_vectors",
            "num_candidates",
            "replace_probability",
            "precision",
            "max_seq_length",
        }
    )
    usual_variants = 20

    def check(self, flags: AugmentFlags) -> None:
        """Accepts all values, which are independent of each other."""

    def special_tokens(self, flags: AugmentFlags) -> tuple[str, ...]:
        """No special token: words are replaced by words."""
        return ()

    def sides_of_pairs(self, num_variants: int, pairs: Pairs) -> Sides:
        """Each sentence so many times beside the *original* other one, or both at once."""
        # TinyBERT's code augments each sentence of a pair by itself, next to the unchanged other one.
        return (BOTH,) * num_variants if pairs == "both" else (FIRST,) * num_variants + (SECOND,) * num_variants

    def plan(self, config: MethodFlags, rows: "pa.Table") -> PlannedVariants:
        """Loads the masked LM; the editor needs the candidates of every sentence.

        Raises:
            DataError: if it, or the word vectors, cannot be read.
            TeacherError: if it is no masked LM, or not of WordPieces.
        """
        from teacher.augment.candidates import distinct_sentences, find_sites, prepare_masked_lm
        from teacher.augment.tinybert_editor import TinyBertEditor

        proposer = prepare_masked_lm(config)

        def editor(state: "PartialState") -> Editor:
            distinct, numbers_NS = distinct_sentences(rows)
            sites = find_sites(config, proposer, distinct, state)
            return TinyBertEditor(sites, numbers_NS, config.replace_probability, config.seed)

        settings: dict[str, Setting] = {"pairs": config.pairs, "replace_probability": config.replace_probability}
        return PlannedVariants(proposer.settings | settings, editor)


class MaskPos(Method):
    """Each word masked, replaced or kept, and some variants cut to a few words."""

    flags = frozenset({"mask_probability", "mask_token", "pos_probability", "ngram_probability"})
    usual_variants = 10

    def check(self, flags: AugmentFlags) -> None:
        """Raises ConfigError if no word would be changed, or more than all."""
        if not 0 < flags.mask_probability + flags.pos_probability <= 1:
            raise ConfigError("--mask-probability and --pos-probability: their sum must be above 0 and at most 1")

    def special_tokens(self, flags: AugmentFlags) -> tuple[str, ...]:
        """The mask, where words are masked."""
        return (flags.mask_token,) if flags.mask_probability > 0 else ()

    def sides_of_pairs(self, num_variants: int, pairs: Pairs) -> Sides:
        """The first sentence, the second, both, and so round."""
        # As in the BiLSTM paper (Tang et al. 2019, section 3), which cycles through these three choices.
        return tuple((FIRST, SECOND, BOTH)[n % 3] for n in range(num_variants))

    def plan(self, config: MethodFlags, rows: "pa.Table") -> PlannedVariants:
        """Finds a tagger, where parts of speech are asked for; the editor needs the words of each.

        Raises:
            MissingDependencyError: if there is none.
        """
        from teacher.augment.mask_editors import MaskPosEditor, pattern_tagger, pools_of

        shares = (config.mask_probability, config.pos_probability, config.ngram_probability)
        settings: dict[str, Setting] = {
            "mask_probability": config.mask_probability,
            "pos_probability": config.pos_probability,
            "ngram_probability": config.ngram_probability,
            "mask_token": config.mask_token,
        }
        if not config.pos_probability:
            return PlannedVariants(settings, lambda state: MaskPosEditor(*shares, config.seed, mask=config.mask_token))
        name, tagger = pattern_tagger()
        return PlannedVariants(
            settings | {"tagger": name},
            lambda state: MaskPosEditor(*shares, config.seed, tagger, pools_of(rows, tagger), config.mask_token),
        )


class MaskEach(Method):
    """One word masked in each variant: variant 1 has the first one masked, 2 the second, and so on.

    Those of the second sentence of a pair are counted from the most words that are masked of a sentence, plus 1.
    """

    flags = frozenset({"mask_token", "splits", "sentences"})
    # One per word; a teacher usually reads at most 128 tokens.
    usual_variants = 128
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
        from teacher.augment.mask_editors import MaskEachEditor

        settings: dict[str, Setting] = {"mask_token": config.mask_token}
        return PlannedVariants(settings, lambda state: MaskEachEditor(config.mask_token))


METHODS: dict[str, Method] = {"tinybert": TinyBert(), "mask-pos": MaskPos(), "mask-each": MaskEach()}

NO_METHOD = "none"

if TYPE_CHECKING:
    KnownMethod = str
    MethodOrNone = str
else:
    # The command line takes its choices from this type.
    KnownMethod = Literal[tuple(METHODS)]
    MethodOrNone = Literal[*METHODS, NO_METHOD]


def flags_of_others(method: str) -> frozenset[str]:
    """The fields of `MethodFlags` that are for other methods alone."""
    return frozenset().union(*(other.flags for other in METHODS.values())) - METHODS[method].flags


def check_flags(flags: AugmentFlags, method: str | None) -> None:
    """Raises ConfigError for flags of another method than this one, or of any if there is none."""
    if method is None:
        refuse_flags(flags, AugmentFlags.model_fields, "is for augmentation; give --augment METHOD, too")
    else:
        refuse_flags(flags, AugmentFlags.model_fields.keys() & flags_of_others(method), f"is not for method {method}")
        METHODS[method].check(flags)
