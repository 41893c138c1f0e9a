"""A bert apart from transformers; beside them it is tested in tests/teacher/test_bert_students.py."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pipeline.arrays import Ragged
from pipeline.errors import ConfigError, IntegrityError
from pipeline.file_names import CONFIG_FILE
from student.describe import describe_config
from student.encoders import bert
from student.encoders.bert import BertEncoder
from student.encoders.encoder import without_padding
from student.encoders.specs import Bert
from student.model.architecture import sequences
from student.model.build_config import build_config
from student.model.student import Student
from student.row_adam import RowAdam
from student.settings import TrainSettings
from student.vocabulary_pruning import active_ids, prune, renumber, restore
from tests.helpers.messages import naming
from tests.helpers.shipped_tasks import facts
from tests.helpers.toy_berts import SENTENCES, bert_config, bert_student
from tests.helpers.toy_students import padded, student_config, toy_examples


def test_a_sequence_means_the_same_alone_padded_or_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = bert_student(is_pair=True).encoder
    together_NF = encoder(padded(SENTENCES))
    assert together_NF.isfinite().all()
    for sentence, features_F in zip(SENTENCES, together_NF, strict=True):
        for width in (0, 3):
            alone_NF = encoder(padded([[*sentence, *[0] * width]]))
            torch.testing.assert_close(alone_NF[0], features_F, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(encoder(padded(SENTENCES)), together_NF, rtol=1e-4, atol=1e-5)
        monkeypatch.setattr(bert, "PADDED_TOKENS", 12)  # several batches
        torch.testing.assert_close(encoder(padded(SENTENCES)), together_NF, rtol=1e-4, atol=1e-5)
        assert encoder.reduce(torch.tensor([], dtype=torch.int64), torch.tensor([0, 0, 0])).isfinite().all()


def test_order_and_the_second_sentence_are_seen() -> None:
    pairs, single = bert_student(is_pair=True).encoder, bert_student().encoder
    same = padded([[2, 5, 4, 3, 6, 3], [2, 4, 5, 3, 6, 3]])
    for encoder in (pairs, single):
        assert (encoder(same)[0] - encoder(same)[1]).abs().max() > 1e-3
    assert torch.equal(pairs(padded(SENTENCES)), single(padded(SENTENCES)))  # so that tasks of both can share one
    whole = padded(SENTENCES)
    before = pairs(whole)
    assert isinstance(pairs, BertEncoder)
    with torch.no_grad():
        pairs.embeddings.token_type_embeddings.weight[1].normal_()
    seen = [bool(row.abs().max() > 1e-3) for row in pairs(whole) - before]
    assert seen == [True, False, True, False, False]  # those with something behind a separator


def test_a_single_sentence_is_read_with_special_tokens() -> None:
    one, other = Ragged.of([[5, 0, 4], []]), Ragged.of([[7], [6, 6]])
    assert sequences(bert_config(), one)[0].lists() == [[2, 5, 4, 3], [2, 3]]
    assert sequences(bert_config(is_pair=True), one, other)[0].lists() == [[2, 5, 4, 3, 7, 3], [2, 3, 6, 6, 3]]
    assert sequences(bert_config(is_pair=True), one)[0].lists() == [[2, 5, 4, 3], [2, 3]]
    assert sequences(student_config(), one)[0].lists() == [[5, 4], []]


@pytest.mark.parametrize("pad_id", [0, 5, 10])
def test_a_shrunk_bert_says_the_same_and_what_it_learns_comes_back(pad_id: int) -> None:
    special = {"special_ids": ((2,), (8,), (8,)), "pad_id": pad_id, "is_pair": True}
    examples = toy_examples([[2, 7, 8, 3, 8], [2, 8, 9, 8]], None)
    whole, active = bert_student(**special), active_ids([examples], pad_id)
    small = prune(whole, active).eval()
    inputs = renumber(examples, active).batch(range(2))
    torch.testing.assert_close(small.logits(*inputs), whole.logits(*examples.batch(range(2))), rtol=0, atol=1e-6)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.add_(0.1)
    before = whole.encoder.tables()[0].weight.clone()
    restore(whole, small, active)
    torch.testing.assert_close(small.logits(*inputs), whole.logits(*examples.batch(range(2))), rtol=0, atol=1e-6)
    assert (whole.encoder.tables()[0].weight == before).all(dim=1).sum() == len(before) - len(active)


def test_steps_on_rows_move_a_bert_as_steps_on_the_whole_table_do() -> None:
    def stepped(by_rows: bool) -> dict[str, torch.Tensor]:
        made = bert_student(is_pair=True)
        tables, others = made.encoder.trained_tables(), [*made.encoder.other_parameters(), *made.head.parameters()]
        optimizer = RowAdam([table.weight for table in tables], others, lr=0.01, padding_idx=0)
        ids_T, starts_S = without_padding(padded(SENTENCES[:3]), 0)
        for _ in range(2):
            loss = made.logits(ids_T, starts_S, optimizer.use(ids_T) if by_rows else None).sin().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.clip_gradients(1.0)
            optimizer.step()
            optimizer.zero_grad()
        optimizer.catch_up()
        return made.state_dict()

    by_rows, whole, start = stepped(True), stepped(False), bert_student(is_pair=True).state_dict()
    for name, tensor in whole.items():
        if name.endswith("key.bias"):  # no softmax sees it: its gradient is rounding alone
            continue
        torch.testing.assert_close(by_rows[name], tensor, rtol=1e-4, atol=1e-4, msg=name)
    words = "encoder.embeddings.word_embeddings.weight"
    assert (whole[words] != start[words]).any(dim=1).tolist() == [False, False, *[True] * 8]


def test_it_is_trained_in_bf16_where_that_is_fast_and_compared_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = bert_student().encoder
    assert isinstance(encoder, BertEncoder)
    ids_T, starts_S = without_padding(padded(SENTENCES), encoder.pad_id)
    exact_NF, told = encoder.reduce(ids_T, starts_S), {}
    for is_fast in (False, True):
        monkeypatch.setattr(bert, "has_fast_bf16", lambda is_fast=is_fast: is_fast)
        torch.testing.assert_close(encoder.eval().reduce(ids_T, starts_S), exact_NF, rtol=0, atol=0)
        trained_NF = encoder.train().reduce(ids_T, starts_S)
        assert torch.equal(trained_NF, exact_NF) != is_fast
        torch.testing.assert_close(trained_NF, exact_NF, rtol=0.05, atol=0.05)
        told[is_fast] = encoder.layers(ids_T, starts_S)
    for exact, rounded in zip(told[False].scores, told[True].scores, strict=True):
        assert rounded.dtype == torch.float32
        torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("length", [3, 11])
def test_multiply_adds_are_those_that_torch_counts(length: int) -> None:
    made = bert_student()
    told = describe_config(made.config)["multiply_adds"]
    assert told["per_pair_of_tokens"] == 2 * 8
    encoder = made.encoder
    assert isinstance(encoder, BertEncoder)
    ids_NL = torch.full((1, length), 4)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        made.head(encoder.exported(ids_NL, length))
    counted = length * told["per_token"] + told["per_input"] + length**2 * told["per_pair_of_tokens"]
    assert counter.get_total_flops() == 2 * counted


def test_a_folder_says_what_it_is_to_both_kinds_of_readers(tmp_path: Path) -> None:
    made = bert_student(is_pair=True)
    made.save(tmp_path)
    values = json.loads((tmp_path / CONFIG_FILE).read_text())
    assert (values["model_type"], values["hidden_size"], values["num_hidden_layers"]) == ("bert", 8, 2)
    assert values["id2label"] == {"0": "no", "1": "yes", "2": "maybe"}
    assert Student.from_pretrained(tmp_path).config == made.config
    (tmp_path / CONFIG_FILE).write_text(json.dumps(values | {"hidden_size": 9}))
    with pytest.raises(IntegrityError, match=naming("config.json: ", "record_sha256")):
        Student.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_hidden_layers": 129}, "num_hidden_layers"),
        ({"num_attention_heads": 3}, naming("3 heads", "8")),
        ({"max_seq_length": 17}, "16 tokens"),
        ({"head": "linear"}, "'dense'"),
        ({"special_ids": None}, "special_ids"),
        ({"table_dtype": "int8"}, "tables"),
        ({"token_dropout": 0.1}, "token"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        bert_config(**changes)


def test_layers_are_not_given_longer_texts_than_they_know() -> None:
    sizes = {"vector_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    inherited = Bert(**sizes, max_position_embeddings=16)
    flags = TrainSettings.from_flags(embedding="bert")
    fitting = facts("mrpc") | {"max_seq_length": 16, "special_ids": ((2,), (3,), (3,))}
    assert build_config(flags, fitting, inherited).max_seq_length == 16
    with pytest.raises(ConfigError, match=naming("--embedding bert: ", "16 tokens", "17", "--init noise")):
        build_config(flags, fitting | {"max_seq_length": 17}, inherited)
    from_noise = build_config(flags, fitting | {"max_seq_length": 513}).encoder
    assert isinstance(from_noise, Bert)
    assert from_noise.max_position_embeddings == 513
