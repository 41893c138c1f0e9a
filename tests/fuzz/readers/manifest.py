"""YAML: manifests of tasks and corpora, recipes, experiments."""

from importlib.resources import files

from distill.apps.experiments.experiment import TaskParts, load_experiment
from distill.apps.experiments.plan import task_problems
from pipeline.errors import ConfigError, raise_all
from pipeline.tasks.task import Corpus, Task, own_manifest, task_names
from student.settings import load_recipe
from tests.fuzz.files import of_a_kind, seeds, written

COVERS = (
    "pipeline.tasks.task",
    "pipeline.tasks.task",
    "student.settings",
    "distill.apps.experiments.experiment",
    "distill.apps.experiments.plan",
)
KINDS = ("task", "corpus", "recipe", "experiment")
EXPERIMENT = b"""teacher: {held_out: 0.2, from: qnli}
sets: {a: {}, b: {augment: none}}
students: {c: {set: b, where: variant = 0}, d: {alpha: 1}}
tasks: {mnli: {sets: {a: {}}}, qnli: {teacher: {from: null}}}
"""


def shipped(package: str, path: str) -> bytes:
    """A file without its comments, which would only be mutated and read."""
    lines = files(package).joinpath(path).read_bytes().splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(b"#"))


SEEDS = seeds(
    KINDS,
    {
        "task": [shipped("data_manifests", f"{name}.yaml") for name in ("mnli", "stsb")],
        "corpus": [shipped("data_manifests", "corpora/wikitext.yaml")],
        "recipe": [shipped("student.recipes", "mnli.yaml")],
        "experiment": [EXPERIMENT, shipped("distill.apps.experiments", "glue.yaml")],
    },
)


def read(data: bytes) -> None:
    kind, text = of_a_kind(data, KINDS)
    path = written("it.yaml", text)
    if kind == "recipe":
        load_recipe(str(path))
    elif kind == "experiment":
        experiment, context = load_experiment(str(path)), str(path)
        raise_all(ConfigError, context, task_problems(experiment, ["mnli"], task_names()))
        TaskParts(experiment, "mnli", context)
    else:
        own_manifest(Task if kind == "task" else Corpus, path, None, "--task")
