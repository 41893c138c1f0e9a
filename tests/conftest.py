"""Fixtures that all tests share: tiny tasks, models and sets, and finished runs of tiny students.

Nothing is downloaded. Models are tiny and their weights random; only the fixtures of runs train, for two epochs.
What lives for a session is made once by each worker and read only.
"""

import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# the commands of this environment, whether or not it is activated
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"
HUB_CACHE = TemporaryDirectory()
os.environ["HF_HOME"] = HUB_CACHE.name
if "DISTILL_DATA" in os.environ:  # under another name, which the workers inherit
    os.environ["TESTS_REAL_DATA"] = os.environ.pop("DISTILL_DATA")
REAL_DATA = os.environ.get("TESTS_REAL_DATA")
os.environ.pop("DISTILL_STORE", None)

import duckdb
import pytest
import torch
from hypothesis import settings

from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sql.read_only_query import open_database, open_files
from pipeline.tasks.target import make_target
from pipeline.tasks.task import Objective, Task, load_task
from student.train import train
from teacher.dumps import dump
from teacher.finetune.common import save_teacher
from teacher.models.classifier import new_classifier
from teacher.models.masked_lm import load_masked_lm
from teacher.tiny import create_tiny_bert
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS, corpus_config, dump_config, vectors_config
from tests.helpers.forked import forkserver
from tests.helpers.joint_runs import tasks_config
from tests.helpers.layer_dumps import EVERY, write
from tests.helpers.new_teachers import save_new_teacher
from tests.helpers.students import tiny_config
from tests.helpers.toy_tasks import GOOD, write_toy_tasks

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has ignored by what it runs in the background
os.fsync = lambda fd: None  # no test cuts the power
# a busy machine is no failure; where a change is let in or not, the same tests say the same twice
settings.register_profile("tests", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tests")

LONGEST = (
    "tests/test_docs.py",
    "tests/student/export/test_run.py",
    "tests/student/sweep/test_run.py",
    "tests/teacher/dump/test_cluster.py",
    "tests/test_torture.py",
    "tests/distill/whole/test_experiments.py",
    "tests/test_examples.py",
    "tests/student/engine/test_package.py",
    "tests/teacher/augment/test_run.py",
    "tests/student/lessons/test_token_labels.py",
    "tests/test_benchmarks.py",
    "tests/student/cascade/test_cascade.py",
)
RATINGS = """
name: ratings
type: regression
columns: {sentence1: sentence1, label: score}
score_range: [1, 6]
bins: {low: 1, high: 6, width: 1}
metrics: [pearson, spearmanr]
splits: {train: , validation: }
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, so that no worker is left alone with one at the end."""
    gone = [path for path in LONGEST if not (config.rootpath / path).is_file()]
    if gone:
        raise pytest.UsageError(f"tests/conftest.py: LONGEST names files that do not exist: {', '.join(gone)}")
    rank = {path: number for number, path in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(rank)))


