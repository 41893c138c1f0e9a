"""What each word does to an answer: by a student whose answers can be worked out by hand, and by real ones."""

import json
import math
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from distill.commands.predictions import bar
from pipeline.arrays import Floats
from pipeline.tasks.target import Target
from student import word_effects as explain
from student.predict.predictor import Predictor
from student.word_effects import Word, effects, entropies, without_each_word
from tests.helpers.commands import invoke

PAGE = Path(__file__).parents[2] / "student" / "page" / "page.html"
CLASSES = Target(kind="classes", names=("bad", "good"))
LABELS = Target(kind="labels", names=("food", "wine"))
SCORE = Target(kind="score", names=("score",))


def counting(sentences1: Sequence[str], sentences2: Sequence[str] | None) -> Floats:
    """Logits: the counts of "bad" and "good" in the sentences. Those of second sentences count twice."""
    seconds = [""] * len(sentences1) if sentences2 is None else sentences2
    pairs = [f"{first} {second} {second}".split() for first, second in zip(sentences1, seconds, strict=True)]
    return np.array([[pair.count("bad"), pair.count("good")] for pair in pairs], dtype=np.float32).reshape(-1, 2)


def test_an_effect_is_the_probability_that_a_word_brings() -> None:
    words, logits_WC = without_each_word(counting, ["so good", "bad"], None)
    assert words == [Word(0, 0, 0, "so"), Word(0, 0, 1, "good"), Word(1, 0, 0, "bad")]
    so, good = effects(CLASSES, counting(["so good", "bad"], None), words, logits_WC)[0]
    sure = 1 / (1 + math.exp(-1))
    assert so == {"word": "so", "sentence": 1, "effect": {"bad": 0.0, "good": 0.0}, "entropy": 0.0}
    assert good["effect"] == pytest.approx({"bad": 0.5 - sure, "good": sure - 0.5})
    expected = math.log(2) + sure * math.log(sure) + (1 - sure) * math.log(1 - sure)
    assert good["entropy"] == pytest.approx(expected)  # less sure without it


def test_words_of_both_sentences_are_told_apart_also_over_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ["good bad", "", "bad"], ["good", "bad bad", ""]
    whole = without_each_word(counting, first, second)
    assert [word[:3] for word in whole[0]] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 1, 0), (1, 1, 1), (2, 0, 0)]
    assert whole[1].tolist() == [[1, 2], [0, 3], [1, 1], [2, 0], [2, 0], [0, 0]]
    monkeypatch.setattr(explain, "AT_ONCE", 2)
    words, logits_WC = without_each_word(counting, first, second)
    assert words == whole[0]
    np.testing.assert_array_equal(logits_WC, whole[1])


def test_the_columns_of_a_table_are_read_in_their_order_whatever_its_index() -> None:
    pandas = pytest.importorskip("pandas")
    first, second = (pandas.Series(texts, index=[1, 0]) for texts in (["good", "bad"], ["bad", "good good"]))
    words, logits_WC = without_each_word(counting, first, second)
    assert [word.text for word in words] == ["good", "bad", "bad", "good", "good"]
    assert logits_WC.tolist() == [[2, 0], [0, 1], [0, 4], [1, 2], [1, 2]]


def test_labels_apart_and_scores() -> None:
    words = [Word(0, 0, 0, "soup")]
    before, after = np.array([[0.0, 2.0]], dtype=np.float32), np.array([[-1.0, 2.0]], dtype=np.float32)
    [[soup]] = effects(LABELS, before, words, after)
    assert soup["effect"] == pytest.approx({"food": 0.5 - 1 / (1 + math.e), "wine": 0.0})
    assert soup["entropy"] < 0  # of food alone: that it does not hold is surer than a toss
    np.testing.assert_allclose(entropies(LABELS, np.zeros((1, 2), dtype=np.float32)), 2 * math.log(2))
    [[soup]] = effects(SCORE, before[:, 1:], words, after[:, :1])
    assert soup == {"word": "soup", "sentence": 1, "effect": {"score": 3.0}}
    assert effects(CLASSES, np.zeros((2, 2), dtype=np.float32), [], np.zeros((0, 2), dtype=np.float32)) == [[], []]


@pytest.mark.parametrize("name", ["opinion", "roles"])
def test_a_student_is_asked_about_the_texts_without_the_words(name: str, request: pytest.FixtureRequest) -> None:
    predict = Predictor(request.getfixturevalue(f"{name}_run"))
    inputs = ([["the food was not dull ."]], [["anna paid ben ."], ["ben paid anna ."]])[name == "roles"]
    [told] = predict.explain(*inputs)
    [answer] = predict(*inputs)
    assert {key: told[key] for key in answer} == answer
    texts = [text for [text] in inputs]
    assert [word["word"] for word in told["words"]] == " ".join(texts).split()
    without = predict([texts[0].replace(" not", "")], *([[texts[1].replace(" paid", "")]] if len(texts) > 1 else []))
    word = told["words"][5 if name == "roles" else 3]
    assert word["word"] in ("not", "paid")
    for label, effect in word["effect"].items():
        assert effect == pytest.approx(told["probabilities"][label] - without[0]["probabilities"][label], abs=1e-6)


def test_the_command_prints_words_with_bars_or_json(opinion_run: Path, roles_run: Path, tmp_path: Path) -> None:
    text = "the food was not dull ."
    result = invoke("predict", opinion_run, "--explain", text)
    assert result.exit_code == 0, result.output
    assert all(word in result.stdout for word in text.split())
    assert "█" in result.stdout
    assert "sentence" not in result.stdout
    result = invoke("predict", opinion_run, "--explain", "--json", text)
    assert json.loads(result.stdout) == json.loads(json.dumps(Predictor(opinion_run).explain([text])))
    assert "sentence" in invoke("predict", roles_run, "--explain", "anna paid ben .", "ben paid anna .").stdout
    result = invoke(
        "predict", opinion_run, "--explain", "--file", tmp_path / "x.csv", "--output", tmp_path / "y.parquet"
    )
    assert result.exit_code == 2
    assert "--explain: " in result.stderr


def test_bars_are_to_one_scale() -> None:
    assert [bar(value, 0.4) for value in (0.4, -0.2, 0.001)] == [
        "          │██████████",
        "     █████│          ",
        "          │          ",
    ]
    assert bar(0.0, 0.0) == "          │          "


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_page_leaves_out_the_same_words() -> None:
    """It does without this code, for it also answers as a file, without a server."""
    function = re.search(r"^function withoutWords.*?^}", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert function is not None
    pairs = [[" so  good,", "bad\twine \u00a0 here"], ["", "one"]]
    script = f"{function[0]}; console.log(JSON.stringify({json.dumps(pairs)}.map(withoutWords)))"
    done = subprocess.run([shutil.which("node") or "", "-e", script], capture_output=True, text=True, check=True)
    asked: list[tuple[str, str]] = []

    def remember(sentences1: Sequence[str], sentences2: Sequence[str] | None) -> Floats:
        asked.extend(zip(sentences1, sentences2 or (), strict=True))
        return counting(sentences1, sentences2)

    words, _ = without_each_word(remember, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
    cases = [case for row in json.loads(done.stdout) for case in row]
    assert [(case["word"], case["side"]) for case in cases] == [(word.text, word.side) for word in words]
    assert [tuple(case["texts"]) for case in cases] == asked
