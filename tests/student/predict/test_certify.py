"""``distill certify`` and who obeys its certificate."""

import json
import pickle  # noqa: TID251 - what multiprocessing does
import shutil
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import ConfigError, IntegrityError
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import KEYS, ExampleSet, keys_sha256
from pipeline.tasks.target import margins, softmax
from student.export.export import export
from student.model.student import Student
from student.predict.certificate import CERTIFICATE_FILE, fewest_rows, read_certificate
from student.predict.predictor import Predictor
from student.run_settings import ExportSettings
from student.sql_functions import register
from student.train import train
from tests.helpers.commands import invoke
from tests.helpers.engine import needs_engine
from tests.helpers.messages import naming
from tests.helpers.rewritten_sets import Row, rewritten
from tests.helpers.students import tiny_config

HELD_OUT = "source_row % 2 = 0"
FLAGS = ("--where", HELD_OUT, "--disagreement", "0.8", "--confidence", "0.8")


@pytest.fixture(scope="module")
def half_run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained on half of the rows; read only."""
    folder = tmp_path_factory.mktemp("half_run")
    config = tiny_config(store / "opinion", folder, where=f"not ({HELD_OUT})", alpha=0, num_train_epochs=10)
    train(config, "distill train-student")
    return folder


@pytest.fixture
def run(half_run: Path, tmp_path: Path) -> Path:
    """The same, certified."""
    folder = Path(shutil.copytree(half_run, tmp_path / "run"))
    result = invoke("certify", folder, *FLAGS)
    assert result.exit_code == 0, result.stderr
    assert "margin" in result.stdout
    assert "warning: " in result.stderr
    return folder


def test_it_counts_what_the_student_and_its_teacher_say_of_the_held_out_rows(
    run: Path, opinion_set: ExampleSet
) -> None:
    certificate = read_certificate(run)
    rows = opinion_set.read("train", ("*",), HELD_OUT)
    student_NC = Predictor(run).logits(rows.column("sentence1").to_pylist())
    teacher_N = np.array(rows.column("logits").to_pylist()).argmax(axis=1)
    assert certificate.num_rows == rows.num_rows == 48
    assert certificate.rows_sha256 == keys_sha256(rows)
    assert certificate.certified is not None
    sure_N = margins(softmax(student_NC)) > certificate.certified.threshold
    assert certificate.certified.answered == sure_N.sum()
    assert certificate.certified.disagreements == (student_NC.argmax(axis=1) != teacher_N)[sure_N].sum()
    assert certificate.trials[-1].disagreements == (student_NC.argmax(axis=1) != teacher_N).sum()


def with_threshold(run: Path, threshold: float) -> None:
    """Puts another threshold into a certificate."""
    values = read_record(run / CERTIFICATE_FILE)
    values["certified"]["threshold"] = threshold
    (run / CERTIFICATE_FILE).write_text(json.dumps(values))


@pytest.mark.parametrize("door", ["folder", pytest.param("file", marks=needs_engine)])
def test_unsure_answers_are_abstentions_everywhere_where_that_is_asked(run: Path, tmp_path: Path, door: str) -> None:
    texts = [
        f"the {thing} was {word} ." for thing in ("food", "wine") for word in ("dull", "lovely", "awful", "perfect")
    ]
    margin_N = margins(softmax(Predictor(run).logits(texts)))
    with_threshold(run, float(np.median(margin_N)))
    if door == "file":
        export(ExportSettings(run=run, file=tmp_path / "student.distill"))
        shutil.rmtree(run)
        run = tmp_path / "student.distill"
    plain = [row["label"] for row in Predictor(run)(texts)]
    expected = [
        label if margin > np.median(margin_N) else "abstain" for label, margin in zip(plain, margin_N, strict=True)
    ]
    assert 0 < expected.count("abstain") < len(texts)
    for predictor in (abstaining := Predictor(run, abstain=True), pickle.loads(pickle.dumps(abstaining))):  # noqa: S301
        assert [row["label"] for row in predictor(texts)] == expected
    (tmp_path / "in.txt").write_text("\n".join(texts))
    for flags, labels in (((), plain), (("--abstain",), expected)):
        output = tmp_path / f"out{len(flags)}.parquet"
        assert invoke("predict", run, "--file", tmp_path / "in.txt", "--output", output, *flags).exit_code == 0
        assert pq.read_table(output).column("label").to_pylist() == labels
        lines = "".join(json.dumps({"sentence1": text}) + "\n" for text in texts)
        piped = CliRunner().invoke(app, ["predict", str(run), "--file", "-", *flags], input=lines)
        assert [json.loads(line)["label"] for line in piped.stdout.splitlines()] == labels
    with duckdb.connect() as connection:
        register(connection, run)
        query = f"select predict('{run}', t), predict_or_abstain('{run}', t) from (select unnest($1) as t)"
        assert connection.execute(query, [texts]).fetchall() == list(zip(plain, expected, strict=True))


def test_rows_that_were_trained_on_prove_nothing(half_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(half_run, tmp_path / "run"))
    result = invoke("certify", run, "--where", f"not ({HELD_OUT})")
    assert result.exit_code == 2
    assert "not (source_row % 2 = 0)" in result.stderr.replace("\n", " ")
    assert not (run / CERTIFICATE_FILE).exists()
    result = invoke("certify", run, "--where", "true", *FLAGS[2:], "--json")
    assert "48 of 96 rows" in result.stderr
    assert json.loads(result.stdout)["num_rows"] == 48


def test_what_cannot_be_shown_is_not_claimed(half_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(half_run, tmp_path / "run"))
    result = invoke("certify", run, "--where", HELD_OUT, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["coverage"] == 0
    trials = json.loads(result.stdout)["trials"]
    first = next(
        trial for trial in trials if trial["answered"] >= fewest_rows(48, 0.01, 0.95) or trial["answered"] == 48
    )
    said = " ".join(result.stderr.split())
    assert all(str(count) in said for count in (first["answered"], 48, first["disagreements"]))
    assert not (run / CERTIFICATE_FILE).exists()


@pytest.mark.parametrize(("where", "wrong"), [("nope = 1", "'nope'"), ("source_row =", "SQL")])
def test_only_the_condition_is_told_of_that_was_given(half_run: Path, where: str, wrong: str) -> None:
    result = invoke("certify", half_run, "--where", where)
    said = " ".join(result.stderr.split())
    assert result.exit_code == 2
    assert f"'{where}'" in said
    assert wrong in said.replace('"', "'")
    assert "variant" not in said


def test_a_failed_proof_leaves_the_one_that_is_there(run: Path) -> None:
    before = (run / CERTIFICATE_FILE).read_text()
    result = invoke("certify", run, "--where", HELD_OUT)
    assert result.exit_code == 1
    assert CERTIFICATE_FILE in result.stderr
    assert (run / CERTIFICATE_FILE).read_text() == before


def test_a_set_in_the_place_of_the_one_trained_on_proves_nothing(opinion_set: ExampleSet, tmp_path: Path) -> None:
    """Its rows have the same keys, so that of those trained on half would seem new."""
    shutil.copytree(opinion_set.root, tmp_path / "sets" / "opinion")
    run = tmp_path / "run"
    train(tiny_config(tmp_path / "sets" / "opinion", run, where=f"not ({HELD_OUT})", num_train_epochs=1), "")
    (tmp_path / "sets" / "opinion").rename(tmp_path / "old")

    def turned(_: str, rows: list[Row]) -> list[Row]:
        keys = [{name: row[name] for name in KEYS} for row in rows]
        return [row | key for row, key in zip(reversed(rows), keys, strict=True)]

    rewritten(opinion_set, tmp_path / "sets" / "opinion", turned)
    result = invoke("certify", run, *FLAGS)
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "sets/opinion: " in said
    assert not (run / CERTIFICATE_FILE).exists()


def test_rows_of_the_run_that_the_embeddings_are_from_are_not_looked_at(
    half_run: Path, store: Path, tmp_path: Path
) -> None:
    train(tiny_config(store / "opinion", tmp_path, where=f"not ({HELD_OUT})", init=half_run), "")
    assert "--init" in invoke("certify", tmp_path, *FLAGS).stderr
    run = Path(shutil.copytree(half_run, tmp_path / "noise"))
    assert "--init" not in invoke("certify", run, *FLAGS).stderr


def test_a_certificate_is_of_these_weights_and_whole(run: Path, opinion_run: Path, ratings_run: Path) -> None:
    with pytest.raises(ConfigError, match=naming(f"{opinion_run}: ", f"distill certify {opinion_run}")):
        Predictor(opinion_run, abstain=True)
    with pytest.raises(IntegrityError, match=naming("run/nowhere: ")):
        Predictor(run / "nowhere", abstain=True)
    result = invoke("certify", ratings_run, "--where", "true")
    assert (result.exit_code, "scores" in result.stderr) == (2, True)
    values = read_record(run / CERTIFICATE_FILE)
    (run / CERTIFICATE_FILE).write_text(json.dumps(values | {"certified": None}))
    with pytest.raises(ConfigError, match=naming("run: ", "0.8")):
        Predictor(run, abstain=True)
    other = Student.load(run)
    other.head.load_state_dict({name: 2 * tensor for name, tensor in other.head.state_dict().items()})
    other.save(run)
    with pytest.raises(ConfigError, match=naming("run/certificate.json: ", "distill certify")):
        Predictor(run, abstain=True)
    (run / CERTIFICATE_FILE).write_text('{"certified": null}')
    with pytest.raises(IntegrityError, match=naming("run/certificate.json: ")):
        Predictor(run, abstain=True)


def test_a_weaker_certificate_replaces_a_stricter_one_only_where_that_is_wanted(run: Path) -> None:
    weaker = ("--where", HELD_OUT, "--disagreement", "0.9", "--confidence", "0.8")
    before = (run / CERTIFICATE_FILE).read_bytes()
    refused = invoke("certify", run, *weaker)
    assert refused.exit_code == 2
    assert all(part in refused.stderr for part in (str(run / CERTIFICATE_FILE), "--disagreement 0.9", "--replace"))
    assert (run / CERTIFICATE_FILE).read_bytes() == before
    assert invoke("certify", run, *weaker, "--replace").exit_code == 0
    assert read_certificate(run).disagreement == 0.9
    assert invoke("certify", run, *FLAGS).exit_code == 0  # stricter again
