"""Drift by the command and by the server, for every kind of student and place that it is read from."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from distill.apps.app_settings import ServeSettings
from distill.apps.serve.app import App
from distill.apps.serve.drift import AT_ONCE, RECENT, RecentInputs
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.served import Served
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.text_drift import TEXT_SIGNALS
from student.predict.file import MOST, Sample
from student.predict.predictor import Predictor
from tests.helpers.asgi import ask
from tests.helpers.commands import invoke, piped

STRANGE = [f"xylophone zeppelin {'quartz ' * (n % 7 + 9)}" for n in range(120)]


def dev_texts(logit_set: ExampleSet) -> list[list[str]]:
    table = logit_set.read("validation", ("sentence1", "sentence2"))
    return [column.to_pylist() for column in table.columns if column.null_count < len(column)]


def lines(path: Path, *columns: list[str]) -> Path:
    rows = [{f"sentence{n}": text for n, text in enumerate(row, start=1)} for row in zip(*columns, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_of_other_texts_is_named_and_one_of_the_same_is_not(
    opinion_run: Path, opinion_set: ExampleSet, tmp_path: Path
) -> None:
    (own,) = dev_texts(opinion_set)
    file = lines(tmp_path / "same.jsonl", own * 5)
    same = invoke("predict", opinion_run, "--file", file, "--output", tmp_path / "a.csv", "--json")
    assert same.exit_code == 0, same.stderr
    drift = {one["signal"]: one for one in json.loads(same.stdout)["drift"]}
    assert list(drift) == ["tokens", "unknown", "label", "margin"]
    assert all(one["num_inputs"] == 5 * len(own) for one in drift.values())
    # Stored ids and the tokenizer give the same distribution.
    assert all(one["psi"] == pytest.approx(0, abs=1e-9) for one in drift.values())
    assert "stability" not in same.stderr

    other = lines(tmp_path / "other.jsonl", STRANGE)
    for flags in (("--output", tmp_path / "b.csv"), ()):
        done = invoke("predict", opinion_run, "--file", other, *flags)
        assert done.exit_code == 0, done.stderr
        assert "lengths of texts" in done.stderr
        assert "other.jsonl" in done.stderr
    done = piped(opinion_run, other.read_text().splitlines())
    assert "stability" in done.stderr


def test_few_rows_and_students_without_a_profile_show_nothing(opinion_run: Path, tmp_path: Path) -> None:
    few = invoke("predict", opinion_run, "--file", lines(tmp_path / "few.jsonl", STRANGE[:20]))
    assert "stability" not in few.stderr
    old = tmp_path / "old"
    shutil.copytree(opinion_run, old)
    config = json.loads((old / "config.json").read_text())
    del config["profile"], config["record_sha256"]
    (old / "config.json").write_text(json.dumps(config))
    file = lines(tmp_path / "b.jsonl", STRANGE)
    done = invoke("predict", old, "--file", file, "--output", tmp_path / "b.csv", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["drift"] == []


def test_pairs_and_scores_have_their_profiles(
    roles_run: Path, roles_set: ExampleSet, ratings_run: Path, ratings: dict[str, ExampleSet]
) -> None:
    predictor = Predictor(roles_run)
    sample = Sample()
    sample.add(*dev_texts(roles_set))  # fewer than `MOST`, so all belong to it
    assert [one.psi for one in sample.drift(predictor)] == pytest.approx([0] * 4, abs=1e-9)
    found = Predictor(ratings_run).info.profile
    assert found is not None
    assert set(found.signals) == {*TEXT_SIGNALS, "score"}


def test_the_engine_measures_what_torch_does(opinion_run: Path, opinion_set: ExampleSet, tmp_path: Path) -> None:
    file = tmp_path / "student.distill"
    assert invoke("export", opinion_run, "--file", file).exit_code == 0
    (own,) = dev_texts(opinion_set)
    by_torch, by_engine = (Predictor(one).signals([*own, *STRANGE[:3]]) for one in (opinion_run, file))
    assert Predictor(file).info.profile == Predictor(opinion_run).info.profile
    assert by_torch.keys() == by_engine.keys()
    for name in by_torch:
        np.testing.assert_allclose(by_torch[name], by_engine[name], atol=2e-3)


def test_a_sample_is_evenly_spaced() -> None:
    sample = Sample()
    for start in range(0, 45_000, 1000):
        sample.add([str(start + place) for place in sample.places(1000)], None)
    taken = [int(text) for (text,) in sample._inputs]
    assert MOST / 2 < len(taken) <= MOST
    assert set(np.diff(taken)) == {8}


def test_the_server_shows_the_drift_of_recent_inputs(opinion_run: Path, opinion_set: ExampleSet) -> None:
    metrics = Metrics(1)
    served = Served(opinion_run, metrics)
    app = App({served.name: served}, ServeSettings(runs=(str(opinion_run),)), metrics)
    (own,) = dev_texts(opinion_set)

    def shown(texts: list[str], path: str, **others: object) -> dict[str, float]:
        ask(app, "POST", path, {"inputs": [[text] for text in texts] if path == "/predict" else texts} | others)
        text = ask(app, "GET", "/metrics").body.decode()
        found = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("distill_drift")]
        assert text.count("# TYPE distill_drift_psi gauge") == 1
        return {name: float(value) for name, value in found}

    of_run = f'run="{served.name}",signal="tokens"'
    assert shown(own[: AT_ONCE // 2], "/predict")[f"distill_drift_inputs{{{of_run}}}"] == 0
    copies = -(-AT_ONCE // len(own))
    found = shown(own * copies, "/predict", raw_scores=True)
    assert found[f"distill_drift_inputs{{{of_run}}}"] >= AT_ONCE
    assert found[f"distill_drift_psi{{{of_run}}}"] < 0.05
    found = shown(STRANGE * 5, "/")
    assert found[f"distill_drift_psi{{{of_run}}}"] > found[f"distill_drift_limit{{{of_run}}}"]


def test_workers_count_together_and_old_inputs_fade(opinion_run: Path, opinion_set: ExampleSet) -> None:
    predictor = Predictor(opinion_run)
    assert predictor.info.profile is not None
    recent = RecentInputs("name", predictor, predictor.info.profile, 2)
    (own,) = dev_texts(opinion_set)
    logits_NC = predictor.calibrated_logits(own * 10)
    process = os.fork()
    if not process:
        recent.of_worker(1)
        recent.add(own * 10, None, logits_NC)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
    recent.of_worker(0)
    recent.add(own * 10, None, logits_NC)
    assert recent.drift()[0].num_inputs == 2 * 10 * len(own)
    for _ in range(2 * RECENT // (10 * len(own)) + 2):
        recent.add(own * 10, None, logits_NC)
    assert recent.drift()[0].num_inputs < 2 * RECENT + 10 * len(own)
