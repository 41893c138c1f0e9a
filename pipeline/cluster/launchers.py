"""Determines the number of this job from the environment variables that launchers set."""

from dataclasses import dataclass

from pipeline.environment import numbers
from pipeline.errors import ConfigError


@dataclass(frozen=True)
class Launcher:
    """The variables of one launcher.

    Attributes:
        index: number of this job.
        first: number of the first job. Empty if the launcher has no such variable and counts from 0.
        last: number of the last job, if there is such a variable.
        count: the number of jobs, if there is such a variable.
    """

    index: str
    first: str = ""
    last: str = ""
    count: str = ""


LAUNCHERS = {
    "Slurm": Launcher(
        "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", count="SLURM_ARRAY_TASK_COUNT"
    ),
    "Kubernetes": Launcher("JOB_COMPLETION_INDEX"),
    "SkyPilot": Launcher("SKYPILOT_NODE_RANK", count="SKYPILOT_NUM_NODES"),
    "AWS Batch": Launcher("AWS_BATCH_JOB_ARRAY_INDEX", count="AWS_BATCH_JOB_ARRAY_SIZE"),
    "Cloud Run": Launcher("CLOUD_RUN_TASK_INDEX", count="CLOUD_RUN_TASK_COUNT"),
}


@dataclass(frozen=True)
class Job:
    """One of ``count`` commands that share a set's shards.

    It writes every ``count``-th shard, starting at ``index``.

    Attributes:
        index: the number of this job, from 0.
        count: the number of jobs.
        source: the names of the variables with the numbers, for messages. Empty if flags set them.
    """

    index: int = 0
    count: int = 1
    source: str = ""


def launched_job(num_jobs: int | None) -> Job:
    """Returns the job of this process from the variables of its launcher.

    Args:
        num_jobs: the number of jobs, if the user has given it.

    Raises:
        ConfigError: if no launcher is found, or several, or the variables contradict each other or ``num_jobs``.
    """
    found = {name: values for name, launcher in LAUNCHERS.items() if (values := _variables(launcher))}
    # Slurm inside Kubernetes sets both, and a wrong guess would leave shards unwritten without an error.
    if len(found) != 1:
        names = " and ".join(found) or f"none of {', '.join(launcher.index for launcher in LAUNCHERS.values())}"
        raise ConfigError(f"--shard-index auto: {names} is set, but one of them is needed. Give the number itself.")
    ((name, values),) = found.items()
    launcher = LAUNCHERS[name]
    source = ", ".join(f"{variable}={value}" for variable, value in values.items())
    first = values.get(launcher.first, 0)
    count: int | None = values.get(launcher.count, num_jobs)
    if count is None:
        raise ConfigError(f"--shard-index auto: {name} does not set the number of jobs. Add --num-shards.")
    if num_jobs not in (None, count):
        problem = f"{num_jobs} jobs, but {name} has started {count} ({source})"
        raise ConfigError(f"--num-shards: {problem}. Leave it out, or give --shard-index as a number.")
    # An array such as --array=0-6:2 or 1,3,5 would leave the shards of the missing numbers unwritten.
    has_gaps = launcher.last in values and values[launcher.last] - first + 1 != count
    index = values[launcher.index] - first
    if has_gaps or not 0 <= index < count:
        problem = f"the jobs of {name} must be numbered without gaps ({source})"
        raise ConfigError(f"--shard-index auto: {problem}. Give --shard-index and --num-shards as numbers.")
    return Job(index, count, f"{name}: {source}")


def _variables(launcher: Launcher) -> dict[str, int]:
    """Returns the variables of a launcher that are set. Empty if the number of this job is missing."""
    values = numbers(name for name in vars(launcher).values() if name)
    return values if launcher.index in values else {}
