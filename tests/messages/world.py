"""A folder in which mistakes are made: sets, runs, tasks, rows, a teacher, and broken files of each kind."""

import json
import shutil
from pathlib import Path

import torch

from pipeline.tasks.target import make_target
from pipeline.tasks.task import load_task
from teacher.finetune.common import save_teacher
from teacher.models.classifier import new_classifier
from teacher.models.masked_lm import load_masked_lm
from teacher.tiny import create_tiny_bert
from tests.helpers.formats import FOLDER
from tests.helpers.toy_tasks import write_toy_tasks

RUNS = ("run", "run-int8", "run-pairs", "run-pretrained")
FILES = {
    "tasks/colums.yaml": "name: mine\ntype: classification\nlabels: [bad, good]\ncolums: {sentence1: text}\n",
    "tasks/broken.yaml": "name: [mine\n",
    "tasks/mine.yaml": (
        "name: mine\ntype: classification\nlabels: [bad, good]\ncolumns: {sentence1: text, label: label}\n"
        "metrics: [accuracy]\nsplits: {train: , validation: }\n"
    ),
    "rows/columns/train.csv": "txt,label\na,1\nb,0\n",
    "rows/labels/train.csv": "text,label\na,1\nb,2\nc,maybe\n",
    "rows/empty/train.csv": "text,label\n",
    "rows/twice/train.csv": "text,label\na,1\n",
    "rows/twice/train.jsonl": '{"text": "a", "label": 1}\n',
    "rows/kind/train.xlsx": "PK",
    "rows/json/train.jsonl": '{"text": "a", "label": 1}\n{"text": "b", "label": \n',
    "corpora/empty.txt": "\n\n",
    "corpora/rows.jsonl": '{"content": "a"}\n',
    "answers.jsonl": '{"sentence1": "the food was great .", "probabilities": {"godo": 0.9, "bad": 0.1}}\n',
    "recipe.yaml": "task: sst2\nalhpa: 0.5\nlearning_rate: -1\n",
    "experiment.yaml": "sets: {a: {}}\nstudnts: {}\n",
    "lines.csv": "review\nthe food was great .\n",
    "words.txt": "good 0.1 0.2\nbad 0.3\n",
}


def write_world(folder: Path) -> None:
    """Writes the whole folder."""
    shutil.copytree(FOLDER, folder / "logits", ignore=shutil.ignore_patterns("run*"))
    (folder / "logits" / "expected.json").unlink()
    for run in RUNS:
        shutil.copytree(FOLDER / run, folder / run)
    sentences = list(write_toy_tasks(folder, 24, 12))
    create_tiny_bert(folder / "bert", sentences, hidden_size=32, num_layers=1)
    task = load_task(manifest=folder / "opinion.yaml")
    torch.manual_seed(1)
    teacher = new_classifier(task, make_target(task), str(folder / "bert"), None, 32)
    save_teacher(teacher.model, teacher.name, None, folder / "teacher")
    masked_lm = load_masked_lm(str(folder / "bert"), None, 32, new_head=True)
    save_teacher(masked_lm.model, masked_lm.name, None, folder / "masked-lm")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "rows/bytes").mkdir()
    (folder / "rows/bytes/train.csv").write_bytes("text,label\nna\u00efve,1\n".encode("latin-1"))


def edit(path: str, **changes: object) -> None:
    """Changes keys of a record, whose checksum goes, as its message advises."""
    values = json.loads(Path(path).read_text())
    values.pop("record_sha256", None)
    Path(path).write_text(json.dumps(values | changes))


def flip(path: str) -> None:
    """Changes a byte in the middle of a file."""
    content = bytearray(Path(path).read_bytes())
    content[len(content) // 2] ^= 1
    Path(path).write_bytes(content)


def cut(path: str) -> None:
    """Takes the end of a file away."""
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: len(content) // 2])
