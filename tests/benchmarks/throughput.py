"""Inputs a second of students and of what people use instead: ``python -m tests.benchmarks.throughput [NAME ...]``.

A name is the folder of a run, or one of `PEERS`. Without names, a student of the default size is compared with all of
them. Everyone reads the same inputs in turns, on one core, on all cores and on a GPU if there is one.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from distill.apps.timing import ROUNDS, fitting_rows, interleaved, using_threads
from pipeline import console
from pipeline.arrays import Ragged
from pipeline.devices import has_fast_bf16
from student.predict.predictor import Predictor
from tests.benchmarks import readers
from tests.benchmarks.random_student import write_random_student
from tests.benchmarks.readers import TRANSFORMERS, Reader, Texts
from tests.benchmarks.tokenization import lines_of_documentation, taught_tokenizer
from tests.benchmarks.training_step import lengths

ROWS, PAPER_LENGTH = 256, 64  # the protocol of Galke et al. 2022, Table V
DOCUMENT_LINES = 80  # about two pages
MAX_TOKENS = 2048  # of the new student, so that it reads whole documents
SECONDS = 90.0  # in all, approximately
TURNS = ROUNDS + 3  # including one warm-up and about two turns for finding the size of a turn
STATIC = ("model2vec", "nanotoken", "fasttext")
PEERS = (*TRANSFORMERS, *STATIC)
NEW_STUDENT = "new student"
Inputs = Mapping[str, Ragged | Texts]


def throughput(*names: str) -> dict[str, list[dict[str, object]]]:
    """Measures inputs a second and prints them. Returns the rows of each table, by its title."""
    students = students_of([name for name in names if name not in PEERS])
    wanted = [name for name in names if name in PEERS] if names else PEERS
    first = next(iter(students.values()))
    inputs = inputs_of(first)
    found: dict[str, list[dict[str, object]]] = {}
    for device in ("cpu", "cuda")[: 1 + torch.cuda.is_available()]:
        alternatives = _readers(students, wanted, inputs, torch.device(device))
        counts = sorted({1, torch.get_num_threads()}) if device == "cpu" else [torch.get_num_threads()]
        places = [f"{count} thread{'s' if count > 1 else ''}" for count in counts] if device == "cpu" else ["GPU"]
        for title, read in inputs.items():
            rates = [_rates(alternatives, read, count, SECONDS / len(inputs) / len(counts)) for count in counts]
            fastest = rates[-1]
            rows = [
                [name, *(rate[name] for rate in rates), fastest[next(iter(fastest))] / fastest[name]]
                for name in fastest
            ]
            columns = ["", *(f"a second, {place}" for place in places), "x slower than the first"]
            console.print_table(columns, rows, title=title)
            found[f"{title}, {device}"] = [dict(zip(("name", *columns[1:]), row, strict=True)) for row in rows]
    return found


def students_of(runs: list[str]) -> dict[str, Predictor]:
    """The students of some runs, or a new one of the default size."""
    if runs:
        return {run: Predictor(run) for run in runs}
    with TemporaryDirectory() as folder:
        tokenizer = taught_tokenizer(lines_of_documentation())
        write_random_student(Path(folder), tokenizer, max_seq_length=MAX_TOKENS)
        predictor = Predictor(folder)
        _ = predictor.student  # which is loaded when it is first used
        return {NEW_STUDENT: predictor}


def inputs_of(predictor: Predictor) -> dict[str, Ragged | Texts]:
    """Ids and texts for a student and its peers, each with what is made of them."""
    lines, config = lines_of_documentation(), predictor.student.config
    repeated = iter(lines * (1 + ROWS * DOCUMENT_LINES // len(lines)))
    documents = [" ".join(islice(repeated, DOCUMENT_LINES)) for _ in range(ROWS)]
    paper = _random_ids(np.full(ROWS, PAPER_LENGTH), config.vocabulary_size, config.pad_id)
    realistic = _random_ids(lengths(ROWS), config.vocabulary_size, config.pad_id)

    def texts(first: list[str]) -> Texts:
        return first, first[::-1] if config.is_pair else None

    num_bytes = sum(len(document.encode()) for document in documents) // ROWS
    return {
        f"from {ROWS} x {PAPER_LENGTH} random ids to vectors": paper,
        f"from ids of {ROWS} sentences of {realistic.lengths.mean():.1f} tokens in the mean to vectors": realistic,
        f"from {ROWS} lines of documentation to labels": texts(lines[:ROWS]),
        f"from documents of {num_bytes:,} bytes in the mean to labels": texts(documents),
    }


def _random_ids(lengths_N: np.ndarray, vocabulary_size: int, pad_id: int) -> Ragged:
    flat = np.random.default_rng(0).integers(max(1, vocabulary_size - 1), size=lengths_N.sum())
    # Skips the id of padding without drawing again.
    flat += flat >= pad_id
    return Ragged(flat, np.concatenate([[0], np.cumsum(lengths_N)]))


def _readers(
    students: Mapping[str, Predictor], wanted: tuple[str, ...] | list[str], inputs: Inputs, device: torch.device
) -> dict[str, Reader]:
    """The students, and the wanted peers with the tokenizer of the first one, on a device."""
    found = {name: readers.student_reader(predictor, device) for name, predictor in students.items()}
    first = next(iter(students.values()))
    tokenizer, config = first.reader.tokenizer, first.student.config
    if device.type == "cpu":
        makers: dict[str, Callable[[], Reader]] = {
            "model2vec": lambda: readers.static_reader(tokenizer, config.is_pair),
            "nanotoken": lambda: readers.nanotoken_reader(tokenizer, config.is_pair),
            "fasttext": lambda: readers.fasttext_reader([one for one in inputs.values() if isinstance(one, tuple)]),
        }
        found |= {name: makers[name]() for name in STATIC if name in wanted}
    # Emulated bf16 would make the transformers look slower than they are.
    for precision in ("fp32", "bf16")[: 1 + has_fast_bf16()]:
        for name in (name for name in TRANSFORMERS if name in wanted):
            model = readers.new_transformer(TRANSFORMERS[name], precision, device)
            found[f"{name}, {precision}"] = readers.transformer_reader(model, tokenizer, config.max_seq_length)
    return found


def _rates(alternatives: Mapping[str, Reader], read: Ragged | Texts, threads: int, seconds: float) -> dict[str, float]:
    """Inputs a second by name. Every reader gets the same time, because slow ones would take most of it otherwise."""
    work = {name: made for name, one in alternatives.items() if (made := _work(one, read)) is not None}
    turn = seconds / len(work) / TURNS
    with using_threads(threads), torch.inference_mode():
        for reader in alternatives.values():
            reader.set_threads(threads)
        sizes = {name: fitting_rows(make, ROWS, turn) for name, make in work.items()}
        taken = interleaved({name: partial(_repeat, work[name](rows), n) for name, (rows, n) in sizes.items()})
    return {name: rows * calls / taken[name] for name, (rows, calls) in sizes.items()}


def _work(reader: Reader, read: Ragged | Texts) -> Callable[[int], Callable[[], object]] | None:
    """Returns what prepares the reading of some first rows, or None if that is not supported."""
    if isinstance(read, tuple):
        first, second = read
        return lambda rows: lambda: reader.predict(first[:rows], second and second[:rows])
    encoding = reader.encoding
    return None if encoding is None else lambda rows: encoding(read.take(range(rows)))


def _repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


if __name__ == "__main__":
    throughput(*sys.argv[1:])
