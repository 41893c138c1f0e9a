"""The methods of augmentation with their flags.

The module imports neither torch nor numpy, so that ``--help`` is quick.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self

from pydantic import Field, model_validator

from pipeline.cluster.ray_pool import RayFlags
from pipeline.errors import ConfigError, did_you_mean
from pipeline.parsing import names_of
from pipeline.sets.record_parts import SET_NAME
from pipeline.settings import Settings, deciding
from pipeline.shared_settings import PLACE, JsonFlags, OwnDataFlags, SeedFlags, StoreFlags
from pipeline.tasks.task import MASK, TRAIN, Task
from teacher.models.model_settings import ForwardFlags

if TYPE_CHECKING:
    import pyarrow as pa
    from accelerate import PartialState

    from pipeline.arrays import Ints
    from pipeline.sets.record_parts import Setting
    from teacher.augment.editors import Edited

MASK_HELP = "mask-pos, mask-each: how a mask is written; <mask> for RoBERTa and XLM-R."
# the numbers of the sentences of a pair that a variant changes
FIRST, SECOND, BOTH = (0,), (1,), (0, 1)
# For each variant of a row, the sentences it changes.
Sides = tuple[tuple[int, ...], ...]


class Editor(Protocol):
    """A method with its settings, ready to make variants."""

    def edit(
        self, sentences: Sequence[str], source_rows: "Ints", side: int, variants: "Ints"
    ) -> "list[list[Edited | None]]":
        """Returns for each sentence its variants, with None for one that is given up.

        They only depend on seed, row, side and number.

        Args:
            sentences: N texts.
            source_rows: int64 [N], the rows of the sentences.
            side: 0 for first sentences, 1 for second ones.
            variants: int64 [V], the numbers of the variants.
        """


@dataclass(frozen=True)
class PlannedVariants:
    """All settings of a method that determine variants, and a function that every process calls for the editor."""

    settings: "dict[str, Setting]"
    editor: "Callable[[PartialState], Editor]"


class Method(SeedFlags):
    """A method of augmentation with its settings. There is one class of each, in `METHODS`.

    Attributes:
        name: of the method.
        usual_variants: the default number of variants per row.
        for_training: whether its variants are for training: variants of ``train``, with each text once. Otherwise they
            are for analysis: all variants of some rows of one split.
    """

    panel: ClassVar = "Variants of training rows"
    name: ClassVar[str]
    usual_variants: ClassVar[int]
    for_training: ClassVar[bool] = True
    num_variants: int | None = Field(
        None,
        ge=1,
        description="Variants per row. tinybert: per sentence. mask-each: maximum number of masked words per sentence. "
        "Default: the task's.",
    )

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The special tokens in its variants, which the teacher's tokenizer must have."""
        return ()

    @abstractmethod
    def sides_of_pairs(self, num_variants: int) -> Sides:
        """Returns the sentences of a pair that the variants 1, 2, … change, for so many requested variants."""

    @abstractmethod
    def plan(self, rows: "pa.Table", store: Path) -> PlannedVariants:
        """Checks that the method can be used on these rows.

        Raises:
            DistillError: if a model, a file or a package that it needs cannot be used.
        """

    @property
    def own_settings(self) -> "dict[str, Setting]":
        """Returns the given settings that determine variants directly, and not by the content of a file."""
        return {name: value for name, value in deciding(self).items() if name in self.model_fields_set}

    @property
    def named_files(self) -> set[str]:
        """Returns the hashes of files in given settings that determine variants."""
        return set()

    def sides(self, is_pair: bool, num_variants: int) -> Sides:
        """Returns the sentences that the variants 1, 2, … of a row change, for so many requested variants."""
        return self.sides_of_pairs(num_variants) if is_pair else (FIRST,) * num_variants

    def split_of(self, task: Task) -> str:
        """The split whose rows get variants."""
        return TRAIN

    @property
    def num_rows(self) -> int | None:
        """The number of rows that get variants, from the start of the split. None: all."""
        return None

    def variants_of(self, task: Task) -> int:
        """The number of variants: from the flag, the task, or the default."""
        unknown = next((name for name in task.num_variants if name not in METHODS), None)
        if unknown is not None:
            problem = f"unknown method {unknown!r}. {did_you_mean(unknown, METHODS)}"
            raise ConfigError(f"task {task.name!r}: num_variants: {problem}")
        return self.num_variants or task.num_variants.get(self.name, self.usual_variants)


