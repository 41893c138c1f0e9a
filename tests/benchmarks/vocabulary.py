"""A training step on the rows of the tables that are used, against the whole tables."""

from collections.abc import Callable

import numpy as np
import torch

from pipeline.targets import Target
from student.architecture import StudentConfig
from student.data import Examples, Ragged
from student.losses import distillation_loss
from student.model import Student
from student.vocabulary import active_ids, renumber, shrunk

VOCABULARY, USED, ROWS = 30522, 11500, 32


def alternatives() -> dict[str, Callable[[], object]]:
    """One Adam step of the default student on a batch of 32 rows, in either form."""
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
    batch = Examples(Ragged.of(rows), None, gold, score, teacher, "")
    vocabulary = Examples(Ragged.of([used.tolist()]), None, gold[:1], score[:1], teacher[:1], "")
    active = active_ids([vocabulary], 0)
    whole = Student(config)
    small = shrunk(whole, active)

    def step(student: Student, examples: Examples) -> Callable[[], object]:
        optimizer = torch.optim.Adam(student.parameters(), lr=5e-4, fused=True)

        def run() -> None:
            logits = student(*examples.batch(range(ROWS), student.config.pad_id))
            loss = distillation_loss(
                logits, torch.from_numpy(teacher), torch.from_numpy(gold), alpha=0.5, temperature=1.0
            )
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return run

    return {
        f"all {VOCABULARY:,} rows": step(whole, batch),
        f"the {len(active):,} rows in use": step(small, renumber(batch, active)),
    }
