"""The engine in the SQL of other programs: it answers there what it answers in Python."""

import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from student.engine.build import DUCKDB_NAME, EXTENSIONS, duckdb_footer
from student.export.engine_file import write_engine_file
from student.model.student import TokenLabelStudent
from tests.helpers.certificates import certify
from tests.helpers.engine import LIBRARY, LINK, SCORE, SHAPE, WARNINGS, made, needs_engine, write, written
from tests.helpers.toy_students import student

if LIBRARY.exists():
    from student.engine.python.distill_student import MultiTaskPredictor, Predictor

pytestmark = [needs_engine, pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler")]
SQLITE_NAME = "distill_sqlite.so"
Ask = Callable[[str], list[tuple[Any, ...]]]
TEXTS = ["the there é", "", 'a\'b "ab" [MASK]', "longer than the twelve bytes that DuckDB keeps in place"]
VALUES = ", ".join("('" + text.replace("'", "''") + "')" for text in TEXTS)


class AskError(Exception):
    """A query failed. SQLite's shell says so on stderr."""


@pytest.fixture(scope="module")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the extensions. They link to the library, which is compiled already."""
    folder = tmp_path_factory.mktemp("extensions")
    shutil.copy(LIBRARY, folder)
    flags = ["-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", *WARNINGS]
    for kind, name in (("--sqlite", SQLITE_NAME), ("--duckdb", DUCKDB_NAME)):
        subprocess.run(["c++", *flags, EXTENSIONS[kind], "-o", name, *LINK], cwd=folder, check=True)
    with (folder / DUCKDB_NAME).open("ab") as file:
        file.write(duckdb_footer())
    return folder


def in_sqlite(extensions: Path, folder: Path) -> Ask:
    def ask(query: str) -> list[tuple[Any, ...]]:
        command = ["sqlite3", "-json", ":memory:", f".load {extensions / SQLITE_NAME}", query]
        done = subprocess.run(command, cwd=folder, text=True, capture_output=True)
        if done.returncode:
            raise AskError(done.stderr)
        return [tuple(row.values()) for row in json.loads(done.stdout)] if done.stdout else []

    return ask


def with_extension(extensions: Path) -> duckdb.DuckDBPyConnection:
    """A connection to DuckDB that has the extension."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": True})
    connection.load_extension(str(extensions / DUCKDB_NAME))
    return connection


def in_duckdb(extensions: Path) -> Ask:
    connection = with_extension(extensions)

    def ask(query: str) -> list[tuple[Any, ...]]:
        try:
            return connection.sql(query).fetchall()
        except duckdb.Error as error:
            raise AskError(str(error)) from error

    return ask


