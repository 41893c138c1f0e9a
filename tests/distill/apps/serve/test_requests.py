import json
import re
from typing import Any

import pytest

from distill.apps.serve.requests import (
    MAX_CHARACTERS,
    Body,
    EmbedRequest,
    HubRequest,
    PredictRequest,
    RefusedError,
    checked_texts,
    parsed,
)
from tests.helpers.messages import naming


def read(kind: type[Body], inputs: object, **others: object) -> Any:
    return parsed(kind, json.dumps({"inputs": inputs} | others).encode())


@pytest.mark.parametrize(
    ("inputs", "rows", "is_batch"),
    [
        ("a", [["a"]], False),
        (["a"], [["a"]], False),
        (["a", "b"], [["a", "b"]], False),  # a pair, not two texts
        ([["a"], ["b"]], [["a"], ["b"]], True),
        ([["a", "b"]], [["a", "b"]], True),
        ([], [], True),
    ],
)
def test_inputs_of_predict(inputs: object, rows: list[list[str]], is_batch: bool) -> None:
    question = read(PredictRequest, inputs)
    assert (question.rows(), question.is_batch) == (rows, is_batch)


@pytest.mark.parametrize(
    ("inputs", "rows"),
    [
        ("a", [["a"]]),
        (["a", "b"], [["a"], ["b"]]),  # two texts, not a pair
        ({"text": "a", "text_pair": "b"}, [["a", "b"]]),
        ([{"text": "a", "text_pair": "b"}, "c"], [["a", "b"], ["c"]]),
    ],
)
def test_inputs_of_the_hub(inputs: object, rows: list[list[str]]) -> None:
    assert read(HubRequest, inputs).rows() == rows


def test_what_is_not_known_is_ignored_as_clients_send_it() -> None:
    question = read(EmbedRequest, "a", prompt_name=None, dimensions=3)
    assert (question.rows(), question.normalize, question.truncate) == ([["a"]], True, None)


@pytest.mark.parametrize(
    ("kind", "body", "status", "message"),
    [
        (PredictRequest, b"", 400, "JSON"),
        (PredictRequest, b"{'inputs': 'a'}", 400, "JSON"),
        (PredictRequest, b'{"inputs": "\xff"}', 400, "JSON"),
        (PredictRequest, b'{"inputs": "\\ud800"}', 400, "JSON"),
        (PredictRequest, b"[" * 100_000, 400, "JSON"),
        (PredictRequest, b"[]", 422, "object"),
        (PredictRequest, b"{}", 422, "`inputs`"),
        (PredictRequest, b'{"inputs": 1}', 422, "`inputs`"),
        (PredictRequest, b'{"inputs": ["a", "b", "c"]}', 422, "`inputs`"),
        (PredictRequest, b'{"inputs": ["a", ["b"]]}', 422, "`inputs`"),
        (PredictRequest, b'{"inputs": [["a"], []]}', 422, "`inputs`"),
        (PredictRequest, b'{"inputs": "a", "raw_scores": "yes"}', 422, "`raw_scores`"),
        (EmbedRequest, b'{"inputs": [["a"]]}', 422, "`inputs`"),
        (HubRequest, b'{"inputs": {"text": "a"}}', 422, '{"text": string, "text_pair": string}'),
        (HubRequest, b'{"inputs": "a", "parameters": {"top_k": 0}}', 422, "`parameters`"),
    ],
)
def test_other_bodies_are_refused(kind: type[Body], body: bytes, status: int, message: str) -> None:
    with pytest.raises(RefusedError) as refused:
        parsed(kind, body)
    assert refused.value.status == status
    assert message in str(refused.value)


def test_texts_are_put_side_by_side() -> None:
    assert checked_texts(PredictRequest(inputs=[["a"], ["b"]]), False, 2).first == ["a", "b"]
    pairs = checked_texts(PredictRequest(inputs=[["a", "b"], ["c", "d"]]), True, 2)
    assert (pairs.first, pairs.second) == (["a", "c"], ["b", "d"])


@pytest.mark.parametrize(
    ("rows", "is_pair", "status", "message"),
    [
        ([], False, 400, "`inputs`"),
        ([["a"]] * 4, False, 413, naming("4", "3")),
        ([["a"], ["b", "c"]], False, 422, "input 1"),
        ([["a", "b"], ["c"]], True, 422, "input 1"),
        ([["a"], ["b" * (MAX_CHARACTERS + 1)]], False, 413, naming("input 1", "100,000")),
        ([["a"], [""]], False, 422, "input 1"),
        ([["a", ""], [" ", "\n"]], True, 422, "input 1"),
    ],
)
def test_texts_are_within_bounds(rows: list[list[str]], is_pair: bool, status: int, message: str) -> None:
    with pytest.raises(RefusedError, match=message) as refused:
        checked_texts(PredictRequest(inputs=rows), is_pair, 3)
    assert refused.value.status == status


def test_a_list_of_texts_that_is_read_as_a_pair_is_shown_the_form_of_a_batch() -> None:
    with pytest.raises(RefusedError, match=re.escape('[["a"], ["b"]]')):
        checked_texts(parsed(PredictRequest, b'{"inputs": ["first", "second"]}'), False, 3)
    with pytest.raises(RefusedError, match=re.escape('[{"text": "a", "text_pair": "b"}]')):
        checked_texts(parsed(HubRequest, b'{"inputs": ["first", "second"]}'), True, 3)
