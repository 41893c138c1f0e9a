"""A classifier's logits, of each text or of each token.

Shapes: N inputs, W windows, B batch, L tokens with special ones, T tokens of all inputs, C logits.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import torch

from pipeline.arrays import Floats, Ints, Ragged
from pipeline.devices import to_device
from pipeline.sets.kinds.token_labels import LabelledWords
from pipeline.text.tokenizer import Tokenized
from pipeline.text.word_pieces import Pieces, read_pieces
from teacher.models.batches import NotFiniteError, collate, naming_rows, run_batches
from teacher.models.classifier import Teacher

# called with the number of finished rows
Advance = Callable[[int], None]


def no_progress(rows: int) -> None:
    """Shows nothing."""


def teacher_logits(
    teacher: Teacher, inputs: Sequence[Tokenized], max_tokens: int, advance: Advance = no_progress
) -> Floats:
    """Returns the teacher's logits of inputs, in batches of similar lengths. Call it inside `inference_mode`.

    For an input that the teacher reads by windows, they are the mean over its windows.

    Args:
        teacher: the teacher on its device.
        inputs: tokenised inputs, N of them.
        max_tokens: maximum number of padded tokens per batch.
        advance: called with the number of rows after each batch.

    Returns:
        logits_NC: float32, before softmax, rows as ``inputs``, columns in the task's label order.

    Raises:
        NotFiniteError: if a logit is not finite.
        TeacherError: if a single row does not fit the memory.
    """
    if teacher.windows is None:
        logits_NC = _logits(teacher, inputs, max_tokens, lambda batch: advance(len(batch)))
    else:
        windows_N = [teacher.windows.split(row) for row in inputs]
        starts_N = np.cumsum([0, *map(len, windows_N)])[:-1]
        windows = [window for row in windows_N for window in row]
        logits_WC = _logits(teacher, windows, max_tokens, lambda batch: advance(int(np.isin(batch, starts_N).sum())))
        logits_NC = _means(logits_WC, starts_N)
    finite_N = np.isfinite(logits_NC).all(axis=1)
    if not finite_N.all():
        row = int(np.flatnonzero(~finite_N)[0])
        raise _not_finite(teacher, logits_NC[row], inputs[row])
    return logits_NC


def token_logits(
    teacher: Teacher, inputs: Sequence[Tokenized], max_tokens: int, advance: Advance = no_progress
) -> Floats:
    """Returns the teacher's logits of every token of inputs. Call it inside `inference_mode`.

    Args:
        teacher: a classifier of tokens, on its device.
        inputs: sentences. See `framed`.
        max_tokens: maximum number of padded tokens per batch.
        advance: called with the number of sentences after each batch.

    Returns:
        logits_TC: float32, columns in the task's label order, without special tokens.

    Raises:
        NotFiniteError: if a logit is not finite.
        TeacherError: if a sentence does not fit the memory.
    """
    starts = np.cumsum([0, *(len(row.ids1) for row in inputs)])
    first = len(teacher.tokens.frame[0])
    logits_TC = np.empty((int(starts[-1]), teacher.target.num_logits), dtype=np.float32)

    def run(batch: list[int]) -> None:
        logits_BLC = forward(teacher, [inputs[row] for row in batch]).cpu().numpy()[:, :, list(teacher.order)]
        for row, logits_LC in zip(batch, logits_BLC, strict=True):
            length = starts[row + 1] - starts[row]
            logits_TC[starts[row] : starts[row + 1]] = logits_LC[first : first + length]
        advance(len(batch))

    run_batches([len(row.ids) for row in inputs], max_tokens, run)
    finite_T = np.isfinite(logits_TC).all(axis=1)
    if not finite_T.all():
        token = int(np.flatnonzero(~finite_T)[0])
        row = int(np.searchsorted(starts, token, side="right")) - 1
        raise _not_finite(teacher, logits_TC[token], inputs[row])
    return logits_TC


def pieces_of(teacher: Teacher, rows: pa.Table, max_seq_length: int) -> Pieces:
    """Returns labelled sentences in the teacher's tokens, truncated to its maximum length."""
    room = max_seq_length - teacher.tokens.num_special
    return read_pieces(teacher.reader, rows.column("sentence1").to_pylist(), room)


def framed(teacher: Teacher, ids: Ragged) -> list[Tokenized]:
    """Returns sentences as the teacher reads them, special tokens included."""
    before, after = teacher.tokens.frame
    rows = [[*before, *row, *after] for row in ids.lists()]
    return [Tokenized(row, [0] * len(row), own, []) for row, own in zip(rows, ids.lists(), strict=True)]


def labelled_words(teacher: Teacher, rows: pa.Table, max_seq_length: int, split: str, max_tokens: int) -> LabelledWords:
    """Returns labelled sentences with the teacher's logits. Call it inside `inference_mode`."""
    pieces = pieces_of(teacher, rows, max_seq_length)
    inputs = framed(teacher, pieces.ids)
    with naming_rows(inputs, rows, split):
        logits_TC = token_logits(teacher, inputs, max_tokens)
    return LabelledWords.of(teacher.target.names, rows.column("sentence1"), rows.column("label"), pieces, logits_TC)


def forward(teacher: Teacher, inputs: Sequence[Tokenized]) -> torch.Tensor:
    """Returns the logits of a forward pass, [B, C] or [B, L, C], in the teacher's own order, float32, on its device."""
    batch = {name: to_device(values, teacher.model.device) for name, values in collate(teacher, inputs).items()}
    logits: torch.Tensor = teacher.model(**batch).logits.float()
    return logits


def _logits(
    teacher: Teacher, inputs: Sequence[Tokenized], max_tokens: int, advance: Callable[[list[int]], None]
) -> Floats:
    """Returns logits of inputs without windows. ``advance`` is called with the row numbers of each batch."""
    logits_NC = np.empty((len(inputs), teacher.target.num_logits), dtype=np.float32)
    # Kept on the device: a copy per batch would stall the GPU.
    outputs: list[tuple[list[int], torch.Tensor]] = []

    def run(batch: list[int]) -> None:
        outputs.append((batch, forward(teacher, [inputs[row] for row in batch])))
        advance(batch)

    run_batches([len(row.ids) for row in inputs], max_tokens, run)
    if outputs:
        rows = [row for batch, _ in outputs for row in batch]
        logits_NC[rows] = torch.cat([part for _, part in outputs]).cpu().numpy()[:, list(teacher.order)]
    return logits_NC


def _means(logits_WC: Floats, starts_N: Ints) -> Floats:
    """Returns the mean logits of each input, whose windows begin at ``starts_N``."""
    if not len(starts_N):
        return logits_WC
    counts_N = np.diff([*starts_N, len(logits_WC)])
    # Sums in float64 round less than a float32 logit can show, however many windows there are.
    sums_NC = np.add.reduceat(logits_WC.astype(np.float64), starts_N)
    return (sums_NC / counts_N[:, None]).astype(np.float32)


def _not_finite(teacher: Teacher, logits_C: Floats, tokens: Tokenized) -> NotFiniteError:
    return NotFiniteError(f"teacher {teacher.name}: outputs NaN or Inf, {logits_C.tolist()}", tokens)
