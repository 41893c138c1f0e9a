"""A teacher's logits of many inputs, by padded batches. Shapes: B batch, L tokens, N rows, W windows, C logits."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import torch
from accelerate.utils.memory import should_reduce_batch_size

from pipeline import console
from pipeline.arrays import Floats, Ints, Ragged
from pipeline.device import to_device
from pipeline.errors import TeacherError
from pipeline.text.tokenizer import Tokenized
from teacher.models.classifier import Teacher
from teacher.models.loaded import LoadedModel

CPU_TOKENS_PER_BATCH = 2048
GPU_TOKENS_PER_BATCH = 32768
LONGEST_SHOWN = 100  # characters of a text in a message


class NotFiniteError(TeacherError):
    """The teacher gives NaN or Inf for an input, which the error knows."""

    def __init__(self, message: str, asked: Tokenized) -> None:
        super().__init__(message)
        self.asked = asked


@contextmanager
def naming_rows(inputs: Sequence[Tokenized], rows: pa.Table, splits: str) -> Iterator[None]:
    """Makes of a `NotFiniteError` a TeacherError that says which row of a task it is about, and its text.

    Args:
        inputs: what the teacher is asked about in the block.
        rows: the rows that it was made from, in the same order.
        splits: the split that they are of, or several.
    """
    try:
        yield
    except NotFiniteError as error:
        row = rows.slice(inputs.index(error.asked), 1).to_pylist()[0]
        texts = [row[name] for name in ("sentence1", "sentence2") if row[name] is not None]
        shown = " / ".join(repr(text[:LONGEST_SHOWN]) for text in texts)
        raise TeacherError(f"{splits}, row {row['source_row']}, {shown}: {error}") from error


def tokens_per_batch(device: torch.device, wanted: int | None = None) -> int:
    """Padded tokens per forward pass: as many as are wanted, or as suit the device."""
    return wanted or (CPU_TOKENS_PER_BATCH if device.type == "cpu" else GPU_TOKENS_PER_BATCH)


def teacher_logits(
    teacher: Teacher,
    inputs: Sequence[Tokenized],
    max_tokens: int,
    advance: Callable[[int], None] = lambda rows: None,
) -> Floats:
    """The teacher's logits of inputs, asked in batches of like length (`run_batches`). Call it inside `inference_mode`.

    Of an input that it reads by windows they are the mean of theirs.

    Args:
        teacher: the teacher, on its device.
        inputs: tokenised inputs, N of them.
        max_tokens: most padded tokens per batch.
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
        raise NotFiniteError(
            f"teacher {teacher.name}: gives NaN or Inf, {logits_NC[row].tolist()}; "
            "fp16 overflows with some models, try --precision bf16 or fp32",
            inputs[row],
        )
    return logits_NC


def _logits(
    teacher: Teacher, inputs: Sequence[Tokenized], max_tokens: int, advance: Callable[[list[int]], None]
) -> Floats:
    """Logits of inputs that the teacher reads whole; ``advance`` is called with the numbers of each batch's."""
    logits_NC = np.empty((len(inputs), teacher.target.num_logits), dtype=np.float32)
    outputs: list[tuple[list[int], torch.Tensor]] = []  # on the device to the end: a copy a batch would wait for it

    def run(batch: list[int]) -> None:
        outputs.append((batch, forward(teacher, [inputs[row] for row in batch])))
        advance(batch)

    run_batches([len(row.ids) for row in inputs], max_tokens, run)
    if outputs:
        rows = [row for batch, _ in outputs for row in batch]
        logits_NC[rows] = torch.cat([part for _, part in outputs]).cpu().numpy()[:, list(teacher.order)]
    return logits_NC


def _means(logits_WC: Floats, starts_N: Ints) -> Floats:
    """The mean logits of each input, whose windows begin at ``starts_N``."""
    if not len(starts_N):
        return logits_WC
    counts_N = np.diff([*starts_N, len(logits_WC)])
    sums_NC = np.add.reduceat(logits_WC.astype(np.float64), starts_N)
    return (sums_NC / counts_N[:, None]).astype(np.float32)


