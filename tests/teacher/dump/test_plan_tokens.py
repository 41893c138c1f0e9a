"""``teacher-dump --corpus … --plan`` against what the dump then comes to."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distill.commands import app
from pipeline.sets.kinds.masked_words import MaskedWordSet
from teacher.dumps import open_dump
from tests.helpers.dumps import corpus_config


def test_a_plan_of_a_corpus_smaller_than_the_sample_counts_it(work: Path, token_store: Path) -> None:
    plan = open_dump(corpus_config(work, token_store, codec="topk-10"), "plan").plan()
    there = MaskedWordSet.open(token_store / "topk").record
    assert plan.rows["documents"] == 60
    assert plan.rows["masked sequences"] == there.num_rows
    assert plan.rows["masked positions"] == sum(scores["positions"] for scores in there.scores.values())
    assert plan.shards == len(there.shards)
    assert plan.seconds is not None
    assert plan.seconds > 0


def test_a_plan_of_part_of_a_corpus_is_in_proportion(work: Path, token_store: Path, tmp_path: Path) -> None:
    text = (work / "corpus.txt").read_text()
    (tmp_path / "long.txt").write_text(text * 40)
    plans = [
        open_dump(corpus_config(work, tmp_path, data=path), "plan").plan()
        for path in (work / "corpus.txt", tmp_path / "long.txt")
    ]
    assert plans[1].rows["documents"] == 40 * plans[0].rows["documents"]
    assert plans[1].rows["masked positions"] == pytest.approx(40 * plans[0].rows["masked positions"], rel=0.1)
    assert plans[1].disk_bytes == pytest.approx(40 * plans[0].disk_bytes, rel=0.1)


def test_the_command_prints_it_and_writes_nothing(
    work: Path, masked_lm: Path, corpus_file: Path, tmp_path: Path
) -> None:
    flags = ["--corpus", "tiny", "--data", str(corpus_file), "--model-name-or-path", str(masked_lm)]
    more = ["--store", str(tmp_path / "store"), "--min-seq-length", "4", "--max-seq-length", "32", "--plan", "--json"]
    result = CliRunner().invoke(app, ["teacher-dump", *flags, *more])
    assert result.exit_code == 0, result.stderr
    assert set(json.loads(result.stdout)["rows"]) == {"documents", "masked sequences", "masked positions"}
    assert not (tmp_path / "store").exists()
