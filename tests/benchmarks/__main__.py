"""``make bench``: tables on stdout, the same as JSON in ``bench-results/``."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from distill.apps.timing import interleaved
from pipeline import console
from tests.benchmarks import (
    answers,
    augmentation,
    batching,
    macros,
    mlm_dump,
    mlm_head,
    products,
    throughput,
    tokenization,
    training_step,
)
from tests.benchmarks.ratios import ratios

BENCHMARKS: dict[str, Callable[[], dict[str, Callable[[], object]]]] = {
    "teacher's forward pass over 512 rows, MiniLM-L6's shape": batching.alternatives,
    "masked LM over 512 sentences, MiniLM-L6's shape, bf16": mlm_dump.alternatives,
    "masked-LM head of 1600 x 30522 at 506 positions, forward and backward": mlm_head.alternatives,
    "candidates for the words of 64 sentences, MiniLM-L6's shape, bf16": augmentation.alternatives,
    "SQL macros on a million rows of 3 logits": macros.alternatives,
    "ids of 20,000 lines of documentation": tokenization.ids,
    "vectors of 20,000 lines of documentation": tokenization.vectors,
    "answers to 100,000 lines of documentation, a Hybrid student with a linear head": answers.alternatives,
    "training step, batch 32": partial(training_step.alternatives, 32),
    "training step, batch 256": partial(training_step.alternatives, 256),
    "training step of recurrences, batch 32": partial(training_step.recurrent, 32),
    "training step of aligned pairs, batch 32": partial(training_step.aligned, 32),
    "training step of aligned pairs, batch 256": partial(training_step.aligned, 256),
}
for threads in (1, 2):
    BENCHMARKS |= {
        f"256 sequences of 64 tokens, threads: {threads}": partial(products.uniform, threads),
        f"256 sequences of 13 tokens on average, threads: {threads}": partial(products.realistic, threads),
        f"per token, forward and backward, threads: {threads}": partial(products.per_token, threads),
    }


def main() -> None:
    """Runs every benchmark."""
    results = dict(throughput.throughput())
    for title, make in BENCHMARKS.items():
        rows = ratios(interleaved(make()))
        console.print_table(["variant", "median ms", "x first"], rows, title=title)
        results[title] = [dict(zip(("variant", "median_ms", "speed_up"), row, strict=True)) for row in rows]
    folder = Path("bench-results")
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
