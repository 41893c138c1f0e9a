"""What a bag of words with a regression on it reaches on dev splits, without any teacher, in seconds.

``python -m tests.benchmarks.bag_of_words sst2 mrpc …`` with ``DISTILL_DATA`` set: the baseline ``TF-IDF`` of
``distill sweep --experiment``, alone.
"""

import sys
import time

import numpy as np
import pyarrow as pa

from distill.apps.experiments.baselines import tfidf as fit
from distill.apps.systems import Rows
from pipeline import console
from pipeline.sources import load_source, sentences
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import Target, gold_arrays, make_target
from pipeline.tasks.task import load_task


def unanswered(target: Target, rows: pa.Table) -> Rows:
    """Rows of a source, without a teacher's logits."""
    return Rows(*sentences(rows), *gold_arrays(target, rows), np.empty((rows.num_rows, 0), np.float32))


def main(names: list[str]) -> None:
    """Prints a row for each task."""
    table = []
    for name in names:
        task = load_task(name)
        target, source, start = make_target(task), load_source(task), time.perf_counter()
        system = fit(unanswered(target, source.splits["train"]), target)
        dev = unanswered(target, source.splits[next(s for s in source.splits if s.startswith("valid"))])
        logits_NC = system.logits(dev.texts1, dev.texts2)
        scores = score_logits(task.metrics, target, logits_NC, dev.label_N, dev.score_N)
        seconds = time.perf_counter() - start
        table.append([name, *(f"{metric} {100 * value:.1f}" for metric, value in scores.items()), f"{seconds:.0f} s"])
    width = max(map(len, table))
    console.print_table(["task", *[""] * (width - 1)], [row + [""] * (width - len(row)) for row in table])


if __name__ == "__main__":
    main(sys.argv[1:])