class TinyBert(Method):
    """Each word replaced, with a certain probability, by one of its candidates."""

    name: ClassVar = "tinybert"
    usual_variants: ClassVar = 20
    forward: ForwardFlags = Field(default_factory=ForwardFlags)
    cluster: RayFlags | None = None
    pairs: Literal["each", "both"] = Field(
        "each", description="tinybert: change one sentence of a pair at a time, or both."
    )
    masked_lm: str = Field(
        "bert-base-uncased",
        description="tinybert: masked LM that proposes words, a hub id or a folder.",
        json_schema_extra=PLACE,
    )
    word_vectors: Path | None = Field(
        None,
        description="tinybert: GloVe or word2vec text file for words of several pieces. Default: do not replace them.",
        json_schema_extra=PLACE,
    )
    num_candidates: int = Field(15, ge=1, description="tinybert: number of proposals per word (K).")
    replace_probability: float = Field(0.4, gt=0, le=1, description="tinybert: share of replaced words (p_t).")

    @property
    def named_files(self) -> set[str]:
        return self.model_fields_set & {"masked_lm", "word_vectors"}

    def sides_of_pairs(self, num_variants: int) -> Sides:
        """Each sentence so many times next to the *original* other one, or both at once."""
        # TinyBERT's code augments each sentence of a pair by itself, next to the unchanged other one.
        both = self.pairs == "both"
        return (BOTH,) * num_variants if both else (FIRST,) * num_variants + (SECOND,) * num_variants

    def plan(self, rows: "pa.Table", store: Path) -> PlannedVariants:
        """Loads the masked LM. The editor needs the candidates of every sentence."""
        from teacher.augment.candidates import distinct_sentences, find_sites, prepare_masked_lm
        from teacher.augment.editors import TinyBertEditor

        proposer = prepare_masked_lm(self.masked_lm, self.word_vectors, self.num_candidates, self.forward)

        def editor(state: "PartialState") -> Editor:
            distinct, numbers_NS = distinct_sentences(rows)
            sites = find_sites(proposer, distinct, state, store, self.cluster)
            return TinyBertEditor(sites, numbers_NS, self.replace_probability, self.seed)

        return PlannedVariants(proposer.settings | deciding(self), editor)


