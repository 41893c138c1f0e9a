import json
import os
import time
from pathlib import Path
from threading import Thread

import pytest

from student.predict.file import predict_lines
from student.predict.predictor import Predictor
from student.run_settings import PredictSettings
from tests.helpers.commands import piped


def test_lines_are_answered_in_order_beside_what_is_kept(opinion_run: Path) -> None:
    texts = [f"the food was {word} ." for word in ("dull", "lovely", "awful")] * 50
    rows = [{"id": k, "sentence1": text, "margin": None} for k, text in enumerate(texts)]
    result = piped(opinion_run, [json.dumps(row) for row in rows], "--columns", "id", "--columns", "margin")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == list(range(150))
    assert list(answers[0]) == ["id", "input_margin", "label", "probabilities", "margin"]
    for answer, expected in zip(answers, Predictor(opinion_run)(texts), strict=True):
        assert answer["label"] == expected["label"]
        assert answer["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sentence1": null}', "line 3: 'sentence1' is None"),
        ("{}", "line 3: 'sentence1' is None"),
        ('{"sentence1": "\\ud800"}', "line 3: "),
        ('{"sentence1": " "}', "line 3: "),
        ("no json", "line 3: "),
    ],
)
def test_a_bad_line_is_named_and_those_before_it_are_answered(opinion_run: Path, line: str, message: str) -> None:
    result = piped(opinion_run, ['{"sentence1": "the food was dull ."}', "", line, '{"sentence1": "never"}'])
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")
    assert len(result.stdout.splitlines()) == 1


def test_columns_are_those_of_the_first_line(opinion_run: Path) -> None:
    for arguments, message in (([], "'sentence1'"), (["--columns", "id"], "'sentence1'")):
        result = piped(opinion_run, ['{"text": "x"}'], *arguments)
        assert result.exit_code == 2
        assert message in result.stderr
    assert piped(opinion_run, []).stdout == ""


def test_nobody_waits_for_lines_that_have_not_come(opinion_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    config = PredictSettings.from_flags(run=opinion_run, file=Path("-"))
    with os.fdopen(reading, "rb") as stream:
        thread = Thread(target=predict_lines, args=(config, Predictor(opinion_run), stream))
        thread.start()
        answered = ""
        for count in (1, 2):
            os.write(writing, b'{"sentence1": "the food was dull ."}\n{"sente' if count == 1 else b'nce1": "x"}\n')
            while answered.count("\n") < count and thread.is_alive():
                answered += capsys.readouterr().out
                time.sleep(0.01)
            assert answered.count("\n") == count
        os.close(writing)
        thread.join()
