"""Cascades through every place that takes a run, with students, a teacher's process and servers as stages."""

import json
import pickle  # noqa: TID251 - what multiprocessing does
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from distill.apps.app_settings import ServeSettings
from distill.apps.serve.app import App
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.served import Served
from pipeline.errors import FingerprintMismatchError, IntegrityError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.signals.rows import logits_of
from pipeline.tasks.target import softmax
from student.cascade.cascade_file import CASCADE_FILE, CascadeRecord, StageRecord, read_cascade, write_cascade
from student.cascade.cascade_predictor import CascadePredictor
from student.cascade.stages import ChatStage, ServerStage, StageError, TeacherStage, open_stage
from student.predict.predictor import Predictor
from student.sql_functions import register
from student.train import train
from tests.helpers.asgi import ask
from tests.helpers.commands import invoke
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config

HELD_OUT = "source_row % 2 = 0"
TEXTS = [f"the {thing} was {word} ." for thing in ("food", "wine", "music") for word in ("dull", "lovely", "awful")]
NAMES = ("bad", "good")
Answer = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def runs(store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two students of half of the rows."""
    folder = tmp_path_factory.mktemp("stages")
    for name, size in (("small", 4), ("large", 8)):
        flags = {"where": f"not ({HELD_OUT})", "alpha": 0, "num_train_epochs": 6, "vector_size": size}
        train(tiny_config(store / "opinion", folder / name, **flags), "")
    return folder / "small", folder / "large"


def cascade_of(folder: Path, stages: Sequence[object], thresholds: Sequence[float], timeout: float = 5) -> Path:
    """A cascade with thresholds as they are given."""
    hashes = [Predictor(one).hashes() if isinstance(one, Path) else {} for one in stages]
    rows = zip(stages, [*thresholds, None], hashes, strict=True)
    records = tuple(StageRecord(source=str(a), threshold=b, cost=1, hashes=c) for a, b, c in rows)
    write_cascade(folder, CascadeRecord(stages=records, timeout=timeout, chosen={}, measured={}))
    return folder


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """A server that answers any POST."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                data, status = json.dumps(answer(body)).encode(), 200
            except ZeroDivisionError:
                data, status = b"", 500
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    one = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=one.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{one.server_port}"
    finally:
        one.shutdown()
        one.server_close()


def reversed_order(body: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Labels with the last one first, as a server that ranks by score may give them."""
    return [[{"label": NAMES[1], "score": 0.75}, {"label": NAMES[0], "score": 0.25}] for _ in body["inputs"]]


def test_every_place_takes_it_and_the_stage_that_is_sure_answers(runs: tuple[Path, Path], tmp_path: Path) -> None:
    small, large = map(Predictor, runs)
    p_SNC = [softmax(one.calibrated_logits(TEXTS)) for one in (small, large)]
    margin_N = np.abs(p_SNC[0][:, 0] - p_SNC[0][:, 1])
    folder = cascade_of(tmp_path / "cascade", runs, [float(np.median(margin_N))])
    stage_N = np.where(margin_N > np.median(margin_N), 0, 1)
    expected = np.array(p_SNC)[stage_N, np.arange(len(TEXTS))]
    assert set(stage_N) == {0, 1}

    predictor = Predictor(folder)
    assert isinstance(predictor, CascadePredictor)
    for one in (predictor, pickle.loads(pickle.dumps(predictor))):  # noqa: S301
        answers = one(TEXTS)
        np.testing.assert_allclose([list(each["probabilities"].values()) for each in answers], expected, rtol=1e-5)
        assert [each["stage"] for each in answers] == [str(runs[k]) for k in stage_N]
        assert [each["label"] for each in answers] == [NAMES[k] for k in expected.argmax(axis=1)]
    np.testing.assert_allclose(softmax(predictor.logits(TEXTS)), expected, rtol=1e-4)
    assert predictor.counts[0, "answers"] == 2 * int((stage_N == 0).sum())

    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"sentence1": text}) + "\n" for text in TEXTS))
    out = tmp_path / "out.parquet"
    assert invoke("predict", folder, "--file", tmp_path / "in.jsonl", "--output", out).exit_code == 0
    rows = pq.read_table(out).to_pylist()
    assert [row["stage"] for row in rows] == [str(runs[k]) for k in stage_N]
    np.testing.assert_allclose([list(row["probabilities"].values()) for row in rows], expected, rtol=1e-5)

    with duckdb.connect() as connection:
        register(connection, folder)
        query = f"select predict('{folder}', t), scores('{folder}', t) from (select unnest(?) as t)"
        found = connection.execute(query, [TEXTS]).fetchall()
        staged = connection.execute(f"select stage('{folder}', t) from (select unnest(?) as t)", [TEXTS]).fetchall()
        register(connection, runs[0])
        with pytest.raises(duckdb.Error, match=naming("stage", "no cascade")):
            connection.execute(f"select stage('{runs[0]}', 'text')")
    assert [label for label, _ in found] == [NAMES[k] for k in expected.argmax(axis=1)]
    np.testing.assert_allclose([scores for _, scores in found], expected, rtol=1e-4)
    assert [name for (name,) in staged] == [str(runs[k]) for k in stage_N]

    metrics = Metrics(1)
    app = App({"cascade": Served(folder, metrics)}, ServeSettings(runs=(str(folder),)), metrics)
    answer = json.loads(ask(app, "POST", "/predict", {"inputs": [[text] for text in TEXTS]}).body)
    served = [{one["label"]: one["score"] for one in row} for row in answer]
    np.testing.assert_allclose([[row[name] for name in NAMES] for row in served], expected, rtol=1e-4)
    assert [{one["stage"] for one in row} for row in answer] == [{str(runs[k])} for k in stage_N]
    counted = dict(line.rsplit(" ", 1) for line in ask(app, "GET", "/metrics").body.decode().splitlines())
    assert counted['distill_stage_answers{stage="1"}'] == str(int((stage_N == 1).sum()))
    assert ask(app, "POST", "/embed", {"inputs": TEXTS[0]}).status == 200


def test_the_command_certifies_each_stage_against_the_teacher(
    runs: tuple[Path, Path], teachers: Path, store: Path, opinion_set: ExampleSet, tmp_path: Path
) -> None:
    folder = tmp_path / "cascade"
    stages = [f"--stage={one}" for one in (*runs, teachers / "opinion")]
    flags = ("--where", HELD_OUT, "--disagreement", "0.6", "--confidence", "0.6", "--timeout", "120")
    result = invoke("cascade", *stages, "--output-dir", folder, "--store", store, *flags)
    assert result.exit_code == 0, result.stderr
    record = read_cascade(folder)
    assert record.chosen["rows"] == 48
    assert [stage.threshold is None for stage in record.stages] == [False, False, True]
    measured = record.measured["validation"]
    assert measured.rows == opinion_set.record.splits["validation"].rows
    assert measured.stages[-1].agreement == 1.0
    assert sum(stage.share for stage in measured.stages) == pytest.approx(1)
    assert measured.cascade.agreement >= min(stage.agreement for stage in measured.stages)
    costs = [point.cost for point in measured.curve]
    shown = invoke("report", folder, "--output", tmp_path / "page.html", "--json")
    assert shown.exit_code == 0, shown.stderr
    (accuracy, agreement) = json.loads(shown.stdout)["figures"]
    assert [next(iter(row.values())) for row in accuracy["rows"]] == costs
    assert len(agreement["rows"]) == len(costs)
    page = (tmp_path / "page.html").read_text()
    assert all(Path(str(one)).name in page for one in (*runs, teachers / "opinion"))


def test_a_budget_and_a_target(runs: tuple[Path, Path], store: Path, tmp_path: Path) -> None:
    base = ["cascade", "--stage", runs[0], "--stage", runs[1], "--store", store, "--where", HELD_OUT]
    base += ["--cost", "1", "--cost", "10"]
    result = invoke(*base, "--output-dir", tmp_path / "one", "--budget", "0.6")
    assert result.exit_code == 0, result.stderr
    assert read_cascade(tmp_path / "one").chosen["budget"] == 0.6
    result = invoke(*base, "--output-dir", tmp_path / "two", "--target-accuracy", "0.01")
    assert result.exit_code == 0, result.stderr
    assert read_cascade(tmp_path / "two").stages[0].threshold == -1.0  # the cheapest: the first stage answers all
    result = invoke(*base, "--output-dir", tmp_path / "three", "--budget", "0.05")
    assert (result.exit_code, "--budget 0.05" in result.stderr) == (2, True)
    assert not (tmp_path / "three").exists()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--stage", "{small}"), "--stage: "),
        (("--stage", "{small}", "--stage", "{small}"), "there twice"),
        (("--stage", "{small}", "--stage", "{large}", "--cost", "1"), "--cost: "),
        (("--stage", "{small}", "--stage", "{large}", "--cost", "1", "--cost", "x"), "--cost x"),
        (("--stage", "{small}", "--stage", "{large}", "--budget", "1", "--target-accuracy", "1"), "--budget"),
        (("--stage", "http://localhost:1", "--stage", "{large}"), "first stage"),
        (("--stage", "{small}", "--stage", "{pairs}"), "pairs"),
        (("--stage", "{small}", "--stage", "gone"), "--stage gone: "),
        (("--stage", "{small}", "--stage", "{large}", "--where", "label = 5"), "no row"),
    ],
)
def test_wrong_flags(
    runs: tuple[Path, Path], roles_run: Path, store: Path, tmp_path: Path, flags: tuple[str, ...], named: str
) -> None:
    paths = {"small": runs[0], "large": runs[1], "pairs": roles_run}
    arguments = [flag.format(**paths) for flag in flags]
    where = [] if "--where" in flags else ["--where", HELD_OUT]
    result = invoke("cascade", *arguments, *where, "--store", store, "--output-dir", tmp_path / "no")
    assert result.exit_code == 2
    assert named in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "no").exists()


def test_a_server_is_read_by_the_names_of_its_labels(runs: tuple[Path, Path], tmp_path: Path) -> None:
    with server(reversed_order) as url:
        predictor = Predictor(cascade_of(tmp_path, [runs[0], url], [1.0]))
        answers = predictor([*TEXTS] * 8)  # more than one request
    assert {answer["stage"] for answer in answers} == {url}
    assert {tuple(answer["probabilities"].values()) for answer in answers} == {(0.25, 0.75)}


def test_nothing_is_lost_when_a_stage_dies(runs: tuple[Path, Path], tmp_path: Path) -> None:
    with server(reversed_order) as url:
        predictor = Predictor(cascade_of(tmp_path, [runs[0], url], [1.0], timeout=2))
        assert isinstance(predictor, CascadePredictor)
        assert {answer["stage"] for answer in predictor(TEXTS)} == {url}
    expected = [answer["label"] for answer in Predictor(runs[0])(TEXTS)]
    for _ in range(2):
        answers = predictor(TEXTS)
        assert [answer["label"] for answer in answers] == expected
        assert {answer["stage"] for answer in answers} == {str(runs[0])}
    # The second time it is not asked: whoever waits for an answer must not wait for a timeout each time.
    assert predictor.counts[1, "failures"] == 1


def test_a_stage_in_the_middle_that_fails_is_left_out(runs: tuple[Path, Path], tmp_path: Path) -> None:
    with server(lambda _: 1 / 0) as url:
        predictor = Predictor(cascade_of(tmp_path, [runs[0], url, runs[1]], [1.0, 1.0]))
        assert {answer["stage"] for answer in predictor(TEXTS)} == {str(runs[1])}


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [[{"label": "bad", "score": 0.5}]] * 2,
        [[{"label": "bad", "score": 0.5}, {"label": "other", "score": 0.5}]] * 2,
        [[{"label": "bad", "score": 7}, {"label": "good", "score": 0.5}]] * 2,
        [[{"label": "bad", "score": None}, {"label": "good", "score": 0.5}]] * 2,
        {"error": "no"},
        "text",
    ],
)
def test_answers_that_are_no_probabilities_of_the_labels(answer: Any) -> None:
    with server(lambda _: answer) as url, pytest.raises(StageError, match=naming(url)):
        ServerStage(url, NAMES, 5).probabilities(["a", "b"], None)


def test_a_chat_server_names_one_label() -> None:
    asked: list[dict[str, Any]] = []

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        text = "Good." if "lovely" in body["messages"][1]["content"] else "I do not know"
        return {"choices": [{"message": {"content": text}}]}

    with server(reply) as url:
        stage = ChatStage(f"{url}/v1/chat/completions?model=tiny", NAMES, 5)
        assert stage.probabilities(["a lovely wine"], None).tolist() == [[0.0, 1.0]]
        assert (asked[0]["model"], asked[0]["temperature"]) == ("tiny", 0)
        assert stage.probabilities([], None).shape == (0, 2)
        with pytest.raises(StageError, match=naming("do not know", "bad, good")):
            stage.probabilities(["an awful wine"], None)


def test_a_teacher_answers_in_a_process_of_its_own(
    runs: tuple[Path, Path], teachers: Path, opinion_set: ExampleSet
) -> None:
    rows = opinion_set.read("validation", ("sentence1", "logits"))
    info = Predictor(runs[0]).info
    stage = open_stage(str(teachers / "opinion"), info, 120)
    assert isinstance(stage, TeacherStage)
    texts = rows.column("sentence1").to_pylist()
    try:
        np.testing.assert_allclose(stage.probabilities(texts, None), softmax(logits_of(rows, 2)), atol=1e-4)
        assert stage._process is not None
        stage._process.kill()  # as a machine without memory does
        stage._process.wait()
        assert stage.probabilities(texts[:1], None).shape == (1, 2)
        stage.timeout = 1e-6
        with pytest.raises(StageError, match="opinion"):
            stage.probabilities(texts, None)
    finally:
        stage.close()


def test_a_teacher_of_pickled_weights_is_refused(runs: tuple[Path, Path], teachers: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(teachers / "opinion", tmp_path / "teacher"))
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")  # noqa: TID251
    (folder / "model.safetensors").unlink()
    stage = open_stage(str(folder), Predictor(runs[0]).info, 120)
    try:
        with pytest.raises(StageError, match=naming(str(folder), "pytorch_model.bin")):
            stage.probabilities(["a text"], None)
    finally:
        stage.close()


def test_another_student_in_its_place_is_refused(runs: tuple[Path, Path], tmp_path: Path) -> None:
    moved = Path(shutil.copytree(runs[0], tmp_path / "moved"))
    folder = cascade_of(tmp_path / "cascade", [moved, runs[1]], [0.5])
    shutil.rmtree(moved)
    shutil.copytree(runs[1], moved)
    with pytest.raises(FingerprintMismatchError, match=naming("moved")):
        Predictor(folder)
    text = (folder / CASCADE_FILE).read_text()
    (folder / CASCADE_FILE).write_text(text.replace("0.5", "0.6"))
    with pytest.raises(IntegrityError, match=CASCADE_FILE):
        Predictor(folder)


def test_commands_that_need_one_student_name_a_remedy(runs: tuple[Path, Path], store: Path, tmp_path: Path) -> None:
    folder = cascade_of(tmp_path / "cascade", runs, [0.5])
    (tmp_path / "rows.jsonl").write_text('{"sentence1": "a", "label": "good"}\n')
    for command in (["evaluate", folder, "--data", tmp_path / "rows.jsonl"], ["evaluate", folder, "--store", store]):
        result = invoke(*command)
        assert (result.exit_code, result.exception.__class__) == (2, SystemExit)
        assert str(folder) in result.stderr


def test_it_never_abstains(runs: tuple[Path, Path], tmp_path: Path) -> None:
    folder = cascade_of(tmp_path, runs, [0.5])
    for flags in (["--abstain"], ["--cost", "good=2"]):
        result = invoke("predict", folder, "a text", *flags)
        assert result.exit_code == 2
        assert "cascade" in result.stderr
