"""The method ``tinybert``: words replaced by what a masked LM or word vectors propose (Jiao et al. 2020)."""

from typing import TYPE_CHECKING

from teacher.augment.flags import AugmentFlags, MethodFlags, Pairs
from teacher.augment.method import BOTH, FIRST, SECOND, Editor, Method, PlannedVariants, Sides

if TYPE_CHECKING:
    import pyarrow as pa
    from accelerate import PartialState

    from pipeline.sets.record_parts import Setting


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
