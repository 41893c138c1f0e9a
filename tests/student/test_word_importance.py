"""Which words matter to a teacher and to its students: joined by keys, counted right, and nothing by chance."""

import json
import re
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import DataError, IntegrityError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.intervals import mean_interval
from pipeline.tasks.target import Target, softmax
from student.predict.predictor import Predictor
from student.run_settings import MaskedWordsSettings
from student.word_importance import COLUMNS, compared, importance, masked_row, masked_words, read_masked
from teacher.dumps import dump
from tests.helpers.commands import invoke
from tests.helpers.dumps import VALIDATION_ROWS, dump_config
from tests.helpers.messages import naming


def test_the_same_order_is_one_the_opposite_minus_one() -> None:
    random = np.random.default_rng(1)
    teacher = [random.normal(size=size) for size in (2, 5, 9, 30)]
    same = compared(teacher, [np.exp(values) for values in teacher])
    assert (same["rank_correlation"], same["interval"], same["same_word"]) == (pytest.approx(1), None, 1)
    opposite = compared(teacher, [-values for values in teacher])
    assert (opposite["rank_correlation"], opposite["same_word"]) == (pytest.approx(-1), 0)
    half = compared(teacher, [*teacher[:2], *(-values for values in teacher[2:])])
    assert half["rank_correlation"] == pytest.approx(0)
    assert half["interval"] == pytest.approx([-1, 1])
    assert half["same_word"] == 0.5


def test_shuffled_words_are_alike_by_chance_alone() -> None:
    random = np.random.default_rng(2)
    teacher = [random.normal(size=size) for size in [4] * 100 + [8] * 100]
    shuffled = compared(teacher, teacher)["shuffled"]
    low, high = shuffled["interval"]
    assert -0.12 < low < shuffled["rank_correlation"] < high < 0.12
    assert abs(shuffled["rank_correlation"]) < 0.02
    assert shuffled["same_word"] == pytest.approx((1 / 4 + 1 / 8) / 2, abs=0.02)


def test_the_interval_of_a_mean() -> None:
    values = np.random.default_rng(3).normal(5, 2, size=400)
    low, high = mean_interval(values) or (0, 0)
    error = values.std() / 20
    assert [low, high] == pytest.approx([values.mean() - 1.96 * error, values.mean() + 1.96 * error], abs=0.3 * error)
    assert mean_interval(np.full(7, 0.25)) is mean_interval(np.array([0.25])) is None


def test_importance_is_a_rise_of_entropy_or_how_far_a_score_moves() -> None:
    whole, without = np.array([[0, 0], [3, -3]], dtype=np.float32), np.array([[9, -9], [0, 0]], dtype=np.float32)
    fell, rose = importance(Target(kind="classes", names=("a", "b")), whole, without)
    assert fell == pytest.approx(-np.log(2), abs=1e-5)
    sure = softmax(whole)[1].astype(np.float64)
    assert rose == pytest.approx(np.log(2) + (sure * np.log(sure)).sum(), abs=1e-6)
    score = Target(kind="score", names=("score",))
    assert importance(score, np.array([[1.0], [1.0]]), np.array([[3.0], [0.5]])).tolist() == [2, 0.5]


