"""What a pretrained student makes of the masked positions that were held out, a bounded number at a time.

Shapes: P positions, F features, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import torch

from pipeline.device import has_fast_bf16
from pipeline.sets.token_reader import TokenSet
from student.pretrain.data import MaskedBatch, read_pool
from student.pretrain.head import CHUNK
from student.pretrain.model import MlmStudent

MAX_ROWS, BATCH_SIZE = 4096, 256


@dataclass(frozen=True)
class HeldOut:
    """Some masked positions, at most `CHUNK` of them.

    Attributes:
        features_PF: float32, the input of the student's head.
        target_P: int64, what stood there.
        predictions: the codec's columns.
    """

    features_PF: torch.Tensor
    target_P: torch.Tensor
    predictions: dict[str, pa.Array]


@torch.no_grad()
def held_out(student: MlmStudent, token_set: TokenSet, split: str) -> Iterator[HeldOut]:
    """The masked positions of the first `MAX_ROWS` rows of a split, in order."""
    for batch in _batches(token_set, split, student.config.pad_id):
        target_P = batch.target_P.to(student.device)
        features_PF = student(*(ids.to(student.device) for ids in (batch.ids_BL, batch.row_P, batch.place_P)))
        for low in range(0, len(features_PF), CHUNK):
            part = slice(low, low + CHUNK)
            predictions = {name: column[part] for name, column in batch.predictions.items()}
            yield HeldOut(features_PF[part], target_P[part], predictions)


@torch.no_grad()
def head_logits(student: MlmStudent, features_PF: torch.Tensor) -> torch.Tensor:
    """Returns logits_PV, float32; the product in bf16 where that is fast, as in training."""
    dtype = torch.bfloat16 if has_fast_bf16() else torch.float32
    return (features_PF.to(dtype) @ student.head.weight.to(dtype).T).float() + student.head.bias


def _batches(token_set: TokenSet, split: str, pad_id: int) -> Iterator[MaskedBatch]:
    left = MAX_ROWS
    for group, num_rows in token_set.groups(split):
        if left <= 0:
            return
        token_set.check_shards([group[0]])
        pool = read_pool(token_set, [group])
        rows = range(min(left, num_rows))
        for start in range(0, len(rows), BATCH_SIZE):
            yield pool.batch(list(rows[start : start + BATCH_SIZE]), pad_id)
        left -= num_rows