def run_batches(lengths: Sequence[int], max_tokens: int, run: Callable[[list[int]], None]) -> None:
    """Calls ``run`` with the row numbers of each batch; one that does not fit the memory is split and tried again.

    Args:
        lengths: tokens per row.
        max_tokens: most padded tokens per batch.
        run: does the work.

    Raises:
        TeacherError: if a single row does not fit the memory.
    """
    pending = token_budget_batches(lengths, max_tokens)[::-1]
    while pending:
        batch = pending.pop()
        try:
            run(batch)
        except RuntimeError as error:
            if not should_reduce_batch_size(error):
                raise
            longest = lengths[batch[0]]
            if len(batch) == 1:
                message = f"out of memory for a single row of {longest} tokens; use a bigger device"
                raise TeacherError(message) from error
            max_tokens = len(batch) // 2 * longest
            console.warn(f"out of memory for {len(batch)} rows at once; going on with {max_tokens} tokens per batch")
            left = [row for rows in [batch, *pending] for row in rows]
            smaller = token_budget_batches([lengths[row] for row in left], max_tokens)
            pending = [[left[k] for k in rows] for rows in smaller][::-1]


def forward(teacher: Teacher, inputs: Sequence[Tokenized]) -> torch.Tensor:
    """Logits [B, C] of one forward pass, in the teacher's own order, float32, on its device."""
    batch = {name: to_device(values, teacher.model.device) for name, values in collate(teacher, inputs).items()}
    logits_BC: torch.Tensor = teacher.model(**batch).logits.float()
    return logits_BC


def collate(teacher: LoadedModel, inputs: Sequence[Tokenized]) -> dict[str, torch.Tensor]:
    """Inputs padded to the longest: ``input_ids``, ``attention_mask``, ``token_type_ids`` if read, [B, L] int64."""
    rows = range(len(inputs))
    ids = Ragged.of([row.ids for row in inputs])
    ids_BL = torch.from_numpy(ids.padded(rows, teacher.tokens.pad_id))
    attention_BL = torch.arange(ids_BL.shape[1]) < torch.from_numpy(ids.lengths)[:, None]
    batch = {"input_ids": ids_BL, "attention_mask": attention_BL.long()}
    if teacher.tokens.reads_token_types:
        batch["token_type_ids"] = torch.from_numpy(Ragged.of([row.type_ids for row in inputs]).padded(rows, 0))
    return batch


FULL_BATCH = 16  # a batch more costs as much time as a sixteenth of a full one; measured on CPUs, between fp32 and bf16


def token_budget_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Packs rows into batches, longest first, so that a batch too large for the memory shows at once.

    Rows are sorted by length and cut where padding and number of batches together cost least, by dynamic programming
    from the shortest row on: the best cut of rows n and after is the best first batch plus the best cut of the rest.

    Args:
        lengths: tokens per row.
        max_tokens: most padded tokens (rows times longest) per batch; a longer row goes alone.

    Returns:
        Row numbers per batch; every row once. Depends on the lengths and the budget alone.
    """
    length_N = np.asarray(lengths, dtype=np.int64)
    order_N = np.argsort(-length_N, kind="stable")
    stops = _cut(length_N[order_N], max_tokens)
    batches, start = [], 0
    while start < len(order_N):
        batches.append(order_N[start : stops[start]].tolist())
        start = stops[start]
    return batches


def _cut(descending_N: np.ndarray, max_tokens: int) -> list[int]:
    """For each row, where the batch that begins with it ends if it and all after it are cut best [N]."""
    num_rows = len(descending_N)
    counts = np.arange(1, num_rows + 1)
    cost = np.zeros(num_rows + 1, dtype=np.int64)  # of the rows from here on, in sixteenths of a token
    stops = [0] * num_rows
    for row, longest in reversed(list(enumerate(descending_N.tolist()))):
        most = min(num_rows - row, max(1, max_tokens // max(1, longest)))
        costs = counts[:most] * (FULL_BATCH * longest) + cost[row + 1 : row + 1 + most]
        size = int(costs.argmin())
        cost[row] = costs[size] + max_tokens
        stops[row] = row + 1 + size
    return stops
