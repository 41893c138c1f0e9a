"""Reading a set of tokens: checked, a row group at a time."""

from dataclasses import dataclass
from typing import ClassVar

from pipeline.errors import ConfigError
from pipeline.sets.codecs import Decoder
from pipeline.sets.group_reader import GroupedSet
from pipeline.sets.record import Scores
from pipeline.sets.tokens import perplexity
from pipeline.sets.verify_tokens import group_problem


@dataclass(frozen=True)
class MaskedWordSet(GroupedSet):
    """An opened set of tokens."""

    kind: ClassVar = "masked_words"
    advice: ClassVar = "for this a set of `distill teacher-dump --signal mlm` is needed"
    group_problem: ClassVar = group_problem

    def decoder(self) -> Decoder | None:
        """The teacher's last layer, where the codec needs it.

        Raises:
            IntegrityError: if the file is missing or was changed.
        """
        return self.record.signals.mlm.read_decoder(self.root) if self.record.signals.mlm else None

    def check_temperature(self, temperature: float) -> None:
        """Raises ConfigError if the distributions at this temperature cannot be had from what is stored."""
        codec = self.record.codec
        if not codec.honours(temperature):
            kept = codec.stored_temperature
            raise ConfigError(
                f"--temperature {temperature:g}: codec {str(codec)!r} only knows the distribution at {kept:g}; "
                f"use --temperature {kept:g}, or a set with codec hidden or dense"
            )

    def scores(self) -> Scores:
        """Per split, from the footers: positions, what the teacher guesses right, what is kept and what it takes."""
        scores: Scores = {}
        for split, total in self.totals():
            if total["positions"]:
                scores[split] = {
                    "positions": total["positions"],
                    "masked_accuracy": total["right"] / total["positions"],
                    "perplexity": perplexity(total["nats"] / total["positions"]),
                    "kept_mass": total["kept_mass"] / total["positions"],
                    "bytes_per_position": total["bytes"] / total["positions"],
                }
        return scores