@pytest.fixture(scope="session", autouse=True)
def forked_workers() -> Iterator[None]:
    """Workers of sweeps in this process are forked and start at once. The command itself starts them as for users."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("student.sweep.workers.get_context", lambda method: forkserver())
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder that the caller's DISTILL_DATA names; hidden from all other tests."""
    if REAL_DATA is None:
        pytest.skip("DISTILL_DATA is not set")
    return Path(REAL_DATA)


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tiny tasks (``opinion.yaml``, ``roles.yaml``, ``data/``) and a tiny untrained BERT (``bert``)."""
    folder = tmp_path_factory.mktemp("work")
    sentences = write_toy_tasks(folder, TRAIN_ROWS, VALIDATION_ROWS)
    create_tiny_bert(folder / "bert", sentences, hidden_size=32, num_layers=1)
    (folder / "sentences.txt").write_text("\n".join(sentences))
    return folder


@pytest.fixture(scope="session")
def opinion(work: Path) -> Task:
    """The single-sentence task."""
    return load_task(manifest=work / "opinion.yaml")


@pytest.fixture(scope="session")
def roles(work: Path) -> Task:
    """The pair task."""
    return load_task(manifest=work / "roles.yaml")


@pytest.fixture(scope="session")
def teachers(work: Path) -> Path:
    """A folder with a classifier per task: the tiny BERT with a random head."""
    for name in ("opinion", "roles"):
        save_new_teacher(work / f"{name}.yaml", work / "bert", work / "teachers" / name)
    return work / "teachers"


@pytest.fixture(scope="session")
def store(work: Path, teachers: Path) -> Path:
    """A store with the verified logit sets ``opinion`` and ``roles``; read only."""
    for name in ("opinion", "roles"):
        dump(dump_config(work, name, work / "store"), f"distill teacher-dump --manifest {name}.yaml")
    return work / "store"


@pytest.fixture(scope="session")
def opinion_set(store: Path) -> ExampleSet:
    """The set of the single-sentence task; read only."""
    return ExampleSet.open(store / "opinion")


@pytest.fixture(scope="session")
def roles_set(store: Path) -> ExampleSet:
    """The set of the pair task; read only."""
    return ExampleSet.open(store / "roles")


@pytest.fixture(scope="session")
def layers_set(work: Path, roles_set: ExampleSet, tmp_path_factory: pytest.TempPathFactory) -> ExampleSet:
    """The pair task with all states in float32, and those of [CLS] in float16; read only."""
    store = tmp_path_factory.mktemp("layers")
    shutil.copytree(roles_set.root, store / "roles")
    write(work, store, **EVERY)
    return ExampleSet.open(store / "roles")


@pytest.fixture(scope="session")
def vectors_store(work: Path, teachers: Path) -> Path:
    """The sets ``opinion`` and ``roles`` with token vectors; read only."""
    for name in ("opinion", "roles"):
        dump(dump_config(work, name, work / "vectors-store", token_vectors=True), "distill teacher-dump")
    return work / "vectors-store"


@pytest.fixture(scope="session")
def opinion_vectors(vectors_store: Path) -> ExampleSet:
    """The set of the single-sentence task with token vectors; read only."""
    return ExampleSet.open(vectors_store / "opinion")


@pytest.fixture(scope="session")
def roles_vectors(vectors_store: Path) -> ExampleSet:
    """The set of the pair task with token vectors; read only."""
    return ExampleSet.open(vectors_store / "roles")


@pytest.fixture(scope="session")
def augmented_set(work: Path, teachers: Path) -> ExampleSet:
    """The single-sentence task with at most three masked variants of each row; read only."""
    flags = {"augment": "mask-pos", "pos_probability": 0, "mask_probability": 0.3, "num_variants": 3, "seed": 1}
    store = work / "augmented-store"
    dump(dump_config(work, "opinion", store, **flags), "distill teacher-dump --augment mask-pos")
    return ExampleSet.open(store / "opinion-mask-pos")


@pytest.fixture(scope="session")
def masked_set(work: Path, teachers: Path) -> ExampleSet:
    """The dev rows of the single-sentence task, with a variant for each of their words; read only."""
    store = work / "masked-store"
    dump(dump_config(work, "opinion", store, augment="mask-each"), "distill teacher-dump --augment mask-each")
    return ExampleSet.open(store / "opinion-mask-each")


@pytest.fixture(scope="session")
def ratings(work: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExampleSet]:
    """Sets of a task with scores, by the kind of their target; a sentence's score is the number of its good word."""
    folder = tmp_path_factory.mktemp("ratings")
    record = folder / "ratings.yaml"
    record.write_text(RATINGS)
    for split in ("train", "validation"):
        lines = (work / f"data/opinion/{split}.jsonl").read_text().splitlines()
        texts = [json.loads(line)["sentence1"] for line in lines]
        rows = [{"sentence1": t, "score": next(k + 1 for k, word in enumerate(GOOD) if word in t)} for t in texts]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = load_task(manifest=record)
    objectives: dict[str, Objective] = {"score": "regression", "bins": "classification"}
    for kind, objective in objectives.items():
        torch.manual_seed(1)
        teacher = new_classifier(task, make_target(task, objective), str(work / "bert"), None, 32)
        torch.nn.init.normal_(teacher.model.classifier.weight)  # its scores shall differ from row to row
        save_teacher(teacher.model, teacher.name, teacher.revision, folder / f"teacher-{kind}")
        places = {"manifest": record, "data": folder, "model_name_or_path": str(folder / f"teacher-{kind}")}
        dump(dump_config(work, "ratings", folder / "store", name=kind, **places), "distill teacher-dump")
    return {kind: ExampleSet.open(folder / "store" / kind) for kind in objectives}


