"""Masked sequences of a corpus by the number of the step: a pool of random blocks of documents at a time."""

import numpy as np

from pipeline.errors import DataError
from pipeline.training.steps import batch_of, num_rounds, shuffled_batches
from teacher.corpus.masking import Masked, MaskingPlan, mask
from teacher.corpus.text import TRAIN, Text
from teacher.inference.masked_lm import MlmTokenizer

BLOCK_DOCUMENTS, BLOCKS_PER_POOL = 256, 32


class TextStream:
    """The batches of a training; each pass over the corpus orders and masks its documents anew.

    How many batches a pool has is only known once it is read: `place` tells where the stream is.

    Args:
        text: the corpus.
        tokens: the masked LM's tokenizer.
        plan: how sequences are masked.
        batch_size: sequences per batch.
        seed: of the order.
        num_processes: how many processes share each step, a batch each.
        rank: number of this process.
    """

    def __init__(
        self,
        text: Text,
        tokens: MlmTokenizer,
        plan: MaskingPlan,
        batch_size: int,
        seed: int,
        num_processes: int = 1,
        rank: int = 0,
    ) -> None:
        self._text, self._tokens, self._plan = text, tokens, plan
        self._batch_size, self._seed, self._num_processes, self._rank = batch_size, seed, num_processes, rank
        self._masked: Masked | None = None

    def batch(self, step: int, place: tuple[int, int]) -> tuple[Masked, list[int], tuple[int, int]]:
        """The batch of this process at a step.

        Args:
            step: not before the first step of ``place``.
            place: a pool's number and that of its first step; (0, 0) at the beginning.

        Returns:
            The pool's sequences, the numbers of those in the batch, and the place of their pool.

        Raises:
            DataError: if no document is long enough.
        """
        number, first = place
        if self._masked is None:
            self._read(number)
        while step - first >= (rounds := num_rounds(len(self._batches), self._num_processes)):
            number, first = number + 1, first + rounds
            self._read(number)
        assert self._masked is not None
        return self._masked, batch_of(self._batches, step - first, self._num_processes, self._rank), (number, first)

    def _read(self, number: int) -> None:
        """Brings a pool into memory."""
        self._masked = self._pool(number)
        lengths = self._masked.ids.lengths
        self._batches = shuffled_batches(lengths, self._batch_size, self._seed, number)

    def _pool(self, number: int) -> Masked:
        """Masked sequences of random blocks of documents."""
        text, total = self._text, self._text.documents.num_documents
        blocks = -(-total // BLOCK_DOCUMENTS)
        passes, part = divmod(number, -(-blocks // BLOCKS_PER_POOL))
        order = np.random.default_rng([self._seed, passes]).permutation(blocks)
        starts = [int(k) * BLOCK_DOCUMENTS for k in order[part * BLOCKS_PER_POOL : (part + 1) * BLOCKS_PER_POOL]]
        ranges = [(low, min(total, low + BLOCK_DOCUMENTS)) for low in starts]
        masked = [
            mask(sequences, self._plan, passes)
            for low, high in ranges
            for sequences in text.sequences(self._tokens, TRAIN, low, high)
        ]
        if not any(len(part.sequence_R) for part in masked):
            raise DataError(
                f"{text.documents.description}: no text to train on with a token to mask, as long as --min-seq-length "
                f"{text.config.min_seq_length}, in {len(ranges) * BLOCK_DOCUMENTS:,} documents"
            )
        return Masked.joined(masked)
