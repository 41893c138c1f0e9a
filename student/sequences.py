"""What a student reads of sentences: their ids end to end, without padding tokens."""

import numpy as np

from pipeline.arrays import Ragged, side_by_side
from student.model.architecture import StudentConfig


def sequences(config: StudentConfig, ids1: Ragged, ids2: Ragged | None = None) -> tuple[Ragged, ...]:
    """What a student reads of one or two sentences: each apart, or both as one sequence if it takes them jointly.

    A bert reads the special tokens around a single sentence, too.

    A text may spell the padding token; it is no token here either.
    """
    sentences = [_without(config.pad_id, ids) for ids in (ids1, ids2) if ids is not None]
    is_one = config.is_joint if ids2 is not None else config.bert is not None
    if not is_one or config.special_ids is None:
        return tuple(sentences)
    before, between, after = (Ragged.repeated(ids, len(ids1.lengths)) for ids in config.special_ids)
    first, *second = sentences
    return (side_by_side(before, first, *(part for ids in second for part in (between, ids)), after),)


def _without(token: int, ids: Ragged) -> Ragged:
    is_kept_T = ids.flat != token
    if is_kept_T.all():
        return ids
    kept_before_S = np.concatenate([[0], np.cumsum(is_kept_T)])
    return Ragged(ids.flat[is_kept_T], kept_before_S[ids.offsets])
