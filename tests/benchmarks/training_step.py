"""A training step: whole tables, only the rows that the data use, only those that the batch uses."""

from collections.abc import Callable

import numpy as np
import torch

from pipeline.ragged import Ragged
from pipeline.targets import Target
from student.architecture import StudentConfig
from student.data import Examples
from student.losses import distillation_loss
from student.model import Student
from student.optimizer import RowAdam, clip_gradients
from student.vocabulary import active_ids, renumber, shrunk

VOCABULARY, USED, ROWS = 30522, 11500, 32


def alternatives() -> dict[str, Callable[[], object]]:
    """One step of the default student on a batch of 32 rows, with the same result."""
    target = Target(kind="classes", names=("a", "b", "c"))
    config = StudentConfig(
        task="bench",
        target=target,
        metrics=("accuracy",),
        is_pair=False,
        vocabulary_size=VOCABULARY,
        pad_id=0,
        tokenizer_sha256="",
        max_seq_length=128,
        matrix_size=20,
        vector_size=400,
        bidirectional=True,
        hidden_size=1000,
        hidden_dropout=0.2,
    )
    random = np.random.default_rng(0)
    used = np.sort(random.choice(np.arange(1, VOCABULARY), USED, replace=False))
    rows = [random.choice(used, n).tolist() for n in np.clip(random.lognormal(2.4, 0.5, ROWS).astype(int), 1, 60)]
    gold, score = random.integers(3, size=ROWS), np.full(ROWS, np.nan, dtype=np.float32)
    teacher = random.normal(size=(ROWS, 3)).astype(np.float32)
    weight = np.ones(ROWS, dtype=np.float32)
    batch = Examples(Ragged.of(rows), None, gold, score, teacher, weight, "")
    vocabulary = Examples(Ragged.of([used.tolist()]), None, gold[:1], score[:1], teacher[:1], weight[:1], "")
    active = active_ids([vocabulary], 0)
    whole = Student(config)
    small, by_rows = shrunk(whole, active), shrunk(whole, active)

    def step(student: Student, examples: Examples, by_rows: bool = False) -> Callable[[], object]:
        for table in student.encoder.tables():
            table.sparse = by_rows
        tables = (table.weight for table in student.encoder.tables())
        optimizer = RowAdam(tables, student.head.parameters(), lr=5e-4)

        def run() -> None:
            ids = examples.batch(range(ROWS), student.config.pad_id)
            optimizer.catch_up(ids[0])
            logits = student(*ids)
            loss = distillation_loss(
                logits, torch.from_numpy(teacher), torch.from_numpy(gold), alpha=0.5, temperature=1.0
            )
            loss.backward()  # type: ignore[no-untyped-call]
            clip_gradients(student.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return run

    return {
        f"all {VOCABULARY:,} rows": step(whole, batch),
        f"the {len(active):,} rows that the data use": step(small, renumber(batch, active)),
        "the rows of the batch": step(by_rows, renumber(batch, active), by_rows=True),
    }
