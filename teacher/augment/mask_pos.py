"""The method ``mask-pos``: words masked, or replaced by others of their part of speech (Tang et al. 2019)."""

from typing import TYPE_CHECKING

from pipeline.errors import ConfigError
from teacher.augment.flags import AugmentFlags, MethodFlags, Pairs
from teacher.augment.method import BOTH, FIRST, SECOND, Method, PlannedVariants, Sides
from teacher.augment.words import MASK

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.sets.record_parts import Setting


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
        return tuple((FIRST, SECOND, BOTH)[n % 3] for n in range(num_variants))

    def plan(self, config: MethodFlags, rows: "pa.Table") -> PlannedVariants:
        """Finds a tagger, where parts of speech are asked for; the editor needs the words of each.

        Raises:
            MissingDependencyError: if there is none.
        """
        from teacher.augment.mask_pos_editor import MaskPosEditor, pools_of
        from teacher.augment.tagging import pattern_tagger

        shares = (config.mask_probability, config.pos_probability, config.ngram_probability)
        settings: dict[str, Setting] = {
            "mask_probability": config.mask_probability,
            "pos_probability": config.pos_probability,
            "ngram_probability": config.ngram_probability,
            **({} if config.mask_token == MASK else {"mask_token": config.mask_token}),
        }
        if not config.pos_probability:
            return PlannedVariants(settings, lambda state: MaskPosEditor(*shares, config.seed, mask=config.mask_token))
        name, tagger = pattern_tagger()
        return PlannedVariants(
            settings | {"tagger": name},
            lambda state: MaskPosEditor(*shares, config.seed, tagger, pools_of(rows, tagger), config.mask_token),
        )
