import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distill.apps.serve.requests import RefusedError, Scale, Texts
from distill.apps.serve.served import Ranking, rankings
from distill.apps.serve.stored import Stored, stored_answers
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import Target, softmax
from pipeline.tasks.task import Bins
from tests.helpers.rewritten_sets import rewritten, with_logits

MOODS = Target(kind="classes", names=("bad", "so so", "good"))
LOGITS_23 = np.array([[0, math.log(2), math.log(5)], [1, 1, 1]], dtype=np.float32)


def read(ranking: Ranking) -> list[dict[str, Any]]:
    return [json.loads(one) for one in ranking]


def scores(ranking: Ranking) -> list[tuple[object, float]]:
    return [(one["label"], round(float(one["score"]), 6)) for one in read(ranking)]


def test_probabilities_come_with_the_highest_first_and_equal_ones_in_the_order_of_labels() -> None:
    first, second = rankings(MOODS, LOGITS_23)
    assert scores(first) == [("good", 0.625), ("so so", 0.25), ("bad", 0.125)]
    assert [label for label, _ in scores(second)] == ["bad", "so so", "good"]


@pytest.mark.parametrize(
    ("scale", "expected"), [("none", [math.log(5), math.log(2), 0]), ("sigmoid", [5 / 6, 2 / 3, 1 / 2])]
)
def test_other_scales(scale: Scale, expected: list[float]) -> None:
    first, _ = rankings(MOODS, LOGITS_23, scale)
    assert [one["score"] for one in read(first)] == pytest.approx(expected, abs=1e-6)


def test_labels_and_tiny_scores_are_written_as_json_has_them() -> None:
    odd = Target(kind="classes", names=('say "hi"', "naïve\\\n"))
    (answer,) = rankings(odd, np.array([[0, -40]], dtype=np.float32))
    assert scores(answer) == [('say "hi"', 1), ("naïve\\\n", 0)]
    assert 0 < read(answer)[1]["score"] < 1e-16


def test_a_score_is_one_number() -> None:
    (answer,) = rankings(Target(kind="score", names=("score",)), np.array([[2.5]], dtype=np.float32))
    assert read(answer) == [{"score": 2.5, "label": "score"}]
    bins = Target(kind="bins", names=("1", "2"), bins=Bins(low=1, high=2, width=1))
    (answer,) = rankings(bins, np.array([[0, math.log(3)]], dtype=np.float32))
    assert scores(answer) == [("score", 1.75)]


def test_what_is_no_number_is_told_as_an_error() -> None:
    with pytest.raises(RefusedError, match="NaN") as refused:
        rankings(MOODS, np.array([[0, np.nan, 0]], dtype=np.float32))
    assert (refused.value.status, refused.value.kind) == (424, "Backend")


def test_every_text_of_the_set_is_found_with_its_own_logits(roles_set: ExampleSet) -> None:
    rows = roles_set.read("train", ("sentence1", "sentence2", "logits"), "variant = 0")
    first, second = (rows.column(name).to_pylist() for name in ("sentence1", "sentence2"))
    expected = dict(zip(zip(first, second, strict=True), rows.column("logits").to_pylist(), strict=True))
    found = Stored(roles_set).find(Texts(first, second))
    for pair, logits_C in zip(zip(first, second, strict=True), found, strict=True):
        np.testing.assert_array_equal(logits_C, expected[pair])


def test_what_was_not_asked_is_not_found(roles_set: ExampleSet) -> None:
    stored = Stored(roles_set)
    (pair,) = roles_set.read("train", ("sentence1", "sentence2"), "variant = 0").slice(0, 1).to_pylist()
    assert stored.find(Texts(["never seen", ""], ["at all", ""])) == [None, None]
    assert stored.find(Texts([pair["sentence1"] + pair["sentence2"]], None)) == [None]


def test_without_its_set_a_run_is_served_and_that_is_said(
    opinion_run: Path, opinion_set: ExampleSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(opinion_run, tmp_path / "run")
    record = read_record(run / "run.json")
    assert stored_answers(run, opinion_set.record.target) is not None
    (run / "run.json").write_text(json.dumps(record | {"logit_sets": [str(tmp_path / "gone")]}))
    assert stored_answers(run, opinion_set.record.target) is None
    assert f"{run}: " in capsys.readouterr().err


def test_another_teachers_answers_in_the_same_place_are_not_told(
    opinion_run: Path, opinion_set: ExampleSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = rewritten(opinion_set, tmp_path / "new" / "opinion", with_logits(lambda row: [4.0, -1.0]))
    run = shutil.copytree(opinion_run, tmp_path / "run")
    record = read_record(run / "run.json")
    (run / "run.json").write_text(json.dumps(record | {"logit_sets": [str(other.root)]}))
    monkeypatch.setenv("DISTILL_STORE", str(tmp_path))
    assert stored_answers(run, opinion_set.record.target) is None
    monkeypatch.setenv("DISTILL_STORE", str(opinion_set.root.parent))  # there lies its own, by its name
    assert stored_answers(run, opinion_set.record.target) is not None


def test_of_several_teachers_their_mixture_is_told(opinion_run: Path, opinion_set: ExampleSet, tmp_path: Path) -> None:
    other = rewritten(opinion_set, tmp_path / "other", with_logits(lambda row: [4.0, -1.0]))
    run = shutil.copytree(opinion_run, tmp_path / "run")
    record = read_record(run / "run.json")
    both = (opinion_set, other)
    record["logit_sets"] = [str(one.root) for one in both]
    record["settings"] |= {"logit_set_fingerprints": [one.record.fingerprint for one in both], "mix": "weighted:1,3"}
    (run / "run.json").write_text(json.dumps(record))
    stored = stored_answers(run, opinion_set.record.target)
    assert stored is not None
    (row,) = opinion_set.read("train", ("sentence1", "logits"), "variant = 0").slice(5, 1).to_pylist()
    (found_C,) = stored.find(Texts([row["sentence1"]], None))
    assert found_C is not None
    own_C, other_C, told_C = softmax(np.array([row["logits"], [4.0, -1.0], found_C]))
    np.testing.assert_allclose(told_C, 0.25 * own_C + 0.75 * other_C, atol=1e-5)


def test_answers_that_mean_something_else_are_not_told(opinion_run: Path, opinion_set: ExampleSet) -> None:
    turned = Target(kind="classes", names=opinion_set.record.target.names[::-1])
    assert stored_answers(opinion_run, turned) is None
