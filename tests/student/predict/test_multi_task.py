"""Students of several tasks that answer from one reading: the same answers as each alone, from Python and in files."""

import json
import pickle  # noqa: TID251 - what multiprocessing does
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import ConfigError
from pipeline.text.text_to_ids import TextReader
from student.export.export import export
from student.predict import engine_backend, torch_backend
from student.predict.file import predict_file
from student.predict.multi_task import MultiTaskPredictor, open_predictor
from student.predict.predictor import Predictor
from student.run_settings import ExportSettings, PredictSettings
from tests.helpers.certificates import certify
from tests.helpers.engine import needs_engine
from tests.helpers.messages import naming

SINGLE = ("opinion", "score")
TEXTS = ["the food was dull .", "the wine was perfect .", "", "the food was 不 [MASK] ."] * 32


@pytest.fixture(scope="module")
def file(together: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The students as one file for the engine."""
    path = tmp_path_factory.mktemp("exported") / "together.distill"
    export(ExportSettings(run=together, file=path))
    return path


@pytest.fixture(params=["folder", pytest.param("file", marks=needs_engine)])
def run(request: pytest.FixtureRequest, together: Path) -> Path:
    """The students in a folder and in a file."""
    return together if request.param == "folder" else request.getfixturevalue("file")


@pytest.fixture(scope="module")
def predictor(together: Path) -> MultiTaskPredictor:
    return MultiTaskPredictor(together, SINGLE)


@pytest.mark.parametrize("count", [0, 1, len(TEXTS)])
def test_the_answers_are_those_of_each_student_alone(run: Path, together: Path, count: int) -> None:
    texts, predictor = TEXTS[:count], MultiTaskPredictor(run, SINGLE)
    answers, logits = predictor(texts), predictor.logits(texts)
    assert len(answers) == count
    for task in SINGLE:
        alone = Predictor(together, task=task)
        np.testing.assert_allclose(logits[task], alone.logits(texts), atol=1e-4)
        expected = alone(texts)
        for answer, wanted in zip(answers, expected, strict=True):
            assert answer[task].keys() == wanted.keys()
            assert answer[task] == wanted or answer[task].get("label", "score") == wanted.get("label", "score")


def test_pairs_are_answered_alike(together: Path) -> None:
    pairs = ["the food was dull .", "the wine was perfect ."], ["the cook was angry .", "no ."]
    logits = MultiTaskPredictor(together, ["roles"]).logits(*pairs)
    np.testing.assert_allclose(logits["roles"], Predictor(together / "roles").logits(*pairs), atol=1e-6)


@pytest.mark.parametrize("count", [1, len(TEXTS)])
@pytest.mark.parametrize("reads", [pytest.param("engine", marks=needs_engine), "torch"])
def test_each_text_is_read_once(together: Path, monkeypatch: pytest.MonkeyPatch, reads: str, count: int) -> None:
    read: list[int] = []

    def counted(original: Any, place: int) -> Any:
        def call(*arguments: Any) -> Any:
            read.append(len(arguments[place]))
            return original(*arguments)

        return call

    if reads == "engine":
        from student.engine.python import distill_student

        monkeypatch.setattr(distill_student, "_logits", counted(distill_student._logits, 1))
    else:
        for module in (torch_backend, engine_backend):
            monkeypatch.setattr(module, "has_engine", lambda: False)  # as where it could not be compiled
        monkeypatch.setattr(TextReader, "read", counted(TextReader.read, 1))
    predictor = MultiTaskPredictor(together, SINGLE)
    if reads == "torch":
        assert len({id(one.student.encoder) for one in predictor.predictors.values()}) == 1
    answers = predictor(TEXTS[:count])
    assert read == [count]
    monkeypatch.undo()
    for task in SINGLE:
        expected = [answer.get("label") for answer in Predictor(together, task=task)(TEXTS[:count])]
        assert [answer[task].get("label") for answer in answers] == expected


def test_the_tasks_that_take_such_inputs_answer(run: Path) -> None:
    all_tasks = MultiTaskPredictor(run)
    assert list(all_tasks(["good"])[0]) == list(SINGLE)
    assert list(all_tasks(["good"], ["bad"])[0]) == ["roles"]


def test_some_tasks_are_answered_in_the_order_that_is_wanted(together: Path) -> None:
    assert list(MultiTaskPredictor(together, ["score", "opinion"])(["good"])[0]) == ["score", "opinion"]
    assert list(MultiTaskPredictor(together, ["score"])(["good"])[0]) == ["score"]


def test_tasks_that_take_other_inputs_are_refused_with_a_choice(run: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--tasks", "roles", "opinion,score")):
        open_predictor(run)
    with pytest.raises(ConfigError, match=naming("--tasks", "opinions", "opinion")):
        MultiTaskPredictor(run, ["opinions"])
    with pytest.raises(ConfigError, match=naming("one sentence")):
        MultiTaskPredictor(run, SINGLE)(["a"], ["b"])
    with pytest.raises(ConfigError, match=naming("pairs")):
        MultiTaskPredictor(run, ["roles"])(["a"])
    with pytest.raises(ConfigError, match=naming("--cost", "opinion")):
        open_predictor(run, SINGLE, costs={"good": 2})


@needs_engine
def test_one_task_of_a_file(file: Path) -> None:
    alone = Predictor(file, task="opinion")
    assert pickle.loads(pickle.dumps(alone))(TEXTS[:1]) == alone(TEXTS[:1])  # noqa: S301
    for refused in (partial(Predictor, file), partial(Predictor, file, task="opinions")):
        with pytest.raises(ConfigError, match=naming("opinion")):
            refused()
    with pytest.raises(ConfigError, match=naming("'opinion'", "certify")):
        MultiTaskPredictor(file, abstain=True)


@needs_engine
def test_each_task_abstains_by_its_own_certificate(together: Path, tmp_path: Path) -> None:
    run, file = shutil.copytree(together, tmp_path / "together"), tmp_path / "together.distill"
    certify(run / "opinion", 0.1)
    export(ExportSettings(run=run, file=file))
    expected = [answer["label"] for answer in Predictor(run / "opinion", abstain=True)(TEXTS)]
    assert 0 < expected.count("abstain") < len(TEXTS)
    for source in (run, file):
        several = pickle.loads(pickle.dumps(MultiTaskPredictor(source, ["opinion"], abstain=True)))  # noqa: S301
        assert [answer["opinion"]["label"] for answer in several(TEXTS)] == expected
        with pytest.raises(ConfigError, match=naming("score", "certif")):
            MultiTaskPredictor(source, SINGLE, abstain=True)


def test_it_travels_to_other_processes(predictor: MultiTaskPredictor) -> None:
    travelled = pickle.loads(pickle.dumps(predictor))  # noqa: S301
    assert travelled(TEXTS[:2]) == predictor(TEXTS[:2])


def test_a_run_of_one_task_has_no_others(opinion_run: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--tasks", opinion_run)):
        MultiTaskPredictor(opinion_run, ["opinion"])


def test_a_file_gets_a_column_for_each_task(run: Path, together: Path, tmp_path: Path) -> None:
    rows = pa.table({"sentence1": TEXTS[:2], "opinion": ["kept", "as well"]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    config = {"run": run, "tasks": "opinion,score", "file": tmp_path / "rows.parquet", "columns": ("opinion",)}
    for name in ("out.parquet", "out.csv"):
        done = predict_file(
            PredictSettings(output=tmp_path / name, **config), open_predictor(run, ("opinion", "score"))
        )
        assert done["written"]
        assert {one["task"] for one in done["drift"]} == set(SINGLE)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["input_opinion", "opinion", "score"]
    alone = Predictor(together / "opinion").columns(TEXTS[:2])
    assert table["opinion"].combine_chunks().field("label").to_pylist() == alone["label"].to_pylist()
    assert table["score"].combine_chunks().type.field(0).name == "score"
    flat = pc.read_csv(tmp_path / "out.csv")
    assert flat["opinion.label"].to_pylist() == alone["label"].to_pylist()
    assert "score.score" in flat.column_names


def test_the_command_shows_a_row_for_each_input_and_task(run: Path) -> None:
    command = ["predict", str(run), "--tasks", "opinion,score", *TEXTS[:2]]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("opinion") == shown.stdout.count("score") == 2
    answers = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert [list(answer) for answer in answers] == [list(SINGLE)] * 2
    lines = json.dumps({"sentence1": TEXTS[0]}) + "\n"
    stream = CliRunner().invoke(app, [*command[:4], "--file", "-"], input=lines)
    assert json.loads(stream.stdout)["opinion"]["label"] == answers[0]["opinion"]["label"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--tasks", "opinion,score", "--explain"], "--explain"),
        (["--tasks", "opinion,score", "--collect", "there"], "--collect"),
        (["--tasks", ","], "--tasks"),
        ([], "--tasks"),
    ],
)
def test_what_takes_one_task_names_its_flag(together: Path, flags: list[str], named: str) -> None:
    done = CliRunner().invoke(app, ["predict", str(together), *flags, "a text"])
    assert done.exit_code == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