def test_words_are_joined_to_variants_by_their_numbers(masked_set: ExampleSet) -> None:
    record = masked_set.record
    assert record.augmentation is not None
    settings = record.augmentation.settings
    rows = masked_set.read("validation", COLUMNS).to_pylist()
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row["source_row"])]
    read = read_masked(masked_set)
    assert [row.source_row for row in read] == list(range(VALIDATION_ROWS))
    for row, group in zip(read, groups, strict=True):
        p_RC = softmax(np.array([one["logits"] for one in group], dtype=np.float32)).astype(np.float64)
        entropy_R = -(p_RC * np.log(p_RC)).sum(axis=1)
        np.testing.assert_allclose(row.importance_W, entropy_R[1:] - entropy_R[0], atol=1e-6)
        assert [word.text for word in row.words] == group[0]["sentence1"].split()
        np.testing.assert_array_equal(masked_row(masked_set, settings, group[::-1]).importance_W, row.importance_W)
    with pytest.raises(DataError, match=naming("opinion-mask-each: ", "source row 0", "variant 2")):
        masked_row(masked_set, settings, [groups[0][0], groups[0][1], *groups[0][3:]])
    assert masked_row(masked_set, settings, [{**groups[0][0], "sentence1": " "}]).words == ()
    already = [{**groups[0][0], "sentence1": "[MASK] food"}, {**groups[0][2], "variant": 2}]
    first, _ = masked_row(masked_set, settings, already).importance_W
    assert first == 0  # a mask that is masked changes nothing


def test_a_record_that_does_not_number_its_variants_is_refused(masked_set: ExampleSet) -> None:
    augmentation = masked_set.record.augmentation
    assert augmentation is not None
    unnumbered = augmentation.model_copy(update={"settings": {"split": "validation"}})
    record = masked_set.record.model_copy(update={"augmentation": unnumbered})
    with pytest.raises(IntegrityError, match=naming("opinion-mask-each: ")):
        read_masked(ExampleSet(masked_set.root, record))


def test_students_of_pairs_are_asked_without_the_words_of_both(
    work: Path, teachers: Path, roles_run: Path, tmp_path: Path
) -> None:
    dump(dump_config(work, "roles", tmp_path, augment="mask-each", sentences=6, num_variants=3), "distill teacher-dump")
    result = masked_words(MaskedWordsSettings(runs=(str(roles_run),), set="roles-mask-each", store=tmp_path))
    predict = Predictor(roles_run)
    [student] = result.students.values()
    for row, importance_W in zip(result.rows, student, strict=True):
        [told] = predict.explain([row.texts[0]], [row.texts[1]])
        kept = [one for one in told["words"] if one["sentence"] == 1][:3]
        kept += [one for one in told["words"] if one["sentence"] == 2][:3]
        assert [word.text for word in row.words] == [one["word"] for one in kept]
        np.testing.assert_allclose(importance_W, [one["entropy"] for one in kept], atol=1e-5)
        assert len(kept) == 6


def test_the_command_compares_runs_and_draws_a_page(
    masked_set: ExampleSet, opinion_set: ExampleSet, opinion_run: Path, roles_run: Path, tmp_path: Path
) -> None:
    page = tmp_path / "pages" / "words.html"
    flags = ("--set", masked_set.root, "--output", page)
    result = invoke("masked-words", opinion_run, opinion_run, *flags, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["set"], told["rows"]) == ("opinion-mask-each", VALIDATION_ROWS)
    assert told["words"] == sum(len(row.words) for row in read_masked(masked_set))
    assert told["runs"][str(opinion_run)].keys() == {"rank_correlation", "interval", "same_word", "shuffled"}
    html = page.read_text(encoding="utf-8")
    assert html.count("<svg") == 6
    assert "teacher" in html
    shown = invoke("masked-words", opinion_run, "--set", masked_set.root).stdout
    value = told["runs"][str(opinion_run)]["rank_correlation"]
    assert all(text in shown for text in ("opinion-mask-each: ", "same word", f"{value:.3f}"))
    for arguments, message in (
        ((opinion_run, "--set", opinion_set.root), f"{opinion_set.root}: "),
        ((roles_run, "--set", masked_set.root), f"{masked_set.root}: "),
        ((opinion_run, "--set", masked_set.root, "--output", tmp_path), f"--output {tmp_path}: "),
    ):
        refused = invoke("masked-words", *arguments)
        assert refused.exit_code == 2
        assert message in re.sub(r"\s+", " ", refused.stderr)
    assert ExampleSet.open(masked_set.root).record == masked_set.record
