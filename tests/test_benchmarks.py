"""Every benchmark still runs: a small run of each, whose times do not matter."""

import importlib
import pkgutil
import sys
from pathlib import Path

import pytest

import tests.benchmarks
from pipeline.sets.kinds.examples import ExampleSet
from tests.benchmarks import picture
from tests.benchmarks.__main__ import BENCHMARKS

SMALL: dict[str, dict[str, object]] = {
    "answers": {"TIMES": 1},
    "augmentation": {"SENTENCES": 1, "VOCABULARY": 200},
    "batching": {"ROWS": 4, "FIXED_ROWS": 2, "VOCABULARY": 1100},
    "macros": {"ROWS": 1000},
    "mlm_dump": {"ROWS": 4},
    "mlm_head": {"POSITIONS": 20, "FEATURES": 8, "VOCABULARY": 300},
    "products": {"VOCABULARY": 300, "SEQUENCES": 32},
    "storage": {},
    "store_queries": {"ROUNDS": 1},
    "tokenization": {"SENTENCES": 50, "PROGRAMS": "json/*.py"},
    "training_step": {"VOCABULARY": 300, "BATCHES": 2},
}
# What a script is given here. The others need GLUE, a trained teacher, a browser, Ray, or a server's minutes.
ARGUMENTS: dict[str, list[str]] = {
    "certificates": ["{run}", "{set}", "source_row % 2 = 0"],
    "dump": ["--rows", "8", "--rounds", "1"],
    "storage": ["--rows", "100", "--positions", "100"],
    "store_queries": ["--rows", "400"],
}
TABLES = {"__main__", "picture", "random_student", "ratios", "row_formats"}
ELSEWHERE = {"engine", "readers", "throughput"}  # have tests of their own
NEED_MORE = {"attention", "bag_of_words", "cluster_kills", "documents", "files", "html", "labels", "layer_codecs"}
NEED_MORE |= {"scores", "serving", "words"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, sizes in SMALL.items():
        module = importlib.import_module(f"tests.benchmarks.{name}")
        for size, value in sizes.items():
            monkeypatch.setattr(module, size, value)


def test_every_benchmark_is_known_here_and_can_be_imported() -> None:
    found = {module.name for module in pkgutil.iter_modules(tests.benchmarks.__path__)}
    assert found == SMALL.keys() | ARGUMENTS.keys() | TABLES | ELSEWHERE | NEED_MORE
    for name in (*found, "growth.__main__", "growth.steps", "growth.data", "growth.draw"):
        importlib.import_module(f"tests.benchmarks.{name}")


def test_the_picture_of_the_readme_has_every_point_of_its_table(tmp_path: Path) -> None:
    models = picture.points()
    picture.draw(models, tmp_path / "picture.svg")
    assert len(models) == 7
    for drawn in (tmp_path / "picture.svg", picture.PICTURE):
        assert all(f">{name}: {model[0]}<" in drawn.read_text() for name, model in models.items())


@pytest.mark.slow
@pytest.mark.parametrize("title", BENCHMARKS)
def test_every_table_of_make_bench_is_made(title: str) -> None:
    alternatives = BENCHMARKS[title]()
    assert alternatives
    for run in alternatives.values():
        run()


@pytest.mark.slow
@pytest.mark.parametrize("name", ARGUMENTS)
def test_scripts_print_their_tables(
    name: str,
    opinion_run: Path,
    opinion_set: ExampleSet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [part.format(run=opinion_run, set=opinion_set.root) for part in ARGUMENTS[name]]
    monkeypatch.setattr(sys, "argv", [name, *given])
    module = importlib.import_module(f"tests.benchmarks.{name}")
    module.main(*given) if name == "certificates" else module.main()
    assert len(capsys.readouterr().out.splitlines()) > 2
