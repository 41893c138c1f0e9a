import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.arrays import Floats, Ints
from pipeline.errors import IntegrityError
from pipeline.file_names import RUN_RECORD
from pipeline.record_file import write_record
from pipeline.tasks.target import NO_LABEL, Target, sigmoid
from pipeline.tasks.temperature import as_logits, best_thresholds
from pipeline.training.run_record import stored_thresholds
from tests.helpers.messages import naming

TARGET = Target(kind="labels", names=("a", "b"))


def test_the_cut_is_half_way_between_the_rows_that_f1_tells_apart() -> None:
    logits = np.array([[-3, 1], [-2, 1], [-1, 1], [-4, 1], [9, 9]], np.float32)
    gold = np.array([[0, 0], [1, 0], [1, 0], [0, 0], [NO_LABEL] * 2])
    thresholds = best_thresholds(TARGET, logits, gold)
    assert thresholds == pytest.approx({"a": float(sigmoid(np.array([-2.5], np.float32))[0]), "b": 0.5})
    assert as_logits(thresholds, TARGET) == pytest.approx([-2.5, 0], abs=1e-6)


@given(
    hnp.arrays(np.float32, (6, 2), elements=st.sampled_from([-3.0, -1.0, 0.5, 2.0])),
    hnp.arrays(np.int64, (6, 2), elements=st.integers(0, 1)),
)
def test_no_other_cut_is_better(logits: Floats, gold: Ints) -> None:
    best = as_logits(best_thresholds(TARGET, logits, gold), TARGET)
    for k in np.flatnonzero(gold.any(axis=0)):
        ours, *others = (_f1(logits[:, k] > cut, gold[:, k]) for cut in (best[k], -4, -2, 0, 1))
        assert ours >= max(others)


def _f1(said: np.ndarray, gold: Ints) -> float:
    return float(2 * (said * gold).sum() / (said.sum() + gold.sum()))


@pytest.mark.parametrize("far", [60, -900, np.nan])
def test_a_threshold_can_be_read_again(tmp_path: Path, far: float) -> None:
    logits = np.array([[far, 0], [far, 0], [-3, 0]], np.float32)
    thresholds = best_thresholds(TARGET, logits, np.array([[1, 0], [1, 0], [0, 0]]))
    record = {"state": "finished", "settings": {}, "command": "", "result": {"thresholds": thresholds}}
    write_record(tmp_path / RUN_RECORD, record)
    assert np.isfinite(as_logits(stored_thresholds(tmp_path), TARGET)).all()


def test_a_run_without_thresholds_says_one_half(tmp_path: Path) -> None:
    assert as_logits(stored_thresholds(tmp_path), TARGET).tolist() == [0, 0]
    record = {"state": "finished", "settings": {}, "command": "", "result": {"thresholds": {"a": 1.5}}}
    (tmp_path / RUN_RECORD).write_text(json.dumps(record))
    with pytest.raises(IntegrityError, match=naming("run.json: ", "thresholds: ", "{'a': 1.5}")):
        stored_thresholds(tmp_path)
