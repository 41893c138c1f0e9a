"""YAML: manifests of tasks and corpora, recipes, experiments."""

from importlib.resources import files

from pipeline.results.experiment import TaskParts, load_experiment
from pipeline.tasks.corpus import Corpus
from pipeline.tasks.task import Task, own_manifest
from student.recipe import load_recipe
from tests.fuzz.files import of_a_kind, seeds, written

COVERS = ("pipeline.tasks.task", "pipeline.tasks.corpus", "student.recipe", "pipeline.results.experiment")
KINDS = ("task", "corpus", "recipe", "experiment")
SEEDS = seeds(
    KINDS,
    {
        "task": [files("data_manifests").joinpath(f"{name}.yaml").read_bytes() for name in ("mnli", "stsb")],
        "corpus": [files("data_manifests").joinpath("corpora").joinpath("wikitext.yaml").read_bytes()],
        "recipe": [files("student.recipes").joinpath("mnli.yaml").read_bytes()],
        "experiment": [files("pipeline.results").joinpath("glue.yaml").read_bytes()],
    },
)


def read(data: bytes) -> None:
    kind, text = of_a_kind(data, KINDS)
    path = written("it.yaml", text)
    if kind == "recipe":
        load_recipe(str(path))
    elif kind == "experiment":
        experiment, subject = load_experiment(path)
        TaskParts(experiment, "mnli", subject)
    else:
        own_manifest(Task if kind == "task" else Corpus, path, None, "--task")
