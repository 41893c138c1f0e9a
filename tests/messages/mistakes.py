"""Mistakes that users make, by what they are about: a command or a line of Python each, made in a world of its own."""

import errno
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tests.messages.world import cut, edit, flip

EXTENDED, TOPK = "logits/extended", "logits/topk"
TRAIN = "distill train-student --set extended"
NO_EXTRA = "without the extra"
MINE = "--manifest tasks/mine.yaml --model-name-or-path teacher --data"
CORPUS = "--signal mlm --corpus x --model-name-or-path masked-lm --data"
TEACHER = "--manifest opinion.yaml --data data --model-name-or-path"


@dataclass(frozen=True)
class Mistake:
    """What somebody does, and in what circumstances.

    Attributes:
        line: a command line, or Python after ``>>>``.
        note: the circumstances, in words; empty if the line says all.
        before: changes the world first.
        meanwhile: what holds while the line runs.
    """

    line: str
    note: str = ""
    before: Callable[[], object] = lambda: None
    meanwhile: Callable[[], AbstractContextManager[object]] = nullcontext


def without(*packages: str) -> Callable[[], AbstractContextManager[object]]:
    """As if packages were not installed."""
    return lambda: patch.dict(sys.modules, dict.fromkeys(packages))


def full_disk() -> AbstractContextManager[object]:
    """As if no file could be put in its place any more."""
    return patch("os.replace", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


MISTAKES: dict[str, list[Mistake]] = {
    "Flags": [
        Mistake("distill corpora"),
        Mistake("distill verfy dense"),
        Mistake("distill verify dense --stroe x"),
        Mistake("distill teacher-dump"),
        Mistake("distill teacher-dump --task mlni"),
        Mistake("distill teacher-dump --task sst2 --name ../x --max-seq-length 3 --rows-per-shard 0 --shard-index -1"),
        Mistake("distill teacher-dump --task sst2 --signal mlm"),
        Mistake("distill teacher-dump --task sst2 --shard-index 3 --num-shards 3"),
        Mistake("distill teacher-dump --task sst2 --codec topk-5"),
        Mistake("distill train-student"),
        Mistake("distill train-student --tsk opinion"),
        Mistake("distill train-student --task opinion"),
        Mistake(f"{TRAIN} --alpha 7 --temperature 0 --embedding elmo"),
        Mistake(f"{TRAIN} --embedding lstm --matrix-size 3"),
        Mistake(f"{TRAIN} --head bilstm --window-size 3"),
        Mistake(f"{TRAIN} --recipe rtee"),
        Mistake(f"{TRAIN} --recipe recipe.yaml"),
        Mistake(f"{TRAIN} --set joined --mix maen"),
        Mistake(f"{TRAIN} --where 'label = 7'"),
        Mistake(f"{TRAIN} --where 'labell = 1'"),
        Mistake(f"{TRAIN} --init words.txt --vector-size 2"),
        Mistake("distill sweep --set extended --grid alfa=1 --grid store=x --grid alpha=3"),
        Mistake("distill recode topk --codec dense --name wider"),
        Mistake("distill augment --task sst2 --method mask-pos --masked-lm bert"),
        Mistake("distill sweep --experiment experiment.yaml --teachers x"),
        Mistake("distill export run"),
        Mistake("distill predict run"),
        Mistake("distill predict run 'a text' --file lines.csv"),
        Mistake("distill predict run --file lines.csv --output answers.parquet"),
        Mistake("distill predict run --file lines.csv --output answers.xlsx"),
        Mistake("distill pull gopher://x/y"),
        Mistake("distill pull s3:/bucket/set"),
        Mistake(">>> distill.train_student(taks='extended')"),
        Mistake(">>> distill.Predictor('run')('the food was great .')"),
        Mistake(">>> distill.Predictor('run')(['the food was great .', None])"),
    ],
    "Tasks and rows": [
        Mistake("distill tasks show mlni"),
        Mistake("distill tasks show --manifest gone.yaml"),
        Mistake("distill tasks show --manifest tasks/broken.yaml"),
        Mistake("distill tasks show --manifest tasks/colums.yaml"),
        Mistake(f"distill teacher-dump {MINE} rows/gone"),
        Mistake(f"distill teacher-dump {MINE} rows/columns"),
        Mistake(f"distill teacher-dump {MINE} rows/labels"),
        Mistake(f"distill teacher-dump {MINE} rows/empty"),
        Mistake(f"distill teacher-dump {MINE} rows/twice"),
        Mistake(f"distill teacher-dump {MINE} rows/kind"),
        Mistake(f"distill teacher-dump {MINE} rows/bytes"),
        Mistake("distill teacher-dump --signal mlm --corpus wikitex --model-name-or-path bert"),
        Mistake(f"distill teacher-dump {CORPUS} corpora/empty.txt"),
        Mistake(f"distill teacher-dump {CORPUS} corpora/rows.jsonl"),
        Mistake("distill import answers.jsonl --teacher somebody --manifest opinion.yaml --data data"),
    ],
    "Teachers": [
        Mistake(f"distill teacher-dump {TEACHER} ./gone"),
        Mistake(f"distill teacher-dump {TEACHER} bert"),
        Mistake(f"distill teacher-dump {TEACHER} teacher --max-seq-length 600"),
        Mistake(f"distill teacher-dump {TEACHER} teacher --teacher-labels bad,goood"),
        Mistake(f"distill teacher-dump {TEACHER} teacher --keep states=7"),
        Mistake(
            f"distill teacher-dump {TEACHER} teacher",
            "its config calls the labels x and y",
            before=lambda: edit("teacher/config.json", id2label={"0": "x", "1": "y"}, label2id={"x": 0, "y": 1}),
        ),
        Mistake(f"distill teacher-dump {CORPUS} lines.csv"),
    ],
    "Sets": [
        Mistake("distill verify dens"),
        Mistake("distill train-student --set topk"),
        Mistake("distill pretrain-student --set extended"),
        Mistake("distill pretrain-student --set topk --temperature 2"),
        Mistake("distill diff extended topk"),
        Mistake("distill join joined --data data --manifest opinion.yaml --name x"),
        Mistake("distill train-student --set text-free --where \"sentence1 = 'x'\""),
        Mistake(
            "distill verify extended",
            "a byte of a shard is another",
            before=lambda: flip(f"{EXTENDED}/examples/train-00000-of-00001.parquet"),
        ),
        Mistake(
            "distill verify extended",
            "its shards are gone",
            before=lambda: shutil.rmtree(f"{EXTENDED}/examples"),
        ),
        Mistake(
            "distill verify extended",
            "another tokenizer",
            before=lambda: Path(EXTENDED, "tokenizer.json").write_text("{}"),
        ),
        Mistake(
            "distill verify topk", "of a later release", before=lambda: edit(f"{TOPK}/distill.json", format_version=5)
        ),
        Mistake(
            "distill verify topk",
            "its record was edited",
            before=lambda: edit(f"{TOPK}/distill.json", nam="x", state="done"),
        ),
        Mistake("distill verify topk", "its record is torn", before=lambda: Path(TOPK, "distill.json").write_text("{")),
        Mistake(
            TRAIN,
            "it was never verified",
            before=lambda: edit(f"{EXTENDED}/distill.json", state="complete"),
        ),
        Mistake(
            "distill push topk there",
            "it is not finished",
            before=lambda: edit(f"{TOPK}/distill.json", state="staged"),
        ),
    ],
    "Runs": [
        Mistake("distill evaluate gone"),
        Mistake("distill evaluate run --store elsewhere"),
        Mistake("distill predict run x", "without its weights", before=lambda: Path("run/model.safetensors").unlink()),
        Mistake("distill predict run x", "its weights are cut off", before=lambda: cut("run/model.safetensors")),
        Mistake(
            "distill predict run x", "its config was edited", before=lambda: edit("run/config.json", vector_size=0)
        ),
        Mistake("distill predict run-pretrained x"),
        Mistake(f"{TRAIN} --output-dir run --learning-rate 0.5"),
        Mistake("distill certify run --where 'label = 0' --store gone"),
    ],
    "SQL": [
        Mistake("distill sql 'from nobody'"),
        Mistake("distill sql 'drop view extended'"),
        Mistake("distill sql \"select getenv('HOME')\""),
        Mistake("distill sql \"from read_csv('/etc/passwd')\""),
        Mistake("distill sql \"from extended where label = 'good'\""),
        Mistake("distill sql --explain-row extended:trian:1"),
        Mistake("distill sql 'select 1' --json --csv"),
        Mistake("distill sql 'select 1' --store gone"),
    ],
    "The machine": [
        Mistake("distill export run --onnx run.onnx", NO_EXTRA, meanwhile=without("onnxscript")),
        Mistake("distill report run", NO_EXTRA, meanwhile=without("matplotlib")),
        Mistake("distill serve run", NO_EXTRA, meanwhile=without("torch")),
        Mistake(
            f"{TRAIN} --report-to tensorboard",
            NO_EXTRA,
            meanwhile=without("tensorboard"),
        ),
        Mistake(
            f"distill finetune-teacher {TEACHER} bert --output-dir new",
            NO_EXTRA,
            meanwhile=without("transformers"),
        ),
        Mistake("distill sql 'from sets'", "the disk is full", meanwhile=full_disk),
        Mistake("distill pull http://127.0.0.1:9/set", "nothing answers there"),
    ],
}
