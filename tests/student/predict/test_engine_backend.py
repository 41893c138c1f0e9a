"""A student's file through every door that takes the folder of its run: the same answers, without torch."""

import csv
import json
import os
import pickle  # noqa: TID251 - what multiprocessing does
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from typer.testing import CliRunner

from distill.apps.app_settings import ServeSettings
from distill.apps.serve.app import App
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.served import Served
from distill.commands import app
from pipeline.errors import ConfigError, DataError, IntegrityError
from student.export.export import export
from student.predict.engine_backend import EngineBackend
from student.predict.predictor import Predictor
from student.run_settings import ExportSettings
from student.sql_functions import register
from student.texts import has_text
from tests.helpers.asgi import ask
from tests.helpers.certificates import certify
from tests.helpers.engine import needs_engine
from tests.helpers.engine_files import joined, parts
from tests.helpers.formats import FOLDER
from tests.helpers.messages import naming

pytestmark = needs_engine
TEXTS = ["the food was lovely .", "", "the wine was 不 awful .", "[MASK] \0 wine", "the food was lovely . " * 40]
RUNS = ("run-pairs",)


def file_of(run: Path, folder: Path) -> Path:
    path = folder / f"{run.name}.distill"
    export(ExportSettings(run=run, file=path))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    return {name: file_of(FOLDER / name, folder) for name in RUNS}


