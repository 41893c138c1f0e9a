"""Cascades through every place that takes a run, with students and a server as stages."""

import asyncio
import json
import pickle  # noqa: TID251 - what multiprocessing does
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from distill.apps.app_settings import ServeSettings
from distill.apps.serve.app import App
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.served import Served
from pipeline.errors import FingerprintMismatchError, IntegrityError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.signals.rows import logits_of
from pipeline.tasks.target import softmax
from student.cascade.cascade import Cascade
from student.cascade.cascade_file import (
    CASCADE_FILE,
    CascadeRecord,
    StageRecord,
    read_cascade,
    stage_names,
    write_cascade,
)
from student.predict.predictor import Predictor
from student.sql_functions import register
from student.train import train
from tests.helpers.asgi import ask, asking
from tests.helpers.commands import invoke
from tests.helpers.messages import naming
from tests.helpers.odd_server import odd_server, scores
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


def test_stages_are_named_without_folders_of_the_server() -> None:
    sources = ["/a/secret/mails/student.distill", "https://me:key@host/v1?x=1"]
    assert stage_names(sources) == ["mails", "https://host/v1"]
    assert stage_names(["/a/b/mails", "/c/b/mails", "/c/tiny.distill"]) == ["mails (1)", "mails (2)", "tiny.distill"]


def test_every_place_takes_it_and_the_stage_that_is_sure_answers(runs: tuple[Path, Path], tmp_path: Path) -> None:
    small, large = map(Predictor, runs)
    p_SNC = [softmax(one.calibrated_logits(TEXTS)) for one in (small, large)]
    margin_N = np.abs(p_SNC[0][:, 0] - p_SNC[0][:, 1])
    folder = cascade_of(tmp_path / "cascade", runs, [float(np.median(margin_N))])
    stage_N = np.where(margin_N > np.median(margin_N), 0, 1)
    expected = np.array(p_SNC)[stage_N, np.arange(len(TEXTS))]
    assert set(stage_N) == {0, 1}

    predictor = Predictor(folder)
    assert isinstance(predictor.backend, Cascade)
    for one in (predictor, pickle.loads(pickle.dumps(predictor))):  # noqa: S301
        answers = one(TEXTS)
        np.testing.assert_allclose([list(each["probabilities"].values()) for each in answers], expected, rtol=1e-5)
        assert [each["stage"] for each in answers] == [runs[k].name for k in stage_N]
        assert [each["label"] for each in answers] == [NAMES[k] for k in expected.argmax(axis=1)]
    np.testing.assert_allclose(softmax(predictor.logits(TEXTS)), expected, rtol=1e-4)
    assert predictor.backend.counts[0, "answers"] == 2 * int((stage_N == 0).sum())

    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"sentence1": text}) + "\n" for text in TEXTS))
    out = tmp_path / "out.parquet"
    assert invoke("predict", folder, "--file", tmp_path / "in.jsonl", "--output", out).exit_code == 0
    rows = pq.read_table(out).to_pylist()
    assert [row["stage"] for row in rows] == [runs[k].name for k in stage_N]
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
    assert [name for (name,) in staged] == [runs[k].name for k in stage_N]

    metrics = Metrics(1)
    app = App({"cascade": Served(folder, metrics)}, ServeSettings(runs=(str(folder),)), metrics)
    answer = json.loads(ask(app, "POST", "/predict", {"inputs": [[text] for text in TEXTS]}).body)
    served = [{one["label"]: one["score"] for one in row} for row in answer]
    np.testing.assert_allclose([[row[name] for name in NAMES] for row in served], expected, rtol=1e-4)
    assert [{one["stage"] for one in row} for row in answer] == [{runs[k].name} for k in stage_N]
    counted = dict(line.rsplit(" ", 1) for line in ask(app, "GET", "/metrics").body.decode().splitlines())
    assert counted['distill_stage_answers{stage="1"}'] == str(int((stage_N == 1).sum()))
    assert ask(app, "POST", "/embed", {"inputs": TEXTS[0]}).status == 200


