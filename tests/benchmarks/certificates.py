"""How far a certificate can be trusted: ``python -m tests.benchmarks.certificates RUN SET WHERE [DISAGREEMENT]``.

WHERE chooses training rows that RUN was not trained on. 200 times a threshold is found as ``distill certify`` does and
counted elsewhere: by a random half of the rows and on the other; and by as many rows drawn with replacement and on all
of them. The second is what the certificate promises: rows drawn independently from what it will be used on. Of two
halves one has the disagreements that the other lacks, which is harder. Shapes: N rows.
"""

import sys
from pathlib import Path

import numpy as np

from pipeline import console
from pipeline.arrays import Ints
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import margins, softmax
from student.data import as_read, load_examples
from student.lessons.examples import student_logits
from student.model.student import Student
from student.predict.certificate import certify_margins

TIMES, CONFIDENCE = 200, 0.95


def main(run: str, logits: str, where: str, disagreement: str = "0.01") -> None:
    """Prints how much is answered, and how often more of it differs than was promised."""
    student, most = Student.load(Path(run)), float(disagreement)
    examples = as_read(load_examples(ExampleSet.open(logits), "train", f"variant = 0 and ({where}\n)"), student.config)
    logits_NC = student_logits(student, examples)
    margin_N = margins(softmax(logits_NC))
    differs_N = logits_NC.argmax(axis=1) != examples.teacher_NC.argmax(axis=1)
    rows: list[list[object]] = []
    for name, parts in (("a half on the other", _halves), ("draws on all rows", _draws)):
        coverage, shares = [], []
        for seed in range(TIMES):
            found_N, counted_N = parts(np.random.default_rng(seed), len(margin_N))
            certified, _ = certify_margins(margin_N[found_N], differs_N[found_N], most, CONFIDENCE)
            answered_N = margin_N[counted_N] > (1 if certified is None else certified.threshold)
            coverage.append(answered_N.mean())
            shares.append(differs_N[counted_N][answered_N].mean() if answered_N.any() else 0)
        rows.append([name, np.mean(coverage), np.mean(shares), np.mean(np.array(shares) > most)])
    console.note(f"{len(margin_N):,} rows; {differs_N.mean():.2%} of all answers differ from the teacher's")
    console.print_table(["found by", "answered", "differ among them", f"times above {most:g}"], rows)


def _halves(random: np.random.Generator, count: int) -> list[Ints]:
    return np.array_split(random.permutation(count), 2)


def _draws(random: np.random.Generator, count: int) -> list[Ints]:
    return [random.integers(count, size=count // 2), np.arange(count)]


if __name__ == "__main__":
    main(*sys.argv[1:])
