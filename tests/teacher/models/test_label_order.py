import itertools
import math
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.arrays import Floats, Ints
from pipeline.errors import TeacherError
from pipeline.parsing import names_of
from pipeline.tasks.target import NO_LABEL, Target
from pipeline.tasks.task import Bins, Task
from pipeline.text.tokenizer import tokenize
from teacher.models.classifier import load_teacher, teacher_logits
from teacher.models.label_order import best_order, check_label_order, label_places
from teacher.models.loaded import inference_mode
from tests.helpers.messages import naming
from tests.helpers.word_tasks import WORDS, MakeTask, MakeTeacher

LABELS = ("ash", "birch", "cedar", "date", "elm", "fir", "gum", "hazel", "iris", "jute")
SCORE = Target(kind="score", names=("score",))
BINS = Target(kind="bins", names=("1", "2", "3", "4", "5"), bins=Bins(low=1, high=5, width=1))


def check_classes(logits_NC: Floats, gold_N: Ints, claimed: tuple[str, ...] | None = None) -> None:
    target = Target(kind="classes", names=LABELS[: logits_NC.shape[1]])
    no_scores = np.full(len(gold_N), np.nan, dtype=np.float32)
    check_label_order(target, "bert", claimed or target.names, logits_NC, gold_N, no_scores)


def check_scores(logits_NC: Floats, score_N: Floats, target: Target = SCORE) -> None:
    check_label_order(target, "bert", target.names, logits_NC, np.full(len(score_N), NO_LABEL), score_N)


@pytest.mark.parametrize(
    ("names", "labels", "places"),
    [
        (("Apple", "apple", "pear"), ("apple", "pear", "Apple"), (2, 0, 1)),
        (("PEAR", "Apple"), ("apple", "pear"), (1, 0)),
        (("Apple", "apple"), ("apple", "apple"), None),
        (("apple", "APPLE"), ("Apple", "apple"), None),
        (("apple",), ("apple", "pear"), None),
    ],
)
def test_capitals_tell_labels_apart_only_where_nothing_else_does(
    names: tuple[str, ...], labels: tuple[str, ...], places: tuple[int, ...] | None
) -> None:
    assert label_places(names, labels) == places


def test_another_order_of_labels_that_differ_in_capitals_or_hold_a_comma_can_be_named() -> None:
    target = Target(kind="classes", names=("apple", "Apple", "pear, ripe"))
    gold_N, logits_NC = np.arange(60) % 3, np.eye(3, dtype=np.float32)[(np.arange(60) + 1) % 3]
    with pytest.raises(TeacherError) as error:
        check_label_order(target, "t", target.names, logits_NC, gold_N, np.full(60, np.nan, dtype=np.float32))
    flag = shlex.split(str(error.value).rpartition("--teacher-labels ")[2])[0]
    assert names_of(flag) == ("pear, ripe", "apple", "Apple")


@given(order=st.sampled_from([2, 3, 5]).flatmap(lambda n: st.permutations(range(n))))
def test_best_order_undoes_any_permutation(order: list[int]) -> None:
    gold = np.arange(20 * len(order)) % len(order)
    predicted = np.argsort(order)[gold]
    np.testing.assert_array_equal(best_order(predicted, gold, len(order)), order)


@pytest.mark.parametrize(
    "outputs", [*itertools.permutations(range(2)), *itertools.permutations(range(3)), (1, 2, 3, 4, 0), (4, 1, 0, 3, 2)]
)
def test_the_flag_that_the_message_names_mends_the_teacher(
    outputs: tuple[int, ...], word_task: MakeTask, word_teacher: MakeTeacher
) -> None:
    size = len(outputs)
    task, folder = word_task(LABELS[:size]), word_teacher(outputs)
    gold = np.arange(60) % size
    wrong, mended = ask(task, folder, (), gold), ",".join(LABELS[k] for k in outputs)
    if list(outputs) == list(range(size)):
        check_classes(wrong, gold)
        return
    with pytest.raises(TeacherError, match=rf"100\.0%.*--teacher-labels {mended}$"):
        check_classes(wrong, gold)
    right = ask(task, folder, tuple(mended.split(",")), gold)
    check_classes(right, gold, tuple(mended.split(",")))
    np.testing.assert_allclose(right, 10 * np.eye(size)[gold], atol=1e-3)


def ask(task: Task, folder: Path, teacher_labels: tuple[str, ...], words_N: Ints) -> Floats:
    teacher = load_teacher(task, str(folder), None, teacher_labels, 16)
    with inference_mode(torch.device("cpu"), "fp32"):
        return teacher_logits(teacher, tokenize(teacher.tokenizer, [WORDS[k] for k in words_N], None, 16), 64)


def test_a_wrong_claim_is_mended_in_the_teachers_own_order() -> None:
    # outputs: cedar, ash, birch; claimed: birch, ash, cedar. In the task's order under the claim, ash is right and
    # birch and cedar are exchanged.
    gold = np.arange(60) % 3
    with pytest.raises(TeacherError, match=r"birch, ash, cedar.*--teacher-labels cedar,ash,birch$"):
        check_classes(np.eye(3, dtype=np.float32)[gold][:, [0, 2, 1]], gold, ("birch", "ash", "cedar"))


