"""A training step by plain torch and by this project: of sums and products, recurrences, and aligned pairs."""

import copy
import itertools
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.arrays import Ints, Ragged
from student.data import Examples
from student.encoders import aligned as aligned_model
from student.encoders import recurrent as recurrent_model
from student.losses.logit_losses import distillation_loss
from student.model.student import Student
from student.row_adam import RowAdam
from student.settings import TrainSettings
from tests.benchmarks.random_student import random_student

VOCABULARY, BATCHES = 30522, 8
CLASSES = 3
CPU = torch.device("cpu")


def alternatives(batch_size: int, device: torch.device = CPU) -> dict[str, Callable[[], object]]:
    """A step on batches of realistic lengths (log-normal, 13 tokens in the mean, at most 60) and words, in turn."""
    batches = [_examples(batch_size, seed) for seed in range(BATCHES)]
    steps = {
        "torch loop, Adam": _plain_step(batches, _indexed_product, fused=False, device=device),
        "torch loop over unbound matrices, fused Adam": _plain_step(
            batches, _unbound_product, fused=True, device=device
        ),
        "distill": _step(batches, student_with(), device),
    }
    return _warm(steps)


def recurrent(batch_size: int) -> dict[str, Callable[[], object]]:
    """A step of a Hybrid, and of a student with an element-wise recurrence on padded arrays and compiled."""
    batches = [_examples(batch_size, seed) for seed in range(BATCHES)]
    make = partial(random_student, vocabulary_size=VOCABULARY, labels=("a", "b", "c"))
    student = make(TrainSettings.from_flags(embedding="recurrent"))
    padded_step = _step(batches, student)

    def padded() -> None:
        with patch.object(recurrent_model, "can_do", return_value=False):
            padded_step()

    hybrid = _step(batches, make(TrainSettings.from_flags(num_bigrams=0)))
    return _warm({"hybrid": hybrid, "recurrent, padded": padded, "recurrent": _step(batches, copy.deepcopy(student))})


def aligned(batch_size: int) -> dict[str, Callable[[], object]]:
    """A step of the default student of pairs, with padded arrays in plain torch and with compiled alignment."""
    batches = [_examples(batch_size, seed, is_pair=True) for seed in range(BATCHES)]
    flags = TrainSettings.from_flags(embedding="aligned")
    student = random_student(flags, VOCABULARY, labels=("a", "b", "c"), is_pair=True)
    padded_step = _step(batches, student)

    def padded() -> None:
        with patch.object(aligned_model, "can_do", return_value=False):
            padded_step()

    return _warm({"plain torch, padded": padded, "distill": _step(batches, copy.deepcopy(student))})


def _warm(steps: dict[str, Callable[[], object]]) -> dict[str, Callable[[], object]]:
    for step in steps.values():
        for _ in range(BATCHES):
            step()  # the moments of rows are new memory when they are first touched
    return steps


def lengths(count: int, seed: int = 0) -> Ints:
    """Tokens of sentences: log-normal, mean 13.2, at most 60."""
    tokens: Ints = np.clip(np.random.default_rng(seed).lognormal(2.45, 0.5, count).astype(np.int64), 1, 60)
    return tokens


def student_with(head: str = "linear") -> Student:
    """The default student with this head, of a task with three classes; without maxima and pairs of tokens.

    Plain torch has no quick way to either, so the comparison would say little.
    """
    flags = TrainSettings.from_flags(head=head, hidden_dropout=0, pooling="sum", num_bigrams=0)
    return random_student(flags, VOCABULARY, labels=("a", "b", "c"))


def _examples(count: int, seed: int, is_pair: bool = False) -> Examples:
    random = np.random.default_rng(seed)
    teacher = random.normal(size=(count, CLASSES)).astype(np.float32)
    ones = np.ones(count, dtype=np.float32)
    return Examples(
        _sentences(count, seed),
        _sentences(count, seed + BATCHES) if is_pair else None,
        random.integers(CLASSES, size=count),
        ones * np.nan,
        teacher,
        ones,
        np.zeros((count, 2), np.int64),
        "",
    )


def _sentences(count: int, seed: int) -> Ragged:
    random = np.random.default_rng(seed)
    share_V = 1 / np.arange(1, VOCABULARY)  # of the words by rank: Zipf's law
    return Ragged.of([1 + random.choice(VOCABULARY - 1, n, p=share_V / share_V.sum()) for n in lengths(count, seed)])


def _plain_step(
    batches: list[Examples], product: Callable[[Tensor], Tensor], fused: bool, device: torch.device
) -> Callable[[], object]:
    """What one would write: padded ids, embeddings, a loop of products, Adam over everything."""
    student = student_with().to(device)
    tables = [table.weight for table in student.encoder.tables()]
    optimizer = torch.optim.Adam(student.parameters(), lr=5e-4, fused=fused or None)
    padded = [torch.from_numpy(batch.ids1.padded(range(len(batch)), 0)).to(device) for batch in batches]
    turns = itertools.cycle(range(len(batches)))

    def run() -> None:
        turn = next(turns)
        sums, forward, backward = (nn.functional.embedding(padded[turn], table, 0) for table in tables)
        matrices = (rows.view(*rows.shape[:2], 20, 20).transpose(0, 1) for rows in (forward, backward.flip(1)))
        logits = student.head(torch.cat([sums.sum(1), *(product(m).flatten(1) for m in matrices)], dim=1))
        _loss(logits, batches[turn]).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return run


def _indexed_product(m_LBDD: Tensor) -> Tensor:
    product_BDD = m_LBDD[0]
    for place in range(1, len(m_LBDD)):
        product_BDD = product_BDD @ m_LBDD[place]
    return product_BDD


def _unbound_product(m_LBDD: Tensor) -> Tensor:
    product_BDD, *others = m_LBDD.unbind(0)
    for m_BDD in others:
        product_BDD = product_BDD @ m_BDD
    return product_BDD


def _step(batches: list[Examples], student: Student, device: torch.device = CPU) -> Callable[[], object]:
    student.to(device)
    tables = [table.weight for table in student.encoder.trained_tables()]
    others = [*student.encoder.other_parameters(), *student.head.parameters()]
    optimizer = RowAdam(tables, others, lr=5e-4, padding_idx=0)
    turns = itertools.cycle(range(len(batches)))

    def run() -> None:
        examples = batches[next(turns)]
        ids_T, starts_S = (part.to(device) for part in examples.batch(range(len(examples))))
        logits = student.logits(ids_T, starts_S, optimizer.use(ids_T) if optimizer.by_rows else None)
        _loss(logits, examples).backward()  # type: ignore[no-untyped-call]
        optimizer.clip_gradients(1.0)
        optimizer.step()
        optimizer.zero_grad()

    return run


def _loss(logits: Tensor, examples: Examples) -> Tensor:
    teacher, gold = (torch.from_numpy(part).to(logits.device) for part in (examples.teacher_NC, examples.label_N))
    return distillation_loss(logits, teacher, gold, alpha=0.5, temperature=2.0)
