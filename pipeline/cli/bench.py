"""``distill bench``: the student of the one package, its peers of the other."""

import importlib.util
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pipeline import console
from pipeline.bench.config import PEERS, TRANSFORMERS, BenchConfig
from pipeline.cli.options import needs_report_libraries, needs_teacher_libraries, takes
from pipeline.errors import MissingDependencyError

if TYPE_CHECKING:
    import torch

    from pipeline.bench.reader import Reader
    from pipeline.bench.run import Speed
    from student.predict import Predictor

Left = dict[str, str]


@takes(BenchConfig)
def bench(config: BenchConfig) -> None:
    """Measure how many sentences a second a student reads on this machine, beside BERT and its likes."""
    if config.output is not None:
        needs_report_libraries("distill bench --output", "matplotlib")
    left_out = _not_installed(config)
    predictor = _student(config)
    speeds = _measure(config, predictor, left_out)
    for name, reason in left_out.items():
        console.note(f"left out: {name}: {reason}")
    if config.output is not None:
        from pipeline.bench.picture import draw_speeds

        draw_speeds(config.output, speeds)
    if config.json_output:
        console.print_json(_as_json(config, speeds, left_out))
    else:
        from pipeline.bench.show import print_speeds

        print_speeds(speeds)


def _not_installed(config: BenchConfig) -> Left:
    """The peers whose library is missing, and why; that is an error only if they were asked for by name."""
    missing: Left = {}
    for name in config.peers:
        try:
            if name in TRANSFORMERS:
                needs_teacher_libraries()
            elif importlib.util.find_spec("model2vec") is None:
                raise MissingDependencyError("model2vec is not installed: pip install model2vec")
        except MissingDependencyError as error:
            if config.peer:
                raise
            missing[name] = str(error)
    return missing


def _student(config: BenchConfig) -> "Predictor":
    from student.bench import write_default_student
    from student.predict import Predictor

    if config.student is not None:
        return Predictor(config.student)
    with TemporaryDirectory() as folder:
        write_default_student(Path(folder))
        return Predictor(folder)


def _measure(config: BenchConfig, predictor: "Predictor", left_out: Left) -> "list[Speed]":
    import torch

    from pipeline.bench.run import num_calls, places, speeds
    from pipeline.bench.sentences import make_sentences

    student = predictor.student.config
    sentences = make_sentences(predictor.reader.tokenizer, student.vocabulary_size, student.pad_id, student.is_pair)
    found, where = [], places()
    for device in dict.fromkeys(place.device for place in where):
        console.note(f"making students and peers on {device}")
        readers = _readers(config, predictor, torch.device(device), left_out)
        mine = [place for place in where if place.device == device]
        with console.progress(len(mine) * num_calls(readers), "benchmark") as bar:
            for place in mine:
                bar.describe(f"benchmark, {place}")
                found += speeds(readers, sentences, place, config.seconds / len(where), bar.advance)
    return found


def _readers(config: BenchConfig, predictor: "Predictor", device: "torch.device", left_out: Left) -> "list[Reader]":
    """The student, and the peers that are wanted and not left out, on a device."""
    from pipeline.device import has_fast_bf16
    from student.bench import student_reader

    name = config.student.resolve().name if config.student else "new student"
    readers = [student_reader(name, predictor, device)]
    wanted = [peer for peer in config.peers if peer not in left_out]
    if "model2vec" in wanted and device.type == "cpu":
        from pipeline.bench.static_vectors import static_reader

        readers.append(static_reader("model2vec", predictor.reader.tokenizer, predictor.student.config.vocabulary_size))
    transformers = [peer for peer in TRANSFORMERS if peer in wanted]
    if transformers and not has_fast_bf16():
        left_out["bf16"] = "this machine has no instructions for it"
    for peer in transformers:
        from teacher.peers import new_peer, peer_config, peer_reader

        for precision in ("fp32", "bf16") if has_fast_bf16() else ("fp32",):
            model = new_peer(peer_config(peer), precision, device)
            longest = predictor.student.config.max_seq_length
            readers.append(peer_reader(PEERS[peer], model, precision, predictor.reader.tokenizer, longest))
    return readers


def _as_json(config: BenchConfig, speeds: "list[Speed]", left_out: Left) -> dict[str, Any]:
    import torch

    from pipeline.bench.machine import processor

    return {
        "machine": {
            "processor": processor(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "torch": torch.__version__,
        },
        "student": str(config.student) if config.student else None,
        "seconds": config.seconds,
        "left_out": left_out,
        "speeds": [asdict(speed) for speed in speeds],
    }