def test_the_command_certifies_each_stage_against_the_teacher(
    runs: tuple[Path, Path], store: Path, opinion_set: ExampleSet, tmp_path: Path
) -> None:
    table = opinion_set.read("train", ("sentence1", "logits"))
    teacher = dict(zip(table.column("sentence1").to_pylist(), softmax(logits_of(table, 2)).tolist(), strict=True))

    def reply(body: dict[str, Any]) -> Any:
        rows = [teacher[text] for (text,) in body["inputs"]]
        return [[{"label": name, "score": p} for name, p in zip(NAMES, row, strict=True)] for row in rows]

    folder = tmp_path / "cascade"
    flags = ("--where", HELD_OUT, "--disagreement", "0.6", "--confidence", "0.6", "--timeout", "120")
    with odd_server(reply) as (url, _):
        stages = [f"--stage={one}" for one in (*runs, f"{url}?token=hidden")]
        result = invoke("cascade", *stages, "--output-dir", folder, "--store", store, *flags)
    assert result.exit_code == 0, result.stderr
    assert "hidden" not in result.output
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
    assert all(name in page for name in ("small", "large", url))
    assert "hidden" not in page


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
        (("--stage", "{small}", "--stage", "http://localhost:1", "--stage", "{large}"), "last stage"),
        (("--stage", "{small}", "--stage", "http://me:word@localhost:1"), "password"),
        (("--stage", "{small}", "--stage", "{teacher}"), "teacher"),
        (("--stage", "{small}", "--stage", "{pairs}"), "pairs"),
        (("--stage", "{small}", "--stage", "gone"), "--stage gone: "),
        (("--stage", "{small}", "--stage", "{large}", "--where", "label = 5"), "no row"),
    ],
)
def test_wrong_flags(
    runs: tuple[Path, Path],
    roles_run: Path,
    teachers: Path,
    store: Path,
    tmp_path: Path,
    flags: tuple[str, ...],
    named: str,
) -> None:
    paths = {"small": runs[0], "large": runs[1], "pairs": roles_run, "teacher": teachers / "opinion"}
    arguments = [flag.format(**paths) for flag in flags]
    where = [] if "--where" in flags else ["--where", HELD_OUT]
    result = invoke("cascade", *arguments, *where, "--store", store, "--output-dir", tmp_path / "no")
    assert result.exit_code == 2
    assert named in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "no").exists()


def test_nothing_is_lost_when_a_server_dies(runs: tuple[Path, Path], tmp_path: Path) -> None:
    with odd_server(lambda body: scores(0.75, 0.25, len(body["inputs"]))) as (url, sent):
        predictor = Predictor(cascade_of(tmp_path, [runs[0], url], [1.0], timeout=2))
        assert isinstance(predictor.backend, Cascade)
        answers = predictor([*TEXTS] * 8)
        assert {answer["stage"] for answer in answers} == {url}
        assert {tuple(answer["probabilities"].values()) for answer in answers} == {(0.25, 0.75)}
    asked = len(sent)
    expected = [answer["label"] for answer in Predictor(runs[0])(TEXTS)]
    for _ in range(2):
        answers = predictor(TEXTS)
        assert [answer["label"] for answer in answers] == expected
        assert {answer["stage"] for answer in answers} == {"small"}
    # The second time it is not asked: whoever waits for an answer must not wait for a timeout each time.
    assert len(sent) == asked
    assert predictor.backend.handed_on() == {"inputs": 90, "answered": 72, "not_answered": 18}


def test_a_file_counts_what_was_handed_on_and_a_refused_text_costs_no_other(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    def reply(body: dict[str, Any]) -> Any:
        refused = TEXTS[4] in body["messages"][1]["content"]
        return {"choices": [{"message": {"content": None if refused else "good"}}]}

    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"sentence1": text}) + "\n" for text in TEXTS))
    with odd_server(reply) as (url, _):
        folder = cascade_of(tmp_path / "cascade", [runs[0], f"{url}/v1/chat/completions?model=m&key=hidden"], [1.0])
        flags = ("--file", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")
        result = invoke("predict", folder, *flags, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["handed_on"] == {"inputs": 9, "answered": 8, "not_answered": 1}
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == [f"{url}/v1/chat/completions"] * 4 + ["small"] + [rows[0]["stage"]] * 4
    assert "hidden" not in result.stderr + (tmp_path / "out.jsonl").read_text()


def test_no_text_waits_for_a_server_that_answers_another(runs: tuple[Path, Path], tmp_path: Path) -> None:
    p_NC = softmax(Predictor(runs[0]).calibrated_logits(TEXTS))
    margin_N = np.abs(p_NC[:, 0] - p_NC[:, 1])
    unsure, sure = TEXTS[int(margin_N.argmin())], TEXTS[int(margin_N.argmax())]
    is_free = Event()

    def reply(body: dict[str, Any]) -> Any:
        is_free.wait(60)
        return scores(0.75, 0.25, len(body["inputs"]))

    async def served(app: App) -> list[str]:
        done: list[str] = []

        async def send(name: str, text: str) -> None:
            answer = await asking(app, "POST", "/predict", {"inputs": text})
            done.append(json.loads(answer.body)[0]["stage"])
            if name == "sure":
                is_free.set()

        first = asyncio.create_task(send("unsure", unsure))
        await asyncio.sleep(0.2)  # the server has the unsure text now, and answers it once the sure one is answered
        await asyncio.gather(first, send("sure", sure))
        return done

    with odd_server(reply) as (url, _):
        metrics = Metrics(1)
        folder = cascade_of(tmp_path, [runs[0], url], [float(np.median(margin_N))], timeout=30)
        app = App({"cascade": Served(folder, metrics)}, ServeSettings(runs=(str(folder),)), metrics)
        assert asyncio.run(served(app)) == ["small", url]
    counted = dict(line.rsplit(" ", 1) for line in metrics.text().splitlines() if "stage=" in line)
    assert counted['distill_stage_answers{stage="1"}'] == "1"


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
