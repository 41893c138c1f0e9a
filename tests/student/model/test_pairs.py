from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from torch.nn.functional import pad

from pipeline.arrays import Ragged, side_by_side
from pipeline.errors import ConfigError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import softmax
from pipeline.text.tokenizer import special_ids
from student.data import as_read, load_examples
from student.evaluate import evaluate
from student.lessons.examples import student_logits
from student.model.architecture import sequences
from student.model.build_config import build_config
from student.model.heads import concatenate_compare
from student.model.student import Student
from student.predict.predictor import Predictor
from student.run_settings import EvaluateSettings
from student.settings import TrainSettings
from student.train import train
from student.training_data import task_facts
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config, weights
from tests.helpers.toy_students import student, student_config

SPECIAL = ((1,), (2,), (2,))
HEADS, PAIRINGS = ("linear", "mlp", "cnn", "bilstm"), ("diffcat", "compare", "joint", None)
TOKENS = st.lists(st.integers(3, 9), max_size=7)
PAIRS = st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=5)


def lists(part: Ragged) -> list[list[int]]:
    return [part.flat[a:b].tolist() for a, b in zip(part.offsets, part.offsets[1:], strict=False)]


def test_concatenate_compare_by_hand() -> None:
    u, w = torch.tensor([[1.0, 5.0], [0.0, -2.0]]), torch.tensor([[4.0, 3.0], [-1.0, -2.0]])
    assert concatenate_compare(u, w).tolist() == [[1, 5, 4, 3, 4, 15, 3, 2], [0, -2, -1, -2, 0, 4, 1, 0]]


def test_concatenate_compare_keeps_every_position_apart() -> None:
    u, w = torch.randn(2, 2, 5, 3)
    torch.testing.assert_close(concatenate_compare(u, w)[1, 4], concatenate_compare(u[1, 4], w[1, 4]))


@given(rows=st.lists(st.lists(st.lists(st.integers(0, 50), max_size=4), min_size=3, max_size=3), max_size=6))
def test_side_by_side_is_addition_of_lists(rows: list[list[list[int]]]) -> None:
    together = side_by_side(*(Ragged.of([row[k] for row in rows]) for k in range(3)))
    assert lists(together) == [row[0] + row[1] + row[2] for row in rows]
    assert together.lengths.tolist() == [sum(map(len, row)) for row in rows]


@given(row=st.lists(st.integers(0, 50), max_size=3), count=st.integers(0, 4))
def test_repeated_is_a_list_of_the_same_rows(row: list[int], count: int) -> None:
    assert lists(Ragged.repeated(row, count)) == [row] * count


SPECIALS = st.lists(st.integers(0, 9), max_size=2)


@given(pairs=st.lists(st.tuples(TOKENS, TOKENS), max_size=5), special=st.tuples(SPECIALS, SPECIALS, SPECIALS))
def test_joint_pairs_are_one_sequence(
    pairs: list[tuple[list[int], list[int]]], special: tuple[list[int], list[int], list[int]]
) -> None:
    config = student_config(is_pair=True, pairing="joint", special_ids=special)
    (ids,) = sequences(config, *(Ragged.of([pair[k] for pair in pairs]) for k in (0, 1)))
    before, between, after = special
    assert lists(ids) == [before + one + between + other + after for one, other in pairs]


@pytest.mark.parametrize("pairing", ["diffcat", "compare"])
def test_other_pairs_stay_apart(pairing: str) -> None:
    parts = Ragged.of([[1], []]), Ragged.of([[2, 3], [4]])
    assert sequences(student_config(is_pair=True, pairing=pairing), *parts) == parts
    assert sequences(student_config(), parts[0]) == parts[:1]


def letters(template: bool = True) -> Tokenizer:
    """A BERT-like tokenizer: [CLS] is 7, [SEP] is 8."""
    vocabulary = {"[PAD]": 0, "[CLS]": 7, "[SEP]": 8, "[UNK]": 3, "a": 4}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 7), ("[SEP]", 8)]
        )
    return tokenizer


def test_special_ids_are_those_around_the_sentences(roles_set: ExampleSet) -> None:
    assert special_ids(letters()) == ((7,), (8,), (8,))
    bert = Tokenizer.from_str(roles_set.tokenizer_json())
    cls, sep = map(bert.token_to_id, ("[CLS]", "[SEP]"))
    assert special_ids(bert) == ((cls,), (sep,), (sep,))


def test_special_ids_of_two_separators_as_in_roberta() -> None:
    tokenizer = letters()
    template = "[CLS] $A [SEP] [SEP] $B [SEP]"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", pair=template, special_tokens=[("[CLS]", 7), ("[SEP]", 8)]
    )
    assert special_ids(tokenizer) == ((7,), (8, 8), (8,))


def test_there_are_no_special_ids_without_a_post_processor() -> None:
    assert special_ids(letters(template=False)) is None


@pytest.mark.parametrize("setting", ["padding", "truncation"])
def test_special_ids_ignore_earlier_settings(setting: str) -> None:
    tokenizer = letters()
    if setting == "padding":
        tokenizer.enable_padding(length=9)
    else:
        tokenizer.enable_truncation(4)
    assert special_ids(tokenizer) == ((7,), (8,), (8,))


