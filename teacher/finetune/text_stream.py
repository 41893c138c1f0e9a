"""Masked sequences of a corpus by the number of the step: a pool of random blocks of documents at a time."""

import numpy as np

from pipeline.tasks.task import TRAIN
from pipeline.training.steps import batch_of, num_rounds, shuffled_batches
from teacher.corpus.masking import Masked, MaskingPlan, mask
from teacher.corpus.text import Text, nothing_to_mask
from teacher.models.masked_lm import MlmTokenizer

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
        self._num_blocks = -(-text.documents.num_documents // BLOCK_DOCUMENTS)
        self._pools_per_pass = -(-self._num_blocks // BLOCKS_PER_POOL)
        self._masked: Masked | None = None

    def batch(self, step: int, place: tuple[int, int]) -> tuple[Masked, list[int], tuple[int, int]]:
        """The batch of this process at a step.

        Args:
            step: not before the first step of ``place``.
            place: a pool's number and that of its first step; (0, 0) at the beginning.

        Returns:
            The pool's sequences, the numbers of those in the batch, and the place of their pool.

        Raises:
            DataError: if no document is long enough, or has a token to mask.
        """
        number, first = place
        if self._masked is None:
            self._read(number)
        num_empty = 0
        while step - first >= (rounds := num_rounds(len(self._batches), self._num_processes)):
            num_empty = 0 if rounds else num_empty + 1
            if num_empty == 2 * self._pools_per_pass - 1:  # among which is a whole pass, wherever they begin
                raise nothing_to_mask(self._text, "its training split")
            number, first = number + 1, first + rounds
            self._read(number)
        assert self._masked is not None
        return self._masked, batch_of(self._batches, step - first, self._num_processes, self._rank), (number, first)

    def _read(self, number: int) -> None:
        """Brings a pool into memory; one whose documents are too short, or have nothing to mask, has no batch."""
        parts = self._pool(number)
        self._masked = Masked.joined(parts) if parts else None
        lengths = self._masked.ids.lengths if self._masked is not None else np.empty(0, np.int64)
        self._batches = shuffled_batches(lengths, self._batch_size, self._seed, number)

    def _pool(self, number: int) -> list[Masked]:
        """Masked sequences of random blocks of documents."""
        total = self._text.documents.num_documents
        passes, part = divmod(number, self._pools_per_pass)
        order = np.random.default_rng([self._seed, passes]).permutation(self._num_blocks)
        starts = [int(k) * BLOCK_DOCUMENTS for k in order[part * BLOCKS_PER_POOL : (part + 1) * BLOCKS_PER_POOL]]
        return [
            mask(sequences, self._plan, passes)
            for start in starts
            for sequences in self._text.sequences(self._tokens, TRAIN, start, min(total, start + BLOCK_DOCUMENTS))
        ]