@pytest.fixture(params=["sqlite", "duckdb"])
def ask(request: pytest.FixtureRequest, extensions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.chdir(tmp_path)
    if request.param == "duckdb":
        return in_duckdb(extensions)
    if shutil.which("sqlite3") is None:
        pytest.skip("needs SQLite's shell")
    return in_sqlite(extensions, tmp_path)


def value(answer: Any) -> Any:
    """An answer that is JSON, or a number; SQLite gives numbers as such."""
    return json.loads(answer) if isinstance(answer, str) else answer


def test_a_query_answers_what_python_answers(ask: Ask, tmp_path: Path) -> None:
    for name in ("hybrid", "diffcat, labels", "score, short words"):
        path = written(name, tmp_path)
        predictor, is_pair = Predictor(path), made(name)[0].config.is_pair
        given = f"'{path.name}', text" + ", 'ab'" * is_pair
        answers = predictor.predict(TEXTS, ["ab"] * len(TEXTS)) if is_pair else predictor.predict(TEXTS)
        rows = f"with texts(text) as (values {VALUES})"
        found = ask(f"{rows} select distill_predict({given}), distill_scores({given}) from texts")
        assert len(found) == len(TEXTS)
        for (label, scores), answer in zip(found, answers, strict=True):
            if "score" in answer:
                assert value(label) == value(scores) == pytest.approx(answer["score"], rel=1e-6)
                continue
            assert (value(label) if isinstance(answer["label"], list) else label) == answer["label"]
            assert value(scores) == pytest.approx(answer["probabilities"], rel=1e-6)
        nothing = f"select distill_predict('{path.name}', null{', null' * is_pair}) as a"
        assert ask(nothing) == [(None,)]


def test_a_query_abstains_where_python_does(ask: Ask, tmp_path: Path) -> None:
    (one, tokenizer), rows = made("hybrid"), f"with texts(text) as (values {VALUES})"
    one.save(tmp_path)
    certify(tmp_path, 0.5)
    write_engine_file(dict.fromkeys(("a", "b"), (one, tmp_path)), tokenizer, tmp_path / "two.distill")
    write(one, tokenizer, tmp_path, tmp_path / "one.distill")
    expected = [answer["label"] for answer in Predictor(tmp_path / "one.distill").predict(TEXTS, abstain=True)]
    assert 0 < expected.count("abstain") < len(TEXTS)
    assert ask(f"{rows} select distill_predict_or_abstain('one.distill', text) from texts") == [(x,) for x in expected]
    of_both = ask(f"{rows} select distill_predict_or_abstain('two.distill', text) from texts")
    assert [value(answer) for (answer,) in of_both] == [{"a": x, "b": x} for x in expected]
    (plain, *_) = Predictor(tmp_path / "one.distill").predict(TEXTS)
    assert ask(f"{rows} select distill_predict('one.distill', text) from texts")[0] == (plain["label"],)
    for name in ("hybrid", "score, short words"):
        with pytest.raises(AskError, match="no certificate"):
            ask(f"select distill_predict_or_abstain('{written(name, tmp_path / 'none')}', 'a')")


def test_each_task_of_a_file_answers(ask: Ask, tmp_path: Path) -> None:
    classes, tokenizer = made("hybrid")
    score = student(target=SCORE, head="linear", **SHAPE)
    score.encoder = classes.encoder
    words = TokenLabelStudent(made("words")[0].config, classes.encoder).eval()  # which take no text
    tasks = {"words": (words, tmp_path), "hybrid": (classes, tmp_path), "score": (score, tmp_path)}
    write_engine_file(tasks, tokenizer, tmp_path / "tasks.distill")
    ((label, scores),) = ask("select distill_predict('tasks.distill', 'a b'), distill_scores('tasks.distill', 'a b')")
    (answer,) = MultiTaskPredictor(tmp_path / "tasks.distill").predict(["a b"])
    assert value(label).keys() == answer.keys() == {"hybrid", "score"}
    assert value(label)["hybrid"] == answer["hybrid"]["label"]
    assert value(scores)["hybrid"] == pytest.approx(answer["hybrid"]["probabilities"], rel=1e-6)
    assert value(label)["score"] == value(scores)["score"] == pytest.approx(answer["score"]["score"], rel=1e-6)
    with pytest.raises(AskError):
        ask("select distill_predict('tasks.distill', 'a', 'b')")


def test_what_a_student_does_not_take_is_an_error(ask: Ask, tmp_path: Path) -> None:
    path, words = (written(name, tmp_path) for name in ("hybrid", "words"))
    for wrong in ("'missing.distill', 'a'", f"'{path.name}', 'a', 'b'", f"'{words.name}', 'a'"):
        with pytest.raises(AskError):
            ask(f"select distill_predict({wrong})")


def test_rows_of_duckdb_may_be_null_and_name_different_files(extensions: Path, tmp_path: Path) -> None:
    ask = in_duckdb(extensions)
    students = [written("hybrid", tmp_path).rename(tmp_path / f"{n}.distill") for n in range(2)]
    pairs = written("diffcat, labels", tmp_path)
    texts = [None if n % 7 == 0 else " ".join(["the", "a", "there", "ab"][n % 4 :][: n % 3]) for n in range(5000)]
    rows = [(str(students[n % 2]) if n % 11 else None, text, "ab" if n % 5 else None) for n, text in enumerate(texts)]
    connection = with_extension(extensions)
    connection.execute("create table rows (number int, file varchar, first varchar, second varchar)")
    connection.executemany("insert into rows values (?, ?, ?, ?)", [(n, *row) for n, row in enumerate(rows)])
    single = connection.sql("select distill_predict(file, first) from rows order by number").fetchall()
    chosen = connection.sql("select number, distill_predict(file, first) from rows where number % 3 = 1").fetchall()
    assert [(single[number][0],) for number, _ in chosen] == [(label,) for _, label in chosen]
    both = connection.sql(f"select distill_predict('{pairs}', first, second) from rows order by number").fetchall()
    predictor, of_pairs = Predictor(students[0]), Predictor(pairs)
    expected = {text: predictor.predict([text])[0]["label"] for text in set(texts) if text is not None}
    expected_both = {text: of_pairs.predict([text], ["ab"])[0]["label"] for text in expected}
    assert len(expected) > 3
    for (file, text, second), (label,), (labels,) in zip(rows, single, both, strict=True):
        assert label == (None if file is None or text is None else expected[text])
        assert labels is None if text is None or second is None else json.loads(labels) == expected_both[text]
    assert ask(f"select distill_predict('{students[0]}', 'a')") == [(predictor.predict(["a"])[0]["label"],)]


def test_duckdb_opens_a_file_again_that_was_replaced(extensions: Path, tmp_path: Path) -> None:
    ask, path = in_duckdb(extensions), tmp_path / "student.distill"
    for name in ("hybrid", "score, short words"):
        written(name, tmp_path).replace(path)
        (answer,) = Predictor(path).predict(["the there"])
        expected = answer.get("probabilities", answer.get("score"))
        ((scores,),) = ask(f"select distill_scores('{path}', 'the there')")
        assert json.loads(scores) == pytest.approx(expected, rel=1e-6)


def test_duckdb_answers_from_several_threads(extensions: Path, tmp_path: Path) -> None:
    paths = [written("hybrid", tmp_path).rename(tmp_path / f"{n}.distill") for n in range(9)]  # more than are kept open
    expected = Predictor(paths[0]).predict(["the there"])[0]["label"]
    connection = with_extension(extensions)
    found: list[tuple[str]] = []

    def work(own: duckdb.DuckDBPyConnection) -> None:
        for path in paths:
            query = f"select distinct distill_predict('{path}', 'the there') from range(10000) where range >= 0"
            found.extend(own.sql(query).fetchall())

    threads = [threading.Thread(target=work, args=(connection.cursor(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(expected,)] * 36
