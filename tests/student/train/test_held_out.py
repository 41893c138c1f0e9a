"""Training rows that select the best epoch, and what the student's record contains about them."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.arrays import Ragged
from pipeline.errors import ConfigError, DataError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import NO_LABEL, Target
from pipeline.training.batches import held_out_rows
from student.data import Examples, hold_out, load_examples
from student.lessons.examples import score_student
from student.model.student import Student
from student.train import train
from teacher.dumps import dump
from tests.helpers.dumps import TRAIN_ROWS, dump_config
from tests.helpers.joint_runs import same, tasks_config
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config

SHARE = 0.25
TARGET = Target(kind="classes", names=("bad", "good"))
HALF = [0, 2]  # of four source rows with gold those that `held_out_rows` names; a test holds it


def rows_of(keys: list[tuple[int, int]], gold: list[int]) -> Examples:
    """Rows whose ids, weights and logits contain their number."""
    count = len(keys)
    return Examples(
        Ragged.of([[k, k] for k in range(count)]),
        Ragged.of([[10 + k] for k in range(count)]),
        np.array(gold),
        np.full(count, np.nan, dtype=np.float32),
        np.array([[k, -k] for k in range(count)], dtype=np.float32),
        np.arange(count, dtype=np.float32),
        np.array(keys),
        "",
    )


def test_variants_of_held_out_rows_are_in_neither_part_and_rows_without_gold_are_trained_on() -> None:
    assert held_out_rows(4, 0.5).tolist() == HALF
    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0), (5, 0), (5, 1)]  # row 3 has no gold
    gold = [1, NO_LABEL, 0, NO_LABEL, 1, NO_LABEL, 0, NO_LABEL]
    trained, held_out = hold_out(rows_of(keys, gold), TARGET, 0.5)
    assert [tuple(key) for key in trained.key_N2.tolist()] == [(1, 0), (1, 1), (3, 0), (5, 0), (5, 1)]
    assert [tuple(key) for key in held_out.key_N2.tolist()] == [(0, 0), (2, 0)]
    for part, places in ((trained, [2, 3, 5, 6, 7]), (held_out, [0, 4])):
        assert part.ids1.lists() == [[k, k] for k in places]
        assert part.ids2 is not None
        assert part.ids2.lists() == [[10 + k] for k in places]
        assert part.label_N.tolist() == [gold[k] for k in places]
        assert part.teacher_NC[:, 0].tolist() == part.weight_N.tolist() == places
        assert len(part.score_N) == len(places)


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match=naming("--held-out 0.1: ", "0 of 2")):
        hold_out(rows_of([(0, 0), (1, 0)], [0, 1]), TARGET, 0.1)


def test_held_out_rows_choose_the_epoch_and_teach_nothing(store: Path, opinion_set: ExampleSet, tmp_path: Path) -> None:
    record = train(tiny_config(store / "opinion", tmp_path / "run", held_out=SHARE, num_train_epochs=6), "")
    result, held = record["result"], held_out_rows(TRAIN_ROWS, SHARE)
    assert record["settings"]["rows_held_out"] == len(held) == TRAIN_ROWS // 4
    assert list(result["best"]["metrics"]) == list(result["evaluation"]) == ["held-out", "validation"]
    by_epoch = [entry["metrics"]["held-out"]["accuracy"] for entry in result["history"]]
    assert result["best"]["epoch"] == 1 + by_epoch.index(max(by_epoch))
    listed = f"source_row in ({', '.join(map(str, held))})"
    kept = score_student(Student.load(tmp_path / "run"), load_examples(opinion_set, "train", listed))
    assert kept["accuracy"] == pytest.approx(max(by_epoch))
    assert result["evaluation"]["held-out"]["gold"]["accuracy"] == pytest.approx(max(by_epoch))


def test_the_student_is_that_of_the_other_rows(store: Path, tmp_path: Path) -> None:
    train(tiny_config(store / "opinion", tmp_path / "one", held_out=SHARE, num_train_epochs=1), "")
    others = f"source_row not in ({', '.join(map(str, held_out_rows(TRAIN_ROWS, SHARE)))})"
    train(tiny_config(store / "opinion", tmp_path / "other", where=others, num_train_epochs=1), "")
    assert same(tmp_path / "one", tmp_path / "other")


def test_a_share_that_holds_out_nothing_leaves_no_folder(store: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("--held-out 0.001: ", f"0 of {TRAIN_ROWS}")):
        train(tiny_config(store / "opinion", tmp_path / "run", held_out=0.001), "")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="--held-out: "):
        tiny_config(store / "opinion", tmp_path / "run", held_out=1)


def test_of_a_set_without_dev_rows_the_best_epoch_is_known(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump(dump_config(work, "opinion", tmp_path / "store", splits="train"), "")
    record = train(tiny_config(tmp_path / "store/opinion", tmp_path / "run", held_out=SHARE), "")
    assert list(record["result"]["best"]["metrics"]) == ["held-out"]
    assert "warning: " not in capsys.readouterr().err


def test_each_of_several_tasks_holds_out_its_own(task_sets: list[Path], tmp_path: Path) -> None:
    record = train(tasks_config(task_sets, tmp_path / "run", held_out=SHARE, num_train_epochs=1), "")
    metrics = record["result"]["best"]["metrics"]
    parts = [next(iter(metrics[f"{name}/held-out"].values())) for name in ("opinion", "roles", "score")]
    assert metrics["tasks"]["mean"] == pytest.approx(sum(parts) / 3)
    names = {f"{name}/{split}" for name in ("opinion", "roles", "score") for split in ("held-out", "validation")}
    assert set(metrics) == {"tasks"} | names
