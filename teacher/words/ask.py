"""A teacher's logits of the tokens of many sentences.

Shapes: T tokens of all sentences, B batch, L tokens, C logits.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pipeline.arrays import Floats, Ragged
from pipeline.sets.word_reader import LabelledWords
from pipeline.text.tokenizer import Tokenized
from pipeline.text.word_pieces import Pieces, read_pieces
from teacher.models.batches import NotFiniteError, forward, naming_rows, run_batches
from teacher.models.classifier import Teacher


def pieces_of(teacher: Teacher, rows: pa.Table, max_seq_length: int) -> Pieces:
    """Source rows in the teacher's tokens, of each as many as it reads."""
    room = max_seq_length - teacher.tokens.num_special
    return read_pieces(teacher.reader, rows.column("sentence1").to_pylist(), room)


def framed(teacher: Teacher, ids: Ragged) -> list[Tokenized]:
    """Sentences as the teacher reads them, special tokens included."""
    before, after = teacher.tokens.frame
    rows = [[*before, *row, *after] for row in ids.lists()]
    return [Tokenized(row, [0] * len(row), own, []) for row, own in zip(rows, ids.lists(), strict=True)]


def labelled(teacher: Teacher, rows: pa.Table, max_seq_length: int, split: str, max_tokens: int) -> LabelledWords:
    """Source rows with what the teacher says of them. Call it inside `inference_mode`."""
    pieces = pieces_of(teacher, rows, max_seq_length)
    logits_TC = token_logits(teacher, pieces, rows, split, max_tokens)
    return LabelledWords.of(teacher.target.names, rows.column("sentence1"), rows.column("label"), pieces, logits_TC)


def token_logits(
    teacher: Teacher,
    pieces: Pieces,
    rows: pa.Table,
    split: str,
    max_tokens: int,
    advance: Callable[[int], None] = lambda rows: None,
) -> Floats:
    """The teacher's logits of every token, in batches of like length. Call it inside `inference_mode`.

    Args:
        teacher: the teacher, on its device.
        pieces: the sentences in tokens.
        rows: the source rows that they are, for messages.
        split: of the rows, for messages.
        max_tokens: most padded tokens per batch.
        advance: called with the number of sentences after each batch.

    Returns:
        logits_TC: float32, columns in the task's label order; what is said of special tokens is left out.

    Raises:
        TeacherError: if a logit is not finite, naming the row, or a sentence does not fit the memory.
    """
    inputs, starts = framed(teacher, pieces.ids), pieces.ids.offsets
    first = len(teacher.tokens.frame[0])
    logits_TC = np.empty((len(pieces.ids.flat), teacher.target.num_logits), dtype=np.float32)

    def run(batch: list[int]) -> None:
        logits_BLC = forward(teacher, [inputs[row] for row in batch]).cpu().numpy()[:, :, list(teacher.order)]
        for row, logits_LC in zip(batch, logits_BLC, strict=True):
            length = starts[row + 1] - starts[row]
            logits_TC[starts[row] : starts[row + 1]] = logits_LC[first : first + length]
        advance(len(batch))

    run_batches([len(row.ids) for row in inputs], max_tokens, run)
    with naming_rows(inputs, rows, split):
        _require_finite(teacher, inputs, pieces, logits_TC)
    return logits_TC


def _require_finite(teacher: Teacher, inputs: list[Tokenized], pieces: Pieces, logits_TC: Floats) -> None:
    finite_T = np.isfinite(logits_TC).all(axis=1)
    if finite_T.all():
        return
    token = int(np.flatnonzero(~finite_T)[0])
    row = int(np.searchsorted(pieces.ids.offsets, token, side="right")) - 1
    raise NotFiniteError(
        f"teacher {teacher.name}: gives NaN or Inf, {logits_TC[token].tolist()}; "
        "fp16 overflows with some models, try --precision bf16 or fp32",
        inputs[row],
    )