def test_joint_pairs_need_tokens_between(roles_set: ExampleSet) -> None:
    facts = task_facts(roles_set) | {"special_ids": None}
    with pytest.raises(ConfigError, match=naming("--pairing joint: ", "tokenizer")):
        build_config(TrainSettings.from_flags(pairing="joint"), facts)
    assert build_config(TrainSettings.from_flags(pairing="compare"), facts).pairing == "compare"


def test_single_sentences_have_no_pairing(opinion_set: ExampleSet) -> None:
    examples = load_examples(opinion_set, "validation")
    sizes = set()
    for pairing in ("diffcat", "compare", "joint"):
        config = build_config(
            TrainSettings.from_flags(pairing=pairing, matrix_size=3, vector_size=5), task_facts(opinion_set)
        )
        assert as_read(examples, config).ids1 is examples.ids1
        sizes.add(Student(config).num_features)
    assert sizes == {5 + 5 + 2 * 9 + 32}


def joint_student(logit_set: ExampleSet) -> Student:
    flags = TrainSettings.from_flags(pairing="joint", matrix_size=3, vector_size=5, hidden_size=8)
    return Student(build_config(flags, task_facts(logit_set)))


def test_a_joint_student_reads_what_its_teacher_read(roles_set: ExampleSet) -> None:
    stored = load_examples(roles_set, "validation")
    examples = as_read(stored, joint_student(roles_set).config)
    rows = roles_set.read("validation", ("sentence1", "sentence2"))
    bert = Tokenizer.from_str(roles_set.tokenizer_json())
    texts = zip(rows.column("sentence1").to_pylist(), rows.column("sentence2").to_pylist(), strict=True)
    assert lists(examples.ids1) == [bert.encode(*pair).ids for pair in texts]
    assert examples.ids2 is None
    changed = {name for name, value in vars(examples).items() if value is not vars(stored)[name]}
    assert changed == {"ids1", "ids2"}


@cache
def model_of(head: str, pairing: str | None) -> Student:
    changes = {"is_pair": True, "pairing": pairing, "special_ids": SPECIAL if pairing == "joint" else None}
    sizes = {"head": head, "matrix_size": 4, "vector_size": 16, "initializer_range": 0.2}
    return student(**sizes, **(changes if pairing else {}))


def logits(model: Student, pairs: list[tuple[list[int], list[int]]], extra: tuple[int, int] = (0, 0)) -> torch.Tensor:
    parts = [Ragged.of([pair[k] for pair in pairs]) for k in range(1 + model.config.is_pair)]
    read = [torch.from_numpy(part.padded(range(len(pairs)), 0)) for part in sequences(model.config, *parts)]
    with torch.no_grad():
        result: torch.Tensor = model(*(pad(ids, (0, more)) for ids, more in zip(read, extra, strict=False)))
    return result


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("pairing", PAIRINGS)
@settings(max_examples=30, deadline=None)
@given(pairs=PAIRS, extra=st.tuples(st.integers(0, 5), st.integers(0, 5)))
def test_an_input_does_not_depend_on_its_batch_or_padding(
    head: str, pairing: str | None, pairs: list[tuple[list[int], list[int]]], extra: tuple[int, int]
) -> None:
    model = model_of(head, pairing)
    alone = torch.cat([logits(model, [pair]) for pair in pairs])
    torch.testing.assert_close(logits(model, pairs, extra), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("pairing", ["diffcat", "compare", "joint"])
def test_both_sentences_and_their_order_count(head: str, pairing: str) -> None:
    same = logits(model_of(head, pairing), [([3, 4], [5])] * 3)
    others = logits(model_of(head, pairing), [([4, 3], [5]), ([3, 4], [6]), ([5], [3, 4])])
    assert ((same - others).abs().amax(dim=1) > 1e-4).all()


@pytest.mark.parametrize(
    ("pairing", "head"),
    [("joint", "mlp"), ("joint", "bilstm"), ("compare", "linear"), ("compare", "bilstm"), ("diffcat", "cnn")],
)
def test_texts_and_stored_ids_give_the_same(
    store: Path, roles_set: ExampleSet, tmp_path: Path, pairing: str, head: str
) -> None:
    sizes = {"matrix_size": 4, "vector_size": 16, "hidden_size": None if head in ("linear", "cnn") else 8}
    record = train(tiny_config(store / "roles", tmp_path, pairing=pairing, head=head, **sizes), "")
    assert evaluate(EvaluateSettings(run=tmp_path)) == record["result"]["evaluation"]
    model = Student.load(tmp_path)
    assert (model.config.pairing, model.config.head) == (pairing, head)
    expected_NC = student_logits(model, as_read(load_examples(roles_set, "validation"), model.config))
    rows = roles_set.read("validation", ("sentence1", "sentence2"))
    results = Predictor(tmp_path)(rows.column("sentence1").to_pylist(), rows.column("sentence2").to_pylist())
    actual_NC = np.array([[*result["probabilities"].values()] for result in results])
    np.testing.assert_allclose(actual_NC, softmax(expected_NC), atol=1e-6)
    assert len(np.unique(actual_NC.round(6))) > 20


def test_a_joint_student_learns_the_special_tokens_too(store: Path, roles_set: ExampleSet, tmp_path: Path) -> None:
    train(tiny_config(store / "roles", tmp_path, pairing="joint", learning_rate=0.1), "")
    special = Student.load(tmp_path).config.special_ids
    assert special is not None
    before, between, after = special
    vectors = weights(tmp_path)["encoder.vectors.table.weight"]
    assert all(vectors[token].abs().max() > 0.06 for token in (*before, *between, *after))