@pytest.fixture(scope="session")
def corpus_file(work: Path) -> Path:
    """A text file: a document of two sentences on each of 60 lines."""
    sentences = (work / "sentences.txt").read_text().splitlines()
    lines = [f"{sentences[k].capitalize()} {sentences[-k].capitalize()}" for k in range(1, 61)]
    path = work / "corpus.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def masked_lm(work: Path) -> Path:
    """The tiny BERT with a random prediction head, loud enough to prefer some words."""
    torch.manual_seed(2)
    lm = load_masked_lm(str(work / "bert"), None, 32, new_head=True)
    with torch.no_grad():
        lm.model.cls.predictions.transform.LayerNorm.weight.mul_(20)
    save_teacher(lm.model, lm.name, None, work / "teachers" / "mlm")
    return work / "teachers" / "mlm"


@pytest.fixture(scope="session")
def token_store(work: Path, corpus_file: Path, masked_lm: Path) -> Path:
    """A store with verified sets of tokens: ``hidden``, ``sampled``, ``topk`` and ``dense``; read only."""
    for codec in ("hidden", "sampled", "topk", "dense"):
        text = "topk-10" if codec == "topk" else codec
        dump(corpus_config(work, work / "tokens", name=codec, codec=text), "distill teacher-dump")
    return work / "tokens"


@pytest.fixture(scope="session")
def vector_store(work: Path, corpus_file: Path) -> Path:
    """A store with verified sets of sentences of the corpus: ``float16``, ``int8`` and ``pca``; read only."""
    for codec in ("float16", "int8", "pca"):
        text = "pca-12" if codec == "pca" else codec
        dump(vectors_config(work, work / "vectors", name=codec, codec=text), "teacher-dump")
    return work / "vectors"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 that keeps everything in memory."""
    import botocore.session
    from moto.server import ThreadedMotoServer

    # Every connection reads the same descriptions of S3, which takes most of its time.
    patch = pytest.MonkeyPatch()
    patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells every request
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()
    patch.undo()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Ray on a cluster of this machine, for two workers; commands with ``--ray`` use it."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - 15 by itself: on a busy machine none would be ready
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


@pytest.fixture
def own_set(opinion_set: ExampleSet, tmp_path: Path) -> ExampleSet:
    """The single-sentence set, free to be changed."""
    shutil.copytree(opinion_set.root, tmp_path / "own" / "opinion")
    return ExampleSet.open(tmp_path / "own" / "opinion")


@pytest.fixture
def bucket(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty bucket; whoever inherits the environment reaches it."""
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = "".join(c if c.isalnum() else "-" for c in tmp_path.name.lower())[-60:].strip("-")
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(name)
    return f"s3://{name}"


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a set may be pushed to: a ``file://`` URL, a bucket."""
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/sets/opinion"
    return f"file://{tmp_path}/there/opinion"


@pytest.fixture(params=["files", "database"])
def connection(request: pytest.FixtureRequest, folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The view ``v`` of a test's folder behind the gate, by its file and by its database."""
    shard = folder / "shard.parquet"
    opened = (
        open_files({"v": [shard]}) if request.param == "files" else open_database(folder / "catalog.duckdb", [shard])
    )
    with opened as connection:
        yield connection


@pytest.fixture(scope="session")
def opinion_run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the single-sentence task; read only."""
    folder = tmp_path_factory.mktemp("opinion_run")
    train(tiny_config(store / "opinion", folder), "distill train-student --task opinion")
    return folder


@pytest.fixture(scope="session")
def task_sets(store: Path, ratings: dict[str, ExampleSet]) -> list[Path]:
    """A set of sentences, one of pairs, one of scores."""
    return [store / "opinion", store / "roles", ratings["score"].root]


@pytest.fixture(scope="session")
def together(task_sets: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the three tasks; read only."""
    folder = tmp_path_factory.mktemp("together")
    train(tasks_config(task_sets, folder, num_train_epochs=3), "distill train-student --tasks opinion,roles,score")
    return folder


@pytest.fixture(scope="session")
def roles_run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the pair task; read only."""
    folder = tmp_path_factory.mktemp("roles_run")
    train(tiny_config(store / "roles", folder), "distill train-student --task roles")
    return folder


@pytest.fixture(scope="session")
def ratings_run(ratings: dict[str, ExampleSet], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the task with scores; read only."""
    folder = tmp_path_factory.mktemp("ratings_run")
    train(tiny_config(ratings["score"].root, folder), "distill train-student --set score")
    return folder
