"""The bases that the codec ``pca`` of layers needs: fitted once per set by whichever process is first, read by all.

Shapes: N states, H hidden size.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline import console
from pipeline.errors import IntegrityError
from pipeline.files import write_once
from pipeline.sets.layer_files import forget_basis
from pipeline.sets.signals import Cls, LayerSignal, States
from pipeline.sets.vector_codecs import TOKENS_PER_NUMBER, bases_to_bytes, fit_basis
from pipeline.sources import Source, sentences
from pipeline.tasks.task import TRAIN
from pipeline.text.tokenizer import Tokenized
from teacher.dump.driver import Executor
from teacher.models.classifier import Teacher
from teacher.models.layers import layer_outputs

CLS_ROWS = 4096  # at most, where a row has but one


def with_bases(
    root: Path,
    signals: Sequence[LayerSignal],
    teacher: Teacher,
    source: Source,
    max_seq_length: int,
    max_tokens: int,
    executor: Executor,
) -> tuple[LayerSignal, ...]:
    """The signals with what is recorded of their bases, which are in the set in ``root`` from then on.

    Raises:
        IntegrityError: if a basis of which nothing is recorded yet is damaged, and files were written with it.
    """
    needing = [signal for signal in signals if isinstance(signal, States) and signal.codec.basis_bytes]
    if executor.is_main:
        for signal in needing:
            if not _is_there(root, signal):
                write_once(root / signal.basis_path, _fitted(signal, teacher, source, max_seq_length, max_tokens))
    executor.wait()
    found = {signal.name: signal.with_basis(root / signal.basis_path) for signal in needing}
    return tuple(found.get(signal.name, signal) for signal in signals)


def _is_there(root: Path, signal: States) -> bool:
    """Whether the set has the basis; another one than is recorded, or that no file was written with, is removed."""
    path = root / signal.basis_path
    if not signal.has_basis(path):
        forget_basis(root, signal)
        return False
    try:
        signal.bases_in(path)
    except IntegrityError:
        if any(path.parent.glob("*.parquet")):
            raise
        path.unlink()
        return False
    return True


def _fitted(signal: States, teacher: Teacher, source: Source, max_seq_length: int, max_tokens: int) -> bytes:
    wanted = TOKENS_PER_NUMBER * signal.codec.width
    inputs = _sample(signal, teacher, source, max_seq_length, wanted)
    with console.progress(len(inputs), f"teacher: basis of {signal.name}") as steps:
        said = layer_outputs(teacher, inputs, {signal.name: signal.layers}, max_tokens, steps.advance)[signal.name]
    num_stored = signal.codec.num_stored
    bases = {f"{layer}.": fit_basis(np.concatenate(states), num_stored) for layer, states in said.items()}
    return bases_to_bytes(bases)


def _sample(signal: States, teacher: Teacher, source: Source, max_seq_length: int, wanted: int) -> list[Tokenized]:
    """Evenly spread training rows of about so many tokens, or all rows."""
    rows = source.own(TRAIN if TRAIN in source.splits else next(iter(source.splits)))
    count = CLS_ROWS if isinstance(signal, Cls) else -(-wanted // max_seq_length)
    while True:
        count = min(count, rows.num_rows)
        places = np.linspace(0, rows.num_rows - 1, count).astype(np.int64)
        inputs = list(teacher.reader.tokenize(*sentences(rows.take(pa.array(places))), max_seq_length))
        tokens = sum(len(row.ids) for row in inputs)
        if isinstance(signal, Cls) or tokens >= wanted or count == rows.num_rows:
            return inputs
        count = int(1.1 * count * wanted / tokens) + 1
