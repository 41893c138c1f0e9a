"""Every command and every Python block of the README, run as written.

The hub is replaced by folders of the same names with the layout of the real repositories.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
import s3fs
import yaml

from pipeline.tasks.target import make_target
from pipeline.tasks.task import load_task
from teacher.finetune.common import save_teacher
from teacher.inference.classifier import new_classifier
from teacher.inference.masked_lm import load_masked_lm
from teacher.tiny import create_tiny_bert

README = Path(__file__).parents[1] / "README.md"
WORDS = ("nobody", "a", "man", "woman", "eats", "is", "eating", "sleeps", "soup", "outside")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def sentences(random: np.random.Generator, count: int) -> list[str]:
    return [" ".join(random.choice(WORDS, 5)) for _ in range(count)]


def write_glue(root: Path, config: str, columns: tuple[str, str], splits: dict[str, int], num_labels: int) -> None:
    random = np.random.default_rng(len(config))
    for split, count in splits.items():
        labels = pa.array(random.integers(num_labels, size=count))
        table = {columns[0]: sentences(random, count), columns[1]: sentences(random, count), "label": labels}
        (root / config).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(table), root / config / f"{split}-00000-of-00001.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("readme")
    glue = root / "nyu-mll" / "glue"
    mnli_splits = {"train": 120, "validation_matched": 60, "validation_mismatched": 60}
    write_glue(glue, "mnli", ("premise", "hypothesis"), mnli_splits, 3)
    write_glue(glue, "mrpc", ("sentence1", "sentence2"), {"train": 120, "validation": 60}, 2)
    configs = [
        {
            "config_name": config,
            "data_files": [{"split": split, "path": f"{config}/{split}-*"} for split in splits],
        }
        for config, splits in (("mnli", mnli_splits), ("mrpc", ("train", "validation")))
    ]
    (glue / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")
    wikipedia = root / "wikimedia" / "wikipedia" / "20231101.en"
    wikipedia.mkdir(parents=True)
    texts = pa.table({"text": [" ".join(sentences(np.random.default_rng(k), 4)) for k in range(40)]})
    pq.write_table(texts, wikipedia / "train-00000-of-00001.parquet")
    files = [{"config_name": "20231101.en", "data_files": "20231101.en/train-*"}]
    (wikipedia.parent / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': files})}---\n")
    create_tiny_bert(root / "bert-base-uncased", WORDS, hidden_size=32, num_layers=1)
    lm = load_masked_lm(str(root / "bert-base-uncased"), None, 128, new_head=True)
    lm.model.save_pretrained(root / "bert-base-uncased")
    mnli = load_task("mnli")
    teacher = new_classifier(mnli, make_target(mnli), str(root / "bert-base-uncased"), None, 128)
    save_teacher(teacher.model, teacher.name, teacher.revision, root / "textattack" / "bert-base-uncased-MNLI")
    (root / "tickets.yaml").write_text(blocks("yaml")[0])
    write_tickets(root / "data", {"train": 90, "validation": 30})
    write_tickets(root / "more-data", {"train": 120, "validation": 30})
    return root


def write_tickets(folder: Path, splits: dict[str, int]) -> None:
    """The rows of the task of one's own; a longer file begins with the rows of a shorter one."""
    folder.mkdir()
    for split, count in splits.items():
        random = np.random.default_rng(len(split))
        rows = [(sentences(random, 1)[0], ("billing", "technical", "other")[random.integers(3)]) for _ in range(count)]
        table = pa.table({"text": [text for text, _ in rows], "queue": [queue for _, queue in rows]})
        pc.write_csv(table, folder / f"{split}.csv")


@pytest.fixture(scope="module")
def object_store(s3_server: str) -> dict[str, str]:
    """The environment that leads to an S3 with the bucket that the README names."""
    keys = {"key": "readme", "secret": "readme"}
    s3fs.S3FileSystem(endpoint_url=s3_server, skip_instance_cache=True, **keys).mkdir("team-a")
    return {
        "AWS_ACCESS_KEY_ID": keys["key"],
        "AWS_SECRET_ACCESS_KEY": keys["secret"],
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_server,
    }


def run(command: list[str], folder: Path, more: dict[str, str]) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HF_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"} | more
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_every_command_and_python_block_runs_as_written(folder: Path, object_store: dict[str, str]) -> None:
    for block in blocks("bash"):
        for command in block.strip().splitlines():
            run(["bash", "-c", command], folder, object_store)
    outputs = [run([sys.executable, "-P", "-c", code], folder, {}) for code in blocks("python")]
    assert "[" in outputs[0]
    assert "count" in outputs[1]
    assert any(label in outputs[2] for label in load_task("mnli").labels)


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    commands = blocks("")[0].split()
    makefile = README.with_name("Makefile").read_text(encoding="utf-8")
    assert commands == ["make", "demo", "make", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in ("demo", "test"))