@pytest.mark.parametrize("name", RUNS)
def test_a_file_answers_as_its_folder(name: str, files: dict[str, Path]) -> None:
    folder, file = Predictor(FOLDER / name), Predictor(files[name])
    assert isinstance(file.backend, EngineBackend)
    assert file.info.model_dump() == file.info.model_dump() | folder.info.model_dump()
    np.testing.assert_allclose(file.logits(TEXTS), folder.logits(TEXTS), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(file.encode(TEXTS), folder.encode(TEXTS), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(file.num_tokens(TEXTS), folder.num_tokens(TEXTS))
    assert file.backend.text_columns() == folder.backend.text_columns()
    assert [a["label"] for a in file(TEXTS)] == [a["label"] for a in folder(TEXTS)]
    words = [[word["word"] for word in answer["words"]] for answer in file.explain(TEXTS)]
    assert words == [[word["word"] for word in answer["words"]] for answer in folder.explain(TEXTS)]
    assert file.logits([]).shape == folder.logits([]).shape


def test_pairs_and_the_costs_of_labels(roles_run: Path, tmp_path: Path) -> None:
    path = file_of(roles_run, tmp_path)
    costs = dict.fromkeys(Predictor(path).info.target.names[:1], 30.0)
    folder, file = Predictor(roles_run, costs=costs), Predictor(path, costs=costs)
    pairs = [("anna paid ben .", "ben was paid by anna ."), ("", "anna"), ("felix helped emma .", "")]
    np.testing.assert_allclose(file.logits(pairs), folder.logits(pairs), rtol=1e-4, atol=1e-4)
    assert [a["label"] for a in file(pairs)] == [a["label"] for a in folder(pairs)]
    assert {a["label"] for a in file(pairs)} == set(costs)
    first, second = map(list, zip(*pairs, strict=True))
    np.testing.assert_array_equal(file.num_tokens(first, second), folder.num_tokens(first, second))
    with pytest.raises(ConfigError, match="'roles'"):
        file(["a"])


def test_a_predictor_of_a_file_travels_with_its_path(files: dict[str, Path]) -> None:
    predictor = Predictor(files["run-pairs"], costs={Predictor(files["run-pairs"]).info.target.names[0]: 9})
    other = pickle.loads(pickle.dumps(predictor))  # noqa: S301
    np.testing.assert_array_equal(other.logits(TEXTS), predictor.logits(TEXTS))
    np.testing.assert_array_equal(other.bias_C, predictor.bias_C)


def test_what_a_file_cannot_do_is_refused_by_name(files: dict[str, Path], tmp_path: Path) -> None:
    path = files["run-pairs"]
    with pytest.raises(ConfigError, match=naming(path, "certify", "export")):
        Predictor(path, abstain=True)
    with pytest.raises(ConfigError, match=naming("'mnli'", path)):
        Predictor(path, task="mnli")
    with pytest.raises(ConfigError, match=naming(path)):
        _ = Predictor(path).student
    with pytest.raises(DataError, match=naming("sentence 1", "None")):
        Predictor(path).logits(["a", None])
    with pytest.raises(DataError, match=naming("sentence 1", r"\udc80")):
        Predictor(path).encode(["a", "b\udc80"])
    text = tmp_path / "notes.txt"
    text.write_text("not a student")
    with pytest.raises(IntegrityError, match=naming(text)):
        Predictor(text)


@pytest.mark.parametrize("change", ['{"task":5}', '{"tas":1}', "nothing"])
def test_a_file_that_describes_itself_wrongly_is_refused(files: dict[str, Path], change: str, tmp_path: Path) -> None:
    header, data = parts(files["run-pairs"].read_bytes())
    header["__metadata__"]["distill"] = change
    path = tmp_path / "x.distill"
    path.write_bytes(joined(header, data))
    with pytest.raises(IntegrityError, match=naming(path)):
        Predictor(path)


@pytest.mark.parametrize(
    "change",
    [{"threshold": value} for value in (float("nan"), float("inf"), -2.0, 1.5, "0.5", None, True)]
    + [{"confidence": 1.0}, {"disagreement": 0}, {"answered": -1}, {"num_rows": 0.5}, None],
)
def test_a_certificate_with_other_values_is_refused(change: dict[str, Any] | None, tmp_path: Path) -> None:
    run, path = shutil.copytree(FOLDER / "run-pairs", tmp_path / "run"), tmp_path / "x.distill"
    certify(run, 0.5)
    export(ExportSettings(run=run, file=path))
    header, data = parts(path.read_bytes())
    (info,) = json.loads(header["__metadata__"]["distill"])
    # Without one, the two descriptions differ: the engine has its margin.
    info["certificate"] = None if change is None else info["certificate"] | change
    header["__metadata__"]["distill"] = json.dumps([info])
    assert Predictor(path, abstain=True).threshold == 0.5
    path.write_bytes(joined(header, data))
    with pytest.raises(IntegrityError, match=naming(path)):
        Predictor(path)


def test_sql_reads_a_file(files: dict[str, Path]) -> None:
    path, expected = files["run-pairs"], Predictor(FOLDER / "run-pairs")(TEXTS[:3])
    with duckdb.connect() as own:
        register(own, path)
        query = f"select predict('{path}', t), scores('{path}', t) from (select unnest(?) as t)"
        rows = own.execute(query, [TEXTS[:3]]).fetchall()
        assert [label for label, _ in rows] == [answer["label"] for answer in expected]
        np.testing.assert_allclose([p for _, p in rows], [[*a["probabilities"].values()] for a in expected], atol=1e-5)
        with pytest.raises(duckdb.Error, match=naming(path)):
            own.execute(f"select predict_or_abstain('{path}', 'a')").fetchall()


def test_a_server_answers_from_a_file(files: dict[str, Path]) -> None:
    served = Served(files["run-pairs"], Metrics(1))
    assert served.name == "run-pairs"
    server = App({served.name: served}, ServeSettings(runs=("run",)), Metrics(1))
    (answer,) = Predictor(FOLDER / "run-pairs")(TEXTS[:1])
    (best, *_) = ask(server, "POST", "/predict", {"inputs": TEXTS[0]}).json
    assert best["label"] == answer["label"]
    assert best["score"] == pytest.approx(answer["probabilities"][answer["label"]], abs=1e-5)
    assert ask(server, "GET", "/info").json["max_input_length"] == served.student.max_seq_length


PROGRAM = """
import sys
from distill.commands import app
texts = sys.argv[1:3]
for arguments in (texts, [*texts, "--explain"], [texts[0], "--file", "rows.csv", "--output", "o.csv"]):
    try:
        app(["predict", *arguments])
    except SystemExit as end:
        assert not end.code, end.code
from student.sql_functions import register
from student.texts import has_text
from distill.apps.serve.server import serve
assert not {"torch", "transformers", "datasets", "teacher.dump"} & set(sys.modules)
"""


def test_no_command_on_a_file_imports_torch(files: dict[str, Path], tmp_path: Path) -> None:
    texts = [text for text in TEXTS if has_text([text])][:3]
    with (tmp_path / "rows.csv").open("w") as stream:
        csv.writer(stream).writerows([["sentence1"], *[[text] for text in texts]])
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(files["run-pairs"]), texts[0]]
    subprocess.run(command, check=True, timeout=300, cwd=tmp_path, env=environment)
    with (tmp_path / "o.csv").open() as stream:
        labels = [row["label"] for row in csv.DictReader(stream)]
    assert labels == [answer["label"] for answer in Predictor(FOLDER / "run-pairs")(texts)]


SERVER = """
import sys
from pathlib import Path
absent = {"torch", "pyarrow", "duckdb", "scipy", "tokenizers", "huggingface_hub", "fsspec", "jinja2"}
sys.modules |= dict.fromkeys(absent)
import distill.apps.serve.server
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.served import open_served
for path in sys.argv[2:]:
    (served,) = open_served(Path(path), Metrics(1))
    texts = [sys.argv[1]], [sys.argv[1]] if served.student.is_pair else None
    print(served.predictor(*texts)[0].get("label"), served.ranked("softmax", *texts, served.predictor.logits(*texts)))
"""


def test_a_server_of_files_needs_no_large_library(files: dict[str, Path]) -> None:
    # These are missing in the image for serving.
    command = [sys.executable, "-c", SERVER, TEXTS[0], *map(str, files.values())]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    answers = subprocess.run(command, check=True, timeout=300, env=environment, capture_output=True, text=True).stdout
    assert len(answers.splitlines()) == len(files)


def test_a_command_that_needs_torch_asks_for_the_folder(files: dict[str, Path], tmp_path: Path) -> None:
    shutil.copy(files["run-pairs"], tmp_path)
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run-pairs.distill")])
    assert result.exit_code == 2
    assert "run-pairs.distill: " in result.stderr.replace("\n", "")
    assert "Traceback" not in result.stderr
