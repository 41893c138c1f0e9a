"""The student among those that ``distill bench`` compares."""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from distill.apps.bench.reader import Reader, wait_for
from distill.apps.bench.sentences import Sentences, make_sentences
from distill.apps.bench.vocabulary import made_up_tokenizer
from pipeline.arrays import Ragged
from pipeline.errors import ConfigError, raise_all
from pipeline.files import write_text
from pipeline.sets.record import TOKENIZER_FILE
from pipeline.tasks.target import Target
from pipeline.text.tokenizer import pad_id, tokenizer_sha256
from student.config import TrainConfig
from student.model.build_config import build_config
from student.model.model import Student, num_parameters
from student.predict import Predictor

BERT_VOCABULARY_SIZE = 30522


def random_student(
    flags: TrainConfig,
    vocabulary_size: int,
    labels: tuple[str, ...] = ("yes", "no"),
    padding_idx: int = 0,
    tokenizer_json: str = "{}",
) -> Student:
    """The student that the flags ask for, with random weights, for a task with these labels."""
    facts = {
        "task": "bench",
        "target": Target(kind="classes", names=labels),
        "metrics": ("accuracy",),
        "is_pair": False,
        "vocabulary_size": vocabulary_size,
        "pad_id": padding_idx,
        "tokenizer_sha256": tokenizer_sha256(tokenizer_json),
        "max_seq_length": 128,
    }
    return Student(build_config(flags, facts))


def write_default_student(run: Path) -> None:
    """Writes a student of the default size with random weights and made-up words."""
    tokenizer = made_up_tokenizer(BERT_VOCABULARY_SIZE)
    tokenizer_json = tokenizer.to_str()
    write_text(run / TOKENIZER_FILE, tokenizer_json)
    student = random_student(
        TrainConfig(), BERT_VOCABULARY_SIZE, padding_idx=pad_id(tokenizer), tokenizer_json=tokenizer_json
    )
    student.save(run)


def load_or_make(run: Path | None) -> Predictor:
    """The student of a run, or a new one of the default size."""
    if run is not None:
        return Predictor(run)
    with TemporaryDirectory() as folder:
        write_default_student(Path(folder))
        return Predictor(folder)


def load_peers(runs: Sequence[str], predictor: Predictor) -> dict[str, Predictor]:
    """Other students, by the folders of their runs, that can read the same sentences as a student.

    Raises:
        ConfigError: naming those that cannot.
    """
    peers = {run: Predictor(run) for run in runs}
    ours, problems = predictor.student.config, []
    for run, peer in peers.items():
        theirs = peer.student.config
        if (theirs.tokenizer_sha256, theirs.is_pair) != (ours.tokenizer_sha256, ours.is_pair):
            problems.append(f"{run}: reads with another tokenizer than the student, or other inputs")
    raise_all(ConfigError, "--peer", problems)
    return peers


def sentences_for(predictor: Predictor) -> Sentences:
    """What a student and its peers are given to read."""
    config = predictor.student.config
    return make_sentences(predictor.reader.tokenizer, config.vocabulary_size, config.pad_id, config.is_pair)


def student_reader(name: str, predictor: Predictor, device: torch.device) -> Reader:
    """A student that reads on a device; it is moved there."""
    student = predictor.student.to(device)

    def encoding(ids: Ragged) -> Callable[[], torch.Tensor]:
        ids_T, starts_S = (torch.from_numpy(part).to(device) for part in (ids.flat, ids.offsets))

        def encode() -> torch.Tensor:
            features_NF = student.encoder.reduce(ids_T, starts_S)
            wait_for(device)
            return features_NF

        return encode

    return Reader(name, "fp32", num_parameters(student), encoding, predictor)
