from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import Target
from student.data import Examples, gold_tensor, load_examples
from student.encoders.specs import Hybrid
from student.losses.logit_losses import distillation_loss
from student.model.architecture import StudentConfig
from student.model.student import Student
from student.train import train as train_run
from student.vocabulary_pruning import active_ids, neutralise_unmoved, neutralise_untrained, prune, renumber, restore
from tests.helpers.students import tiny_config
from tests.helpers.toy_students import toy_examples

STEPS = 8


def whole_student(is_pair: bool, vocabulary_size: int, pad_id: int) -> Student:
    torch.manual_seed(0)
    config = StudentConfig(
        task="toy",
        target=Target(kind="classes", names=("no", "yes")),
        metrics=("accuracy",),
        is_pair=is_pair,
        vocabulary_size=vocabulary_size,
        pad_id=pad_id,
        tokenizer_sha256="",
        max_seq_length=32,
        encoder=Hybrid(matrix_size=3, vector_size=4),
        hidden_size=6,
        hidden_dropout=0.3,
    )
    return Student(config)


def train(student: Student, examples: Examples) -> None:
    gold_N, teacher_NC = gold_tensor(student.config.target, examples), torch.from_numpy(examples.teacher_NC)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    for step in range(STEPS):
        torch.manual_seed(step)
        rows = list(range(step, len(examples), STEPS))
        logits = student.logits(*examples.batch(rows))
        loss = distillation_loss(logits, teacher_NC[rows], gold_N[rows], 0.5, 1.0)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("pad_id", [0, 5])
def test_active_ids_are_those_that_occur_and_the_padding(pad_id: int) -> None:
    parts = [toy_examples([[7, 3], []], [[3], [9]]), toy_examples([[1]], None)]
    assert active_ids(parts, pad_id).tolist() == sorted([1, 3, 7, 9, pad_id])


def test_renumbered_ids_mean_the_same_tokens() -> None:
    examples = toy_examples([[7, 3], []], [[3], [9]])
    active = active_ids([examples], 0)
    small = renumber(examples, active)
    assert small.ids2 is not None
    assert active[small.ids1.flat].tolist() == [7, 3]
    assert active[small.ids2.flat].tolist() == [3, 9]
    assert small.ids1.padded([0, 1], 0).tolist() == [[2, 1], [0, 0]]


@pytest.mark.parametrize("pad_id", [0, 40, 50])
def test_a_shrunk_student_says_the_same(pad_id: int) -> None:
    examples = toy_examples([[7, 3, 33], [], [49]], None)
    whole = whole_student(False, 50, pad_id).eval()
    active = active_ids([examples], pad_id)
    small = prune(whole, active).eval()
    ids = (renumber(examples, active).batch(range(3)), examples.batch(range(3)))
    torch.testing.assert_close(small.logits(*ids[0]), whole.logits(*ids[1]), rtol=0, atol=0)
    assert small.encoder.tables()[0].num_embeddings == len(active) == 5


@pytest.mark.parametrize("name", ["opinion_set", "roles_set"])
def test_training_the_used_rows_equals_training_all(name: str, request: pytest.FixtureRequest) -> None:
    logit_set: ExampleSet = request.getfixturevalue(name)
    tokenizer = logit_set.record.tokenizer
    examples = load_examples(logit_set, "train", "source_row < 40")
    examples = replace(examples, teacher_NC=examples.teacher_NC * 20)
    sizes = (logit_set.record.is_pair, tokenizer.vocabulary_size, tokenizer.pad_id)
    start, whole, restored = whole_student(*sizes), whole_student(*sizes), whole_student(*sizes)
    train(whole, examples)
    active = active_ids([examples], tokenizer.pad_id)
    small = prune(restored, active)
    train(small, renumber(examples, active))
    restore(restored, small, active)
    for (key, expected), tensor in zip(whole.state_dict().items(), restored.state_dict().values(), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-6, msg=key)
    unused = np.setdiff1d(np.arange(tokenizer.vocabulary_size), active)
    used = np.setdiff1d(active, [tokenizer.pad_id])
    assert len(unused) > 5
    tables = [model.encoder.tables() for model in (start, whole, restored)]
    for before, by_whole, by_small in zip(*tables, strict=True):
        assert torch.equal(by_small.weight[unused], before.weight[unused])
        assert torch.equal(by_whole.weight[unused], before.weight[unused])
        assert (by_small.weight[used] != before.weight[used]).any(dim=1).all()


@pytest.mark.parametrize("pad_id", [0, 9])
def test_rows_that_no_training_row_uses_become_neutral(pad_id: int) -> None:
    student, before = whole_student(True, 9, pad_id), whole_student(True, 9, pad_id)
    neutralise_untrained(student, toy_examples([[7, 3], []], [[3], [4]]))
    for table, was in zip(student.encoder.tables(), before.encoder.tables(), strict=True):
        for token in range(9):
            neutral = table.weight[pad_id]
            assert torch.equal(table.weight[token], was.weight[token] if token in (3, 4, 7) else neutral)
    assert student.encoder.used_ids().tolist() == sorted([3, 4, 7, pad_id])


def test_rows_that_training_has_not_moved_become_neutral() -> None:
    student, start = whole_student(False, 9, 0), whole_student(False, 9, 0)
    with torch.no_grad():
        student.encoder.tables()[0].weight[3, 1] += 1e-6
        student.encoder.tables()[2].weight[5, 8] += 1e-6
    neutralise_unmoved(student.encoder, start.encoder)
    assert student.encoder.used_ids().tolist() == [0, 3, 5]
    for number, table in enumerate(start.encoder.tables()):
        moved = student.encoder.tables()[number].weight
        torch.testing.assert_close(moved[[3, 5]], table.weight[[3, 5]], rtol=0, atol=2e-6)


def test_a_run_knows_the_tokens_of_its_training_rows(store: Path, opinion_set: ExampleSet, tmp_path: Path) -> None:
    record = train_run(tiny_config(store / "opinion", tmp_path, where="source_row < 3"), "")
    used = active_ids([load_examples(opinion_set, "train", "source_row < 3")], opinion_set.record.tokenizer.pad_id)
    student = Student.load(tmp_path)
    assert student.encoder.used_ids().tolist() == used.tolist()
    assert record["result"]["used_rows"] == student.config.used_rows == len(used)
    assert f"{len(used)} of {student.config.num_tokens} tokens known" in (tmp_path / "README.md").read_text()


def test_tokens_that_an_earlier_run_has_trained_stay_known(store: Path, opinion_run: Path, tmp_path: Path) -> None:
    train_run(tiny_config(store / "opinion", tmp_path, init=opinion_run, where="source_row < 3"), "")
    before, after = Student.load(opinion_run), Student.load(tmp_path)
    assert after.encoder.used_ids().tolist() == before.encoder.used_ids().tolist()
    assert after.config.used_rows == before.config.used_rows
