"""What the tortured commands read: tiny tasks, teachers, sets and runs, made by the commands themselves."""

import json
import shutil
from pathlib import Path

from torch.nn import init

from teacher.finetune.common import save_teacher
from teacher.models.masked_lm import load_masked_lm
from teacher.tiny import create_tiny_bert
from tests.helpers.new_teachers import save_new_teacher
from tests.helpers.toy_tasks import write_toy_tasks
from tests.torture.cases import DUMP, HELD_OUT, LAYERS, SEVERAL, STUDENT, TOKENS, run_all

TRAIN_ROWS, VALIDATION_ROWS = 24, 12
ROLES = "--manifest W/roles.yaml --data W/data --model-name-or-path W/both/roles --max-seq-length 32"
AGREEING = f"--where 'not ({HELD_OUT})' --num-train-epochs 10 --learning-rate 0.1"
SHORT = (
    f"teacher-dump {DUMP} --store W/logits --token-vectors",
    f"train-student --set opinion --store W/logits --output-dir W/run {STUDENT} {AGREEING}",
    "push opinion file://W/there --store W/logits",
)
LONG = (
    f"teacher-dump {DUMP} --data W/fewer --store W/short --no-token-vectors",
    f"teacher-dump {TOKENS} --codec hidden --name tokens --store W/logits",
    "push opinion file://W/blind --store W/logits --without-text",
    f"teacher-dump {DUMP} --name layers --store W/logits --no-token-vectors {LAYERS}",
    f"finetune-teacher {SEVERAL} --model-name-or-path W/bert --output-dir W/both --max-seq-length 32",
    f"teacher-dump {ROLES} --store W/logits",
)
EXPERIMENT = """
sets: {default: {max_seq_length: 32}}
students: {small: {matrix_size: 3, vector_size: 5, hidden_size: 8, num_train_epochs: 1}}
"""


def make_world(folder: Path, is_short: bool) -> None:
    """Fills a folder with everything that the cases name, or those of the short form."""
    sentences = write_toy_tasks(folder, TRAIN_ROWS, VALIDATION_ROWS)
    create_tiny_bert(folder / "bert", sentences, hidden_size=32, num_layers=1)
    # So sure that a student agrees, for `certify`.
    save_new_teacher(
        folder / "opinion.yaml",
        folder / "bert",
        folder / "teachers" / "opinion",
        change=lambda head: init.constant_(head.bias[1:], 2),
    )
    (folder / "texts.jsonl").write_bytes((folder / "data/opinion/validation.jsonl").read_bytes())
    run_all(folder, *SHORT)
    if is_short:
        return
    lm = load_masked_lm(str(folder / "bert"), None, 32, new_head=True)
    save_teacher(lm.model, lm.name, None, folder / "teachers" / "mlm")
    (folder / "corpus.txt").write_text("\n".join(line.capitalize() for line in sentences[:24]) + "\n")
    (folder / "experiment.yaml").write_text(EXPERIMENT)
    _shortened(folder / "data", folder / "fewer")
    _answer(folder / "data" / "opinion", folder / "answers.jsonl")
    run_all(folder, *LONG)


def _shortened(data: Path, folder: Path) -> None:
    """The same rows without the last third of those of ``train``."""
    shutil.copytree(data, folder)
    path = folder / "opinion" / "train.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) * 2 // 3]))


def _answer(data: Path, file: Path) -> None:
    """Somebody's answers to every row."""
    lines = [line for path in sorted(data.glob("*.jsonl")) for line in path.read_text().splitlines()]
    texts = dict.fromkeys(json.loads(line)["sentence1"] for line in lines)
    rows = [{"sentence1": text, "logits": [len(text) / 10, number / 7]} for number, text in enumerate(texts)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
