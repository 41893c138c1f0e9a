"""Encoders of a bert, of the default student and of a BERT in transformers, on one core, in processor time.

Then a bert's training step, forward and backward, in float32 and in bf16.

``python -m tests.benchmarks.attention FOLDER_OF_A_BERT``; weights of students are random.
"""

import sys
from collections.abc import Callable
from functools import partial
from time import process_time
from unittest.mock import patch

import torch
from transformers import BertModel

from distill.apps.timing import interleaved
from pipeline import console
from pipeline.tasks.target import Target
from student.encoders import bert
from student.model.build_config import build_config
from student.model.student import Student, num_parameters
from student.settings import TrainSettings

TOKENS, VOCABULARY = 8192, 30522
FACTS = {
    "task": "bench",
    "target": Target(kind="classes", names=("no", "yes")),
    "metrics": ("accuracy",),
    "is_pair": False,
    "vocabulary_size": VOCABULARY,
    "pad_id": 0,
    "special_ids": ((101,), (), (102,)),
    "tokenizer_sha256": "0" * 64,
    "max_seq_length": 128,
}


def main(folder: str) -> None:
    """Prints sequences a second by their length."""
    torch.set_num_threads(1)
    kinds: dict[str, TrainSettings] = {
        "hybrid": TrainSettings.from_flags(),
        "bert": TrainSettings.from_flags(embedding="bert"),
    }
    students = {name: Student(build_config(flags, FACTS)).eval() for name, flags in kinds.items()}
    theirs = BertModel.from_pretrained(folder).eval()
    modules = {**students, folder: theirs}
    rows: dict[str, list[float]] = {name: [num_parameters(module)] for name, module in modules.items()}
    lengths, vocabulary = (16, 64, 128), min(VOCABULARY, theirs.config.vocab_size)
    for length in lengths:
        ids_NL = torch.randint(vocabulary, (TOKENS // length, length))
        calls = {name: partial(made.encoder, ids_NL) for name, made in students.items()}
        with torch.no_grad():
            seconds = interleaved({**calls, folder: partial(theirs, ids_NL)}, rounds=2, clock=process_time)
        for name, took in seconds.items():
            rows[name].append(round(len(ids_NL) / took))
    columns = ["", "parameters", *(f"{length} tokens, a second" for length in lengths)]
    console.print_table(columns, [[name, *numbers] for name, numbers in rows.items()])
    seconds = interleaved(training_steps(students["bert"].train()), rounds=5, clock=process_time)
    console.print_table(
        ["16 sequences of 53 tokens", "ms"], [[kind, round(1000 * took)] for kind, took in seconds.items()]
    )


def training_steps(student: Student) -> dict[str, Callable[[], object]]:
    """What makes a bert's gradients, by the arithmetic of its layers."""
    ids_NL = torch.randint(1000, VOCABULARY, (16, 53))

    def step(is_bf16: bool) -> None:
        with patch.object(bert, "has_fast_bf16", lambda: is_bf16):
            student.encoder(ids_NL).sum().backward()
        student.zero_grad()

    return {"float32": partial(step, False), "bf16": partial(step, True)}


if __name__ == "__main__":
    main(sys.argv[1])