class MaskPos(Method):
    """Each word masked, replaced or kept, and some variants cut to a few words."""

    name: ClassVar = "mask-pos"
    usual_variants: ClassVar = 10
    mask_probability: float = Field(0.1, ge=0, lt=1, description="mask-pos: share of masked words.")
    pos_probability: float = Field(
        0.1, ge=0, lt=1, description="mask-pos: share of words replaced by a word of the same part of speech."
    )
    ngram_probability: float = Field(
        0.0, ge=0, le=1, description="mask-pos: share of variants reduced to an n-gram of 1 to 5 words."
    )
    mask_token: str = Field(MASK, min_length=1, description=MASK_HELP)

    @model_validator(mode="after")
    def _changes_words(self) -> Self:
        if not 0 < self.mask_probability + self.pos_probability <= 1:
            raise ValueError("--mask-probability and --pos-probability: their sum must be above 0 and at most 1")
        return self

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The mask, where words are masked."""
        return (self.mask_token,) if self.mask_probability > 0 else ()

    def sides_of_pairs(self, num_variants: int) -> Sides:
        """The first sentence, the second, both, and so round."""
        # As in the BiLSTM paper (Tang et al. 2019, section 3), which cycles through these three choices.
        return tuple((FIRST, SECOND, BOTH)[n % 3] for n in range(num_variants))

    def plan(self, rows: "pa.Table", store: Path) -> PlannedVariants:
        """Finds a tagger, if parts of speech are needed. The editor needs the words of each."""
        from teacher.augment.editors import MaskPosEditor, pattern_tagger, pools_of

        shares = (self.mask_probability, self.pos_probability, self.ngram_probability)
        settings: dict[str, Setting] = deciding(self)
        if not self.pos_probability:
            return PlannedVariants(settings, lambda state: MaskPosEditor(*shares, self.seed, mask=self.mask_token))
        name, tagger = pattern_tagger()
        return PlannedVariants(
            settings | {"tagger": name},
            lambda state: MaskPosEditor(*shares, self.seed, tagger, pools_of(rows, tagger), self.mask_token),
        )


class SplitFlags(Settings):
    """Which splits of a task."""

    panel: ClassVar = "Options"
    splits: str | None = Field(
        None,
        description="mask-each: split to mask. Default: the first dev split.",
        json_schema_extra=PLACE,  # records name the splits themselves
    )

    @property
    def split_names(self) -> tuple[str, ...]:
        """The requested splits, empty if none is named."""
        return names_of(self.splits)


class MaskEach(SplitFlags, Method):
    """One masked word per variant: variant 1 masks the first word, variant 2 the second, and so on.

    Variants of the second sentence of a pair start after the maximum number of masked words of the first.
    """

    name: ClassVar = "mask-each"
    # one per word, as a teacher usually reads at most 128 tokens
    usual_variants: ClassVar = 128
    for_training: ClassVar = False
    sentences: int = Field(200, ge=1, description="mask-each: number of rows, from the start of the split.")
    mask_token: str = Field(MASK, min_length=1, description=MASK_HELP)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The mask."""
        return (self.mask_token,)

    def sides_of_pairs(self, num_variants: int) -> Sides:
        """So many words of the first sentence, then so many of the second."""
        return (FIRST,) * num_variants + (SECOND,) * num_variants

    def split_of(self, task: Task) -> str:
        names = self.split_names or task.dev_splits[:1]
        if len(names) != 1:
            raise ConfigError(f"--splits: {self.name} takes one split at a time, not {', '.join(names) or 'none'}")
        if names[0] == TRAIN:
            raise ConfigError(f"--splits {TRAIN}: rows of {self.name} are not for training. Name a dev split.")
        if names[0] not in task.splits:
            raise ConfigError(f"task {task.name!r}: has no split {names[0]!r}, but only its rows are augmented")
        return names[0]

    @property
    def num_rows(self) -> int | None:
        return self.sentences

    def plan(self, rows: "pa.Table", store: Path) -> PlannedVariants:
        """Needs nothing that could be missing."""
        from teacher.augment.editors import MaskEachEditor

        return PlannedVariants(deciding(self), lambda state: MaskEachEditor(self.mask_token))


METHODS: dict[str, type[Method]] = {method.name: method for method in (TinyBert, MaskPos, MaskEach)}


def default_method(task: Task) -> str | None:
    """How the variants set in the task's manifest are made. None without such an entry."""
    if task.augment is None:
        return None
    methods = [name for name, method in METHODS.items() if method.for_training]
    if task.augment not in methods:
        known = did_you_mean(task.augment, methods)
        raise ConfigError(f"task {task.name!r}: augment: {task.augment!r} makes no training rows. {known}")
    return task.augment


class ByTinyBert(TinyBert):
    """`TinyBert`, chosen by ``--method``."""

    method: Literal["tinybert"] = Field(json_schema_extra={"decides": False})


class ByMaskPos(MaskPos):
    """`MaskPos`, chosen by ``--method``."""

    method: Literal["mask-pos"] = Field(json_schema_extra={"decides": False})


class ByMaskEach(MaskEach):
    """`MaskEach`, chosen by ``--method``."""

    method: Literal["mask-each"] = Field(json_schema_extra={"decides": False})


class AugmentSettings(OwnDataFlags, StoreFlags, JsonFlags):
    """Settings of ``distill augment``."""

    helps: ClassVar = {
        "method": "Method. tinybert: words proposed by a masked LM. mask-pos: masks, and words of the same part of "
        "speech. mask-each: each word of dev rows masked in turn, to see which ones matter.",
        "precision": "tinybert: precision of the masked LM.",
        "max_seq_length": "tinybert: maximum input length of the masked LM in tokens.",
    }
    task: str | None = Field(None, description="Task to augment. See `distill tasks`.")
    by: ByTinyBert | ByMaskPos | ByMaskEach = Field(discriminator="method")
    name: str | None = Field(None, pattern=SET_NAME, description="Name of the variants. Default: TASK-METHOD.")