@pytest.mark.parametrize("num_classes", [2, 3, 5, 10])
def test_a_random_teacher_on_few_rows_is_seldom_blamed(num_classes: int) -> None:
    random = np.random.default_rng(0)
    blamed = 0
    for _ in range(100):
        try:
            check_classes(
                random.normal(size=(40, num_classes)).astype(np.float32), random.integers(num_classes, size=40)
            )
        except TeacherError:
            blamed += 1
    assert blamed <= 2


@given(rows=st.integers(2, 60))
def test_a_permutation_is_blamed_once_chance_is_ruled_out(rows: int) -> None:
    # every row is wrong and would be right the other way round: chance explains it with probability 2^-rows
    gold = np.arange(rows) % 2
    swapped = np.eye(2, dtype=np.float32)[1 - gold]
    if math.pow(0.5, rows) > 1e-3:
        check_classes(swapped, gold)
    else:
        with pytest.raises(TeacherError, match="--teacher-labels birch,ash"):
            check_classes(swapped, gold)


def test_rows_without_gold_have_no_say() -> None:
    gold = np.arange(40) % 2
    logits = np.eye(2, dtype=np.float32)[np.concatenate([gold, 1 - gold])]
    unlabelled = np.full(40, NO_LABEL)
    check_classes(logits, np.concatenate([gold, unlabelled]))
    check_classes(logits[:0], gold[:0])
    with pytest.raises(TeacherError, match=naming("0.0% of 40")):
        check_classes(logits, np.concatenate([unlabelled, gold]))


def test_scores_that_run_backwards_are_refused() -> None:
    gold = np.linspace(0, 5, 50, dtype=np.float32)
    check_scores(gold[:, None], gold)
    with pytest.raises(TeacherError, match=naming("-1.000", "50 rows")):
        check_scores(5 - gold[:, None], gold)


def test_bins_that_run_backwards_are_refused() -> None:
    gold = np.array([1, 2, 3, 4, 5] * 6, dtype=np.float32)
    sure = 20 * np.eye(5, dtype=np.float32)[gold.astype(int) - 1]
    check_scores(sure, gold, BINS)
    with pytest.raises(TeacherError, match=naming("-1.000", "30 rows")):
        check_scores(sure[:, ::-1], gold, BINS)


@pytest.mark.parametrize(("factor", "slope"), [(0.2, "5.00"), (10.0, "0.10")])
def test_scores_on_another_scale_are_refused(factor: float, slope: str) -> None:
    gold = np.linspace(0, 5, 50, dtype=np.float32)
    with pytest.raises(TeacherError, match=naming(slope, "0 to 5")):
        check_scores(factor * gold[:, None], gold)


def test_constant_scores_and_too_few_scores_prove_nothing() -> None:
    gold = np.linspace(0, 5, 50, dtype=np.float32)
    with pytest.raises(TeacherError):
        check_scores(-gold[:, None], gold)  # the same that is let through below is refused where it proves something
    check_scores(np.ones((50, 1), dtype=np.float32), gold)
    check_scores(-gold[:2, None], gold[:2])
    check_scores(-gold[:, None], np.full(50, np.nan, dtype=np.float32))


def test_another_order_of_labels_apart_is_found_by_which_occur_together() -> None:
    target = Target(kind="labels", names=LABELS[:4])
    gold = (np.random.default_rng(0).random((200, 4)) < (0.6, 0.3, 0.2, 0.1)).astype(np.int64)
    right = (2.0 * gold - 1).astype(np.float32)
    no_scores = np.full(201, np.nan, dtype=np.float32)
    unknown = np.concatenate([gold, np.full((1, 4), NO_LABEL)])
    check_label_order(target, "t", target.names, np.concatenate([right, right[:1]]), unknown, no_scores)
    with pytest.raises(TeacherError, match="--teacher-labels birch,ash,cedar,date"):
        check_label_order(target, "t", target.names, right[:, [1, 0, 2, 3]], gold, no_scores[:200])


def test_only_an_order_that_is_better_than_the_most_frequent_labels_is_proposed() -> None:
    """A constant teacher is right for more rows in the order that gives all of them the most frequent label."""
    random = np.random.default_rng(0)
    gold = (random.random((300, 4)) < (0.9, 0.5, 0.2, 0.1)).astype(np.int64)
    no_scores = np.full(300, np.nan, dtype=np.float32)
    for num_classes in (2, 3, 4):
        gold_N = gold[:, 1] * (num_classes - 1) if num_classes < 4 else gold.sum(axis=1).clip(max=3)
        rarest = np.bincount(gold_N, minlength=num_classes).argmin()
        constant_NC = np.tile(np.eye(num_classes, dtype=np.float32)[rarest], (300, 1))
        check_classes(constant_NC, gold_N)
        # A twentieth of the rows has another prediction, at random.
        constant_NC[::20] = np.eye(num_classes, dtype=np.float32)[(rarest + 1) % num_classes]
        check_classes(constant_NC, gold_N)
    target = Target(kind="labels", names=LABELS[:4])
    always = np.tile(np.array([-1, -1, -1, 1], dtype=np.float32), (300, 1))
    for is_stated in (False, True):
        check_label_order(target, "t", target.names, always, gold, no_scores, is_stated)
    swapped = 1 - 2.0 * gold[:, :1]
    with pytest.raises(TeacherError, match="--teacher-labels birch,ash"):
        check_classes(np.concatenate([-swapped, swapped], axis=1).astype(np.float32), gold[:, 0])
