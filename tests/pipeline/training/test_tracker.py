import json
from pathlib import Path

import pytest

from pipeline.config import ReportFlags
from pipeline.errors import ConfigError
from pipeline.training.run_record import METRICS_FILE, TENSORBOARD_FOLDER, flat, tracker
from tests.helpers.messages import naming
from tests.helpers.toy_run import EPOCHS, STEPS, toy_run

ENTRY = {"epoch": 3, "loss": 0.5, "metrics": {"dev": {"accuracy": 0.25, "f1": 1.0}, "other": {"accuracy": 0.75}}}
FLAT = {"epoch": 3, "loss": 0.5, "dev/accuracy": 0.25, "dev/f1": 1.0, "other/accuracy": 0.75}


def test_an_entry_has_a_number_for_each_split_and_metric() -> None:
    assert flat(ENTRY) == FLAT


@pytest.mark.parametrize("schedule", [EPOCHS, STEPS])
def test_metrics_are_the_history_a_line_each(schedule: object, tmp_path: Path) -> None:
    history = toy_run(tmp_path, schedule)["result"]["history"]  # type: ignore[arg-type]
    lines = (tmp_path / METRICS_FILE).read_text().splitlines()
    assert [json.loads(line) for line in lines] == list(map(flat, history))
    assert len(lines) > 2


def test_tensorboard_is_told_of_each_entry(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for epoch in (3, 4):  # as a run that was stopped between them
        with tracker("tensorboard", tmp_path) as track:
            track(ENTRY | {"epoch": epoch})
    events = accumulator.EventAccumulator(str(tmp_path / TENSORBOARD_FOLDER))
    events.Reload()
    for name, value in flat(ENTRY).items():
        if name != "epoch":
            assert [(event.step, event.value) for event in events.Scalars(name)] == [(3, value), (4, value)]


def test_a_tracker_that_is_not_installed_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.config.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=naming("--report-to: ", "tensorboard", "'distill-offline[tensorboard]'")):
        ReportFlags.from_flags(report_to="tensorboard")
