"""Sets written by workers on a cluster of this machine: the bytes are those of a single process, whoever dies."""

import shutil
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import teacher.dump.driver
from pipeline.devices import processes
from pipeline.errors import TeacherError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record_parts import Shard
from teacher.dump.driver import Executor
from teacher.dump.shard_jobs import ShardJob
from teacher.dumps import dump
from teacher.models.masked_lm import load_masked_lm
from tests.helpers.calls import count_calls
from tests.helpers.dumps import corpus_config, dump_config, vectors_config
from tests.helpers.messages import naming

pytestmark = pytest.mark.slow
RAY = {"ray": "local", "ray_workers": 1}
VARIANTS = {"augment": "mask-pos", "pos_probability": 0, "mask_probability": 0.3, "num_variants": 3, "seed": 1}


def files(root: Path) -> dict[str, str]:
    """SHA-256 of every file of a set that does not contain the time of its creation."""
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and path.suffix in {".parquet", ".safetensors"}]
    assert paths
    return {str(path.relative_to(root)): sha256(path.read_bytes()).hexdigest() for path in paths}


def test_plain_jobs_and_workers_mixed_write_the_set_of_one_process(
    ray_cluster: Any, work: Path, augmented_set: ExampleSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    (store / "augmented").mkdir(parents=True)
    variants = augmented_set.root.parent / "augmented" / "opinion-mask-pos"
    (store / "augmented" / "opinion-mask-pos").symlink_to(variants)
    first = dump(dump_config(work, "opinion", store, **VARIANTS, shard_index=1, num_shards=3), "job")
    assert first is not None
    assert first.state == "staged"
    record = dump(dump_config(work, "opinion", store, **VARIANTS, ray="local", ray_workers=2), "ray")
    assert record is not None
    assert record.state == "verified"
    assert files(store / "opinion-mask-pos") == files(augmented_set.root)
    assert record.fingerprint == augmented_set.record.fingerprint
    assert record.shards == augmented_set.record.shards
    assert record.scores == augmented_set.record.scores
    assert " workers: " in capsys.readouterr().err  # a busy machine may start the second when all is done


def test_what_layers_say_and_variants_are_those_of_one_process(
    ray_cluster: Any, work: Path, augmented_set: ExampleSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {"states": "0,1", "states_codec": "pca-8", "cls": "all", "attention": "1", "values": "1"}
    name, store = augmented_set.name, tmp_path / "store"
    for folder in (name, "augmented"):
        shutil.copytree(augmented_set.root.parent / folder, tmp_path / "plain" / folder)
    flags = VARIANTS | layers | {"layers_of": "all"}
    plain = dump(dump_config(work, "opinion", tmp_path / "plain", **flags), "plain")
    assert plain is not None
    by_driver = count_calls(monkeypatch, {"write": (teacher.dump.driver, "_write")})
    some = {"states": "0,1", "states_codec": "pca-8", "cls": "all", "layers_of": "all"}
    dump(dump_config(work, "opinion", store, **VARIANTS, **some, **RAY), "ray")
    assert len(by_driver) == 3 * len(plain.shards)
    assert files(store / name).items() >= files(augmented_set.root).items()
    (store / name / "cls" / Path(plain.shards[0].path).name).unlink()
    by_driver.clear()
    record = dump(dump_config(work, "opinion", store, **flags, **RAY, ray_write="workers"), "ray")
    assert record is not None
    assert record.signals == plain.signals
    assert files(store / name) == files(tmp_path / "plain" / name)
    assert by_driver == []
    assert not list(store.rglob(".*"))


def test_tokens_and_vectors_are_those_of_one_process(
    ray_cluster: Any, work: Path, token_store: Path, vector_store: Path, tmp_path: Path
) -> None:
    dump(corpus_config(work, tmp_path, name="sampled", codec="sampled", **RAY), "ray")
    assert files(tmp_path / "sampled") == files(token_store / "sampled")
    pca = {"name": "pca", "codec": "pca-12"}
    dump(vectors_config(work, tmp_path, **pca, **RAY), "ray")
    assert files(tmp_path / "pca") == files(vector_store / "pca")


def test_a_teacher_that_says_nan_ends_it_and_the_shard_is_named(
    ray_cluster: Any, work: Path, opinion_set: ExampleSet, masked_lm: Path, tmp_path: Path
) -> None:
    record, shards = opinion_set.record, list(opinion_set.record.shards)
    run = dump_config(work, "opinion", tmp_path, **RAY).run
    executor = Executor(processes(), run.jobs.job, run.cluster)
    job = Failing(record, load_masked_lm(str(masked_lm), None, 32), "fp32", 100)
    with pytest.raises(TeacherError, match=naming(shards[0].path, "NaN")):
        executor.run(job, tmp_path, SimpleNamespace(hold=lambda shard: shard.index), shards)
    assert not list(tmp_path.rglob("*.parquet"))


class Failing(ShardJob):
    """A job whose teacher fails."""

    def write(self, root: Path, rows: Any, shards: Sequence[Shard]) -> None:
        raise TeacherError("teacher: gives NaN")
