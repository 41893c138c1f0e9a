"""How often each token is a masked word: what a student guesses best without any context.

Shapes: V vocabulary.
"""

import numpy as np
import torch
from torch import nn

from pipeline.sets.token_reader import TokenSet
from pipeline.sets.tokens import masked_rows


def log_frequencies(token_set: TokenSet) -> torch.Tensor:
    """Log of each token's share of the masked words of the train split, every count one higher: [V], float32.

    Raises:
        IntegrityError: if a shard is not what the record says.
    """
    count_V = np.ones(token_set.record.codec.vocabulary_size, dtype=np.int64)
    for shard in token_set.shards("train"):
        for table in token_set.read_shard(shard):
            count_V += np.bincount(masked_rows(table).targets.flat, minlength=len(count_V))
    return torch.from_numpy(np.log(count_V / count_V.sum())).float()


@torch.no_grad()
def start_without_context(head: nn.Linear, log_frequency_V: torch.Tensor) -> None:
    """Makes a head say the frequencies whatever its input: they are its bias, and its weights are 0."""
    head.weight.zero_()
    head.bias.copy_(log_frequency_V)
