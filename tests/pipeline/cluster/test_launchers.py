"""Which job this is, by the variables of the launchers' manuals; whatever does not fit is refused."""

import pytest

from pipeline.cluster.launchers import LAUNCHERS, Job, launched_job
from pipeline.errors import ConfigError
from tests.helpers.messages import naming

SLURM = {"SLURM_ARRAY_TASK_ID": 7, "SLURM_ARRAY_TASK_MIN": 5, "SLURM_ARRAY_TASK_MAX": 8, "SLURM_ARRAY_TASK_COUNT": 4}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher in LAUNCHERS.values():
        for name in filter(None, vars(launcher).values()):
            monkeypatch.delenv(name, raising=False)


def job(monkeypatch: pytest.MonkeyPatch, variables: dict[str, int | str], num_jobs: int | None = None) -> Job:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    return launched_job(num_jobs)


@pytest.mark.parametrize(
    ("variables", "index", "count"),
    [
        (SLURM, 2, 4),  # --array=5-8, the third
        ({"SKYPILOT_NODE_RANK": 0, "SKYPILOT_NUM_NODES": 2}, 0, 2),
        ({"AWS_BATCH_JOB_ARRAY_INDEX": 9, "AWS_BATCH_JOB_ARRAY_SIZE": 10}, 9, 10),
        ({"CLOUD_RUN_TASK_INDEX": 0, "CLOUD_RUN_TASK_COUNT": 1}, 0, 1),
    ],
)
def test_number_and_count_are_the_launchers(
    variables: dict[str, int | str], index: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = job(monkeypatch, variables)
    assert (told.index, told.count) == (index, count)
    assert all(f"{name}={value}" in told.source for name, value in variables.items())
    with pytest.raises(ConfigError, match=naming("--num-shards: 99", count)):
        launched_job(99)
    assert launched_job(count) == told


def test_kubernetes_does_not_tell_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert job(monkeypatch, {"JOB_COMPLETION_INDEX": 3}, num_jobs=4).index == 3
    with pytest.raises(ConfigError, match=naming("--shard-index auto: ", "--num-shards")):
        launched_job(None)
    with pytest.raises(ConfigError, match=naming("--shard-index auto: ", "JOB_COMPLETION_INDEX=3", "--num-shards")):
        launched_job(3)


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({}, naming("SLURM_ARRAY_TASK_ID, JOB_COMPLETION_INDEX, ")),
        (SLURM | {"CLOUD_RUN_TASK_INDEX": 0, "CLOUD_RUN_TASK_COUNT": 1}, "Slurm and Cloud Run"),
        (SLURM | {"SLURM_ARRAY_TASK_MAX": 11}, "SLURM_ARRAY_TASK_MAX=11"),  # --array=5-11:2
        (SLURM | {"SLURM_ARRAY_TASK_ID": 4}, "SLURM_ARRAY_TASK_ID=4"),
        (SLURM | {"SLURM_ARRAY_TASK_ID": "x"}, "SLURM_ARRAY_TASK_ID=x"),
        ({"SLURM_ARRAY_TASK_COUNT": 4}, "SLURM_ARRAY_TASK_ID"),
    ],
)
def test_what_does_not_fit_is_refused(
    variables: dict[str, int | str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=problem):
        job(monkeypatch, variables)
