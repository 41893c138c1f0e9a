"""``distill bench``: the student of the one package, its peers of the other."""

import importlib.util
from functools import partial
from typing import TYPE_CHECKING

from distill.apps.bench.config import PEERS, TRANSFORMERS, BenchConfig
from distill.commands.options import needs_libraries, needs_teacher_libraries, takes
from pipeline import console
from pipeline.errors import MissingDependencyError

if TYPE_CHECKING:
    import torch

    from distill.apps.bench.reader import Reader
    from student.predict import Predictor

Left = dict[str, str]


@takes(BenchConfig)
def bench(config: BenchConfig) -> None:
    """Measure how many sentences a second a student reads on this machine, beside BERT and its likes."""
    if config.output is not None:
        needs_libraries("distill bench --output", "report", "matplotlib")
    left_out = _not_installed(config)
    wanted = [peer for peer in config.peers if peer not in left_out]
    from distill.apps.bench.run import measure
    from distill.apps.bench.student import load_or_make, load_peers, sentences_for
    from pipeline.device import has_fast_bf16

    if not has_fast_bf16() and TRANSFORMERS.keys() & wanted:
        left_out["bf16"] = "this machine has no instructions for it"
    name = config.student.resolve().name if config.student else "new student"
    predictor = load_or_make(config.student)
    students = {name: predictor} | load_peers([peer for peer in wanted if peer not in PEERS], predictor)
    speeds = measure(partial(_readers, students, wanted), sentences_for(predictor), config.seconds)
    for left, reason in left_out.items():
        console.note(f"left out: {left}: {reason}")
    if config.output is not None:
        from distill.apps.bench.picture import draw_speeds

        draw_speeds(config.output, speeds)
    from distill.apps.bench.show import as_json, print_speeds

    if config.json_output:
        settings = {"student": str(config.student) if config.student else None, "seconds": config.seconds}
        console.print_json(as_json(speeds, settings | {"left_out": left_out}))
    else:
        print_speeds(speeds)


def _not_installed(config: BenchConfig) -> Left:
    """The peers whose library is missing, and why; that is an error only if they were asked for by name."""
    missing: Left = {}
    for name in config.peers:
        try:
            if name in TRANSFORMERS:
                needs_teacher_libraries()
            elif name == "model2vec" and importlib.util.find_spec(name) is None:
                raise MissingDependencyError("model2vec is not installed: pip install model2vec")
        except MissingDependencyError as error:
            if config.peer:
                raise
            missing[name] = str(error)
    return missing


def _readers(students: "dict[str, Predictor]", wanted: list[str], device: "torch.device") -> "list[Reader]":
    """The students, of which the first is the one that is asked about, and the peers that are wanted, on a device."""
    from distill.apps.bench.student import student_reader

    first = next(iter(students.values()))
    tokenizer, student = first.reader.tokenizer, first.student.config
    readers = [student_reader(name, predictor, device) for name, predictor in students.items()]
    if "model2vec" in wanted and device.type == "cpu":
        from distill.apps.bench.static_vectors import static_reader

        readers.append(static_reader("model2vec", tokenizer, student.vocabulary_size))
    transformers = {peer: PEERS[peer] for peer in TRANSFORMERS if peer in wanted}
    if transformers:
        from distill.apps.bench.peers import peer_readers

        readers += peer_readers(transformers, tokenizer, student.max_seq_length, device)
    return readers
