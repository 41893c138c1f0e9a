"""Which license, language, data set and base model a set's record gets for the hub: those that are known, no others."""

from pathlib import Path

import pytest

from pipeline.file_names import FINETUNE_RECORD
from pipeline.record_file import write_record
from pipeline.sets.record_parts import HubDataset
from pipeline.sources import Source
from pipeline.sources.hugging_face_rows import description
from pipeline.tasks.task import Task, load_task
from teacher.dump.rows import task_record
from teacher.finetune.common import origin
from teacher.finetune_settings import Encoder
from teacher.models.loaded import base_model_of


@pytest.fixture
def mrpc() -> Task:
    return load_task("mrpc")


def test_rows_of_the_hub_name_their_data_set(mrpc: Task) -> None:
    assert mrpc.hub is not None
    record = task_record(mrpc, Source(description(mrpc.hub), {}))
    assert record.hub == HubDataset(id="nyu-mll/glue", config="mrpc")
    assert record.language == "en"
    assert record.license is None


@pytest.mark.parametrize("place", ["data/mrpc", "nyu-mll/glue/mrpc", "/data"])
def test_local_rows_do_not(mrpc: Task, place: str) -> None:
    assert task_record(mrpc, Source(place, {})).hub is None


def test_a_manifest_that_reads_a_folder_as_if_it_were_the_hub_does_not(mrpc: Task) -> None:
    assert mrpc.hub is not None
    hub = mrpc.hub.model_copy(update={"id": "/home/me/glue"})
    task = mrpc.model_copy(update={"hub": hub, "license": "cc-by-4.0"})
    record = task_record(task, Source(description(hub), {}))
    assert record.hub is None
    assert record.license == "cc-by-4.0"


def test_a_base_model_is_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert base_model_of("owner/bert") == "owner/bert"
    Path("owner/bert").mkdir(parents=True)
    assert base_model_of("owner/bert") is None
    assert base_model_of("/no/such/folder") is None


def test_a_fine_tuned_teacher_keeps_the_model_that_it_began_as(tmp_path: Path) -> None:
    run = {"state": "finished", "command": "", "settings": {}, "result": {"base_model": "owner/bert"}}
    write_record(tmp_path / FINETUNE_RECORD, run)
    assert base_model_of(str(tmp_path)) == "owner/bert"
    assert origin(Encoder(model_name_or_path=str(tmp_path)))["base_model"] == "owner/bert"
