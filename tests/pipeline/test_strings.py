import os
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from distill.commands import app
from distill.commands.command import reports_errors
from pipeline.errors import ConfigError, QueryError
from pipeline.parsing import parse_yaml
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.settings import Settings
from pipeline.sql.read_only_query import check_condition
from pipeline.untrusted import WRITTEN, flag_problem, string_problem, strings_in
from tests.helpers.commands import invoke
from tests.helpers.messages import naming

LATIN = os.fsdecode(b"caf\xe9")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_what_utf8_can_write_is_fit(text: str) -> None:
    assert string_problem(text) is None


@given(st.text(), st.sampled_from("\0\ud800\udce9\udfff"), st.text())
def test_a_nul_or_half_a_surrogate_pair_is_not(before: str, character: str, after: str) -> None:
    problem = string_problem(before + character + after)
    assert problem is not None
    problem.encode("ascii")  # any terminal can show it


def test_strings_are_found_at_any_depth_and_of_yaml_that_refers_to_itself() -> None:
    assert sorted(strings_in({"a": ["b", {"c": Path("d")}], "e": (1, None, "f")})) == [*"abcdef"]
    aliases = "a: &a [x, x]\n" + "".join(
        f"{n}: &{n} [*{p}, *{p}, *{p}, *{p}]\n" for p, n in zip("abcde", "bcdef", strict=True)
    )
    assert set(strings_in(parse_yaml(aliases, "aliases.yaml"))) == {*"abcdefx"}


@pytest.mark.parametrize(
    ("text", "second", "first"),
    [
        ("labels: [bad, good]\n'labels': [good, bad]", 2, 1),
        ("columns:\n  text: a\n  label: b\n  text: c", 4, 2),
        ("- {a: 1, b: 2,\n   a: 3}", 2, 1),
        ("yes: 1\non: 2", 2, 1),
    ],
)
def test_a_key_twice_in_yaml_is_refused_with_both_lines(text: str, second: int, first: int) -> None:
    with pytest.raises(ConfigError, match=naming("task.yaml", f"line {second}: ", f"line {first}")):
        parse_yaml(text, "task.yaml")


def test_all_keys_that_are_twice_are_reported() -> None:
    with pytest.raises(ConfigError, match=naming("line 3: ", "'a'", "line 4: ", "'b'")):
        parse_yaml("a: 1\nb: 2\na: 3\nb: 4", "task.yaml")


def test_merge_keys_may_be_overridden() -> None:
    text = "base: &base {a: 1, b: 2}\nmore: &more {<<: *base, a: 3}\nlast: {<<: [*more, *base], b: 4}"
    assert parse_yaml(text, "task.yaml")["last"] == {"a": 3, "b": 4}


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_devices_are_no_outputs(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for device in ("/dev/stdout", "/dev/null", "/dev/fd/1", "/proc/self/fd/1", tmp_path / "pipe"):
        problem = flag_problem(name, device)
        assert problem is not None
        assert str(device) in problem
    for place in (tmp_path, tmp_path / "new", "/dev/shm/new", "dev/null"):  # noqa: S108
        assert flag_problem(name, place) is None
    assert flag_problem("file", "/dev/stdin") is None


class Flags(Settings):
    one: str = "x"
    several: tuple[Path, ...] = ()


@pytest.mark.parametrize("wrong", [LATIN, "a\0b"])
def test_every_flag_is_checked_and_named(wrong: str) -> None:
    with pytest.raises(ConfigError, match=naming("--one")):
        Flags.from_flags(one=wrong)
    with pytest.raises(ConfigError, match=naming("--several")):
        Flags.from_flags(several=(Path("right"), Path(wrong)))


@pytest.mark.parametrize("text", ['name: "a\\0b"', 'labels: [a, "\\udce9"]', '"\\ud800": 1'])
def test_manifests_and_recipes_are_checked(text: str) -> None:
    with pytest.raises(ConfigError, match=naming("task.yaml")):
        parse_yaml(text, "task.yaml")


@pytest.mark.parametrize("wrong", [LATIN, "\0"])
def test_queries_from_python_are_checked(wrong: str, opinion_set: ExampleSet) -> None:
    with pytest.raises(QueryError):
        opinion_set.sql(f"select '{wrong}'")
    with pytest.raises(QueryError):
        opinion_set.read("train", ("label",), f"sentence1 = '{wrong}'")
    with pytest.raises(QueryError):
        check_condition(wrong)


def refused(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr


def test_commands_name_the_flag_and_write_nothing(store: Path, opinion_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert "QUERY" in refused("sql", f"select '{LATIN}'", "--store", store)
    assert "--where" in refused("train-student", "--task", "opinion", "--where", LATIN, "--output-dir", run)
    assert "--query" in refused("train-student", "--task", "opinion", "--query", LATIN, "--output-dir", run)
    assert "--output-dir" in refused("train-student", "--task", "opinion", "--output-dir", tmp_path / LATIN / "run")
    assert "--output" in refused("predict", opinion_run, "--file", "a.csv", "--output", tmp_path / f"{LATIN}.parquet")
    assert "--output" in refused("predict", opinion_run, "--file", "a.csv", "--output", "/dev/null")
    assert "TEXTS" in refused("predict", opinion_run, LATIN)
    assert "--log-file" in refused("verify", "opinion", "--store", store, "--log-file", tmp_path / LATIN)
    assert list(tmp_path.iterdir()) == []


def test_a_default_from_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTILL_STORE", LATIN)
    assert "--store" in refused("sql", "select 1")


@pytest.mark.parametrize("query", [b"select 'caf\xe9'", b"select '\0'"])
def test_a_query_from_standard_input_is_checked(query: bytes, store: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["sql", "--store", str(store)], input=query)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output


def test_a_name_on_the_disk_that_cannot_be_written_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    @reports_errors
    def run() -> None:
        LATIN.encode()

    with pytest.raises(typer.Exit) as ended:
        run()
    assert ended.value.exit_code == 2
    assert ascii(LATIN) in capsys.readouterr().err
