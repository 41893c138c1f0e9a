"""The benchmark measures ways to the same answers."""

from pathlib import Path

import numpy as np
import pytest

from student.encoders.specs import EmbeddingKind
from tests.benchmarks.engine import of_tasks, readers, word_readers
from tests.benchmarks.tokenization import lines_of_documentation
from tests.helpers.engine import finite, needs_engine

pytestmark = [needs_engine, pytest.mark.slow]


@pytest.mark.parametrize(
    ("is_pair", "embedding"), [(False, "hybrid"), (False, "recurrent"), (True, "hybrid"), (True, "aligned")]
)
def test_all_ways_lead_to_the_same_logits(tmp_path: Path, is_pair: bool, embedding: EmbeddingKind) -> None:
    lines = lines_of_documentation()[:300]
    inputs = (lines, lines[::-1]) if is_pair else (lines,)
    ways = readers(tmp_path, lines, is_pair, embedding)
    found = {name: np.asarray(read(*inputs)) for name, read in ways.items()}
    expected_NC = found.pop("torch")
    for (name, actual_NC), tolerance in zip(found.items(), (1e-4, 0.05, 0.1), strict=True):
        assert np.abs(actual_NC - expected_NC).max() < tolerance * np.ptp(expected_NC), name


def test_words_have_the_same_logits(tmp_path: Path) -> None:
    lines = lines_of_documentation()[:300]
    found = {
        name: np.asarray(read([line.split() for line in lines])) for name, read in word_readers(tmp_path, lines).items()
    }
    expected_WC = found.pop("torch")
    for (name, actual_WC), tolerance in zip(found.items(), (1e-4, 0.05, 0.1), strict=True):
        assert np.abs(finite(actual_WC) - finite(expected_WC)).max() < tolerance * np.ptp(finite(expected_WC)), name


@pytest.mark.parametrize("head", ["mlp", "linear"])
def test_one_task_and_six_are_timed(tmp_path: Path, head: str) -> None:
    ways = of_tasks(tmp_path, head, False, 100)
    assert len(ways) == 2
    for run in ways.values():
        run()
