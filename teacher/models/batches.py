"""Padded batches for any model: packing rows, and splitting batches that do not fit into memory.

Shapes: B batch, L tokens, N rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import torch
from accelerate.utils.memory import should_reduce_batch_size

from pipeline import console
from pipeline.arrays import Ragged
from pipeline.devices import to_device
from pipeline.errors import TeacherError
from pipeline.text.tokenizer import Tokenized
from teacher.models.loaded import LoadedModel

CPU_TOKENS_PER_BATCH = 2048
GPU_TOKENS_PER_BATCH = 32768
LONGEST_SHOWN = 100  # characters of a text in a message


class NotFiniteError(TeacherError):
    """The outputs of a teacher for one of its inputs are NaN or Inf."""

    def __init__(self, problem: str, tokens: Tokenized) -> None:
        super().__init__(f"{problem}. fp16 overflows with some models. Try --precision bf16 or fp32")
        self.tokens = tokens


@contextmanager
def naming_rows(inputs: Sequence[Tokenized], rows: pa.Table, splits: str) -> Iterator[None]:
    """Turns a `NotFiniteError` in the block into a TeacherError with the row of the task, its text and its split.

    ``rows`` are the rows of the inputs, in the same order.
    """
    try:
        yield
    except NotFiniteError as error:
        row = rows.slice(inputs.index(error.tokens), 1).to_pylist()[0]
        texts = [row[name] for name in ("sentence1", "sentence2") if row[name] is not None]
        shown = " / ".join(repr(text[:LONGEST_SHOWN]) for text in texts)
        raise TeacherError(f"{splits}, row {row['source_row']}, {shown}: {error}") from error


def tokens_per_batch(device: torch.device, wanted: int | None = None) -> int:
    """Returns the padded tokens per forward pass: the requested number, or one that suits the device."""
    return wanted or (CPU_TOKENS_PER_BATCH if device.type == "cpu" else GPU_TOKENS_PER_BATCH)


def run_batches(lengths: Sequence[int], max_tokens: int, run: Callable[[list[int]], None]) -> None:
    """Calls ``run`` with the row numbers of each batch. A batch that does not fit into memory is split and tried again.

    Raises:
        TeacherError: if a single row does not fit into memory.
    """
    # Reversed, so that pop() takes the batch with the longest rows first: it fails early if anything does.
    pending = token_budget_batches(lengths, max_tokens)[::-1]
    while pending:
        batch = pending.pop()
        try:
            run(batch)
        except RuntimeError as error:
            # Accelerate recognizes out-of-memory errors of CUDA, cuDNN and CPU allocators by type and text.
            if not should_reduce_batch_size(error):
                raise
            longest = lengths[batch[0]]
            if len(batch) == 1:
                message = f"out of memory for a single row of {longest} tokens. Use a larger device"
                raise TeacherError(message) from error
            # The remaining batches get the smaller budget, too: they would run out of memory as well, one after the
            # other.
            max_tokens = len(batch) // 2 * longest
            console.warn(f"out of memory for {len(batch)} rows at once. Continuing with {max_tokens} tokens per batch")
            left = [row for rows in [batch, *pending] for row in rows]
            smaller = token_budget_batches([lengths[row] for row in left], max_tokens)
            pending = [[left[k] for k in rows] for rows in smaller][::-1]


def collate(model: LoadedModel, inputs: Sequence[Tokenized]) -> dict[str, torch.Tensor]:
    """Returns padded ``input_ids``, ``attention_mask``, and ``token_type_ids`` if used, [B, L] int64, on its device."""
    rows = range(len(inputs))
    ids = Ragged.of([row.ids for row in inputs])
    ids_BL = torch.from_numpy(ids.padded(rows, model.tokens.pad_id))
    attention_BL = torch.arange(ids_BL.shape[1]) < torch.from_numpy(ids.lengths)[:, None]
    batch = {"input_ids": ids_BL, "attention_mask": attention_BL.long()}
    if model.tokens.reads_token_types:
        batch["token_type_ids"] = torch.from_numpy(Ragged.of([row.type_ids for row in inputs]).padded(rows, 0))
    return {name: to_device(values, model.model.device) for name, values in batch.items()}


def framed(model: LoadedModel, ids: Ragged) -> list[Tokenized]:
    """Returns single sequences as a model reads them, special tokens included."""
    before, after = model.tokens.frame
    rows = [[*before, *row, *after] for row in ids.lists()]
    return [Tokenized(row, [0] * len(row), own, []) for row, own in zip(rows, ids.lists(), strict=True)]


# An additional batch costs as much time as a sixteenth of a full one. Measured on CPUs, between the values of fp32 and
# bf16.
FULL_BATCH = 16


def token_budget_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Packs rows into batches, longest first, so that a batch that is too large for the memory fails at once.

    Rows are sorted by length and divided where padding and number of batches together cost least, by dynamic
    programming from the shortest row on: the best division of the rows from n on is the best first batch plus the best
    division of the rest.

    Args:
        lengths: tokens per row.
        max_tokens: maximum number of padded tokens (rows times longest) per batch. A longer row has its own batch.

    Returns: Row numbers per batch, with every row once. They only depend on the lengths and the budget.
    """
    length_N = np.asarray(lengths, dtype=np.int64)
    order_N = np.argsort(-length_N, kind="stable")
    stops = _divide(length_N[order_N], max_tokens)
    batches, start = [], 0
    while start < len(order_N):
        batches.append(order_N[start : stops[start]].tolist())
        start = stops[start]
    return batches


def _divide(descending_N: np.ndarray, max_tokens: int) -> list[int]:
    """Returns for each row the end of its batch in the best division of the rows from it on [N]."""
    num_rows = len(descending_N)
    counts = np.arange(1, num_rows + 1)
    # The cost of the rows from here on, in sixteenths of a token: integers give the same batches on every machine.
    cost = np.zeros(num_rows + 1, dtype=np.int64)
    stops = [0] * num_rows
    for row, longest in reversed(list(enumerate(descending_N.tolist()))):
        most = min(num_rows - row, max(1, max_tokens // max(1, longest)))
        # The candidates of one row are compared at once with numpy, so the quadratic recursion stays fast.
        costs = counts[:most] * (FULL_BATCH * longest) + cost[row + 1 : row + 1 + most]
        size = int(costs.argmin())
        cost[row] = costs[size] + max_tokens
        stops[row] = row + 1 + size
    return stops
