"""The programs in examples/, run as they are."""

import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.console import show
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sources import load_source
from pipeline.tasks.task import load_task
from teacher.tiny import create_tiny_bert
from tests.helpers.offline_hub import write_hub
from tests.helpers.terminal import Terminal

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
def test_mrpc_from_the_teacher_to_an_onnx_file(tmp_path: Path) -> None:
    write_hub(tmp_path)
    terminal = Terminal(tmp_path)
    for line in (EXAMPLES / "mrpc.sh").read_text(encoding="utf-8").splitlines():
        if line.startswith("distill "):
            terminal.line(line)
    assert ExampleSet.open(tmp_path / "logits" / "mrpc").record.state == "verified"
    assert (tmp_path / "mrpc.onnx").stat().st_size > 0


@pytest.mark.slow
def test_the_same_in_python(tmp_path: Path) -> None:
    write_hub(tmp_path)
    printed = Terminal(tmp_path).python((EXAMPLES / "in_python.py").read_text(encoding="utf-8"))
    run = json.loads((tmp_path / "runs" / "python" / "run.json").read_text())
    assert run["command"].startswith("train_student(")
    assert "task='mrpc'" in run["command"]
    score = run["result"]["evaluation"]["validation"]["gold"]["accuracy"]
    assert re.search(rf"validation +. accuracy +. +{show(score)} ", printed), printed
    lines = (tmp_path / "runs" / "python" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [entry["epoch"] for entry in run["result"]["history"]]


def test_a_set_is_read_without_this_project(opinion_set: ExampleSet, tmp_path: Path) -> None:
    program = [sys.executable, "-P", str(EXAMPLES / "read_a_set.py"), str(opinion_set.root)]
    printed = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    accuracy = opinion_set.record.scores["validation"]["accuracy"]
    assert "opinion: verified" in printed
    assert any("validation" in line and f" {round(accuracy, 3)} " in line for line in printed.splitlines()), printed


def test_the_task_of_ones_own_has_ten_rows_of_all_labels() -> None:
    folder = EXAMPLES / "own_task"
    task = load_task(manifest=folder / "tickets.yaml")
    source = load_source(task, folder / "data")
    assert source.splits["train"].num_rows == 10
    assert all(len(pc.unique(rows["label"])) == len(task.labels) for rows in source.splits.values())
    assert not source.warnings


@pytest.mark.slow
def test_a_task_of_ones_own_becomes_a_student(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "own_task", tmp_path, dirs_exist_ok=True)
    texts = [path.read_text(encoding="utf-8") for path in (tmp_path / "data").iterdir()]
    create_tiny_bert(tmp_path / "bert-base-uncased", texts)
    lines = (tmp_path / "tickets.yaml").read_text(encoding="utf-8").splitlines()
    commands = [line.removeprefix("#   ") for line in lines if line.startswith("#   distill ")]
    assert len(commands) == 3
    terminal = Terminal(tmp_path)
    for command in commands:
        terminal.line(command)
    assert (tmp_path / "runs" / "tickets" / "run.json").exists()


def test_the_sentences_most_like_those_of_a_task_are_found(tmp_path: Path) -> None:
    task, output, corpus = (str(tmp_path / f"{name}.parquet") for name in ("task", "output", "corpus"))
    praise, news = ("A film of {} and of a clever plot.", "The railway to {} has seven stations.")
    cities = ("york", "bath", "leeds", "derby", "ripon", "wells")
    films = [f"what a clever film of {city}" for city in ("rome", "oslo", "bonn")]
    pq.write_table(pa.table({"sentence": films * 10}), task)
    documents = [f"{news.format(city)} {praise.format(city)} Too short." for city in cities] * 2
    pq.write_table(pa.table({"text": [*documents, None]}), corpus)
    program = runpy.run_path(str(EXAMPLES / "similar_text.py"))
    program["main"](task, output, "9", corpus)
    found = pq.read_table(output).column("text").to_pylist()
    assert set(found[:6]) == {praise.format(city) for city in cities}
    assert len(set(found)) == 9
    assert set(found[6:]) < {news.format(city) for city in cities}


@pytest.fixture
def service(roles_run: Path) -> Iterator[str]:
    """The address of a student of pairs behind HTTP."""
    program = [sys.executable, str(EXAMPLES / "student_in_a_service.py"), str(roles_run), "--port", "0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.mark.filterwarnings("ignore:The number of components")  # of so few words
def test_pairs_are_made_of_a_tasks_own_sentences(tmp_path: Path) -> None:
    firsts = [f"the {animal} can {verb} well" for animal in ("cat", "dog", "emu") for verb in ("swim", "jump", "run")]
    seconds = [text.replace("can", "will") for text in firsts]
    pq.write_table(pa.table({"sentence1": firsts, "sentence2": seconds, "label": [0] * 9}), tmp_path / "task.parquet")
    program = runpy.run_path(str(EXAMPLES / "made_pairs.py"))
    program["main"](str(tmp_path / "task.parquet"), str(tmp_path / "pairs.parquet"))
    rows = [tuple(row.values()) for row in pq.read_table(tmp_path / "pairs.parquet").to_pylist()]
    swapped, edited, similar, shuffled = (rows[9 * kind : 9 * (kind + 1)] for kind in range(4))
    assert swapped == list(zip(seconds, firsts, strict=True))
    assert [first for first, _ in edited] == [first for first, _ in similar] == firsts
    assert sum(second in seconds for _, second in edited) < 3
    assert any("not" in second.split() for _, second in edited)
    assert all(second in seconds and second != own for (_, second), own in zip(similar, seconds, strict=True))
    assert sorted(second for _, second in shuffled) == sorted(seconds)


def test_a_service_answers_and_tells_what_is_wrong(service: str) -> None:
    [answer] = post(service, {"sentences1": ["the dog bites the man"], "sentences2": ["the man bites the dog"]})
    probabilities = answer["probabilities"]
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-6)
    assert probabilities[answer["label"]] == max(probabilities.values())
    mistakes: list[object] = [{"sentences1": ["one sentence"]}, {"sentences1": [1], "sentences2": ["a"]}, {}, []]
    for wrong in mistakes:
        with pytest.raises(HTTPError, match="400") as refused:
            post(service, wrong)
        assert json.load(refused.value)["error"]


def post(url: str, question: object) -> Any:
    request = Request(url, json.dumps(question).encode())  # noqa: S310  (our own service)
    with urlopen(request, timeout=60) as answer:  # noqa: S310
        return json.load(answer)
