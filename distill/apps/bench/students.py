"""What is timed: students, and model2vec, a peer without layers or order; `peers` has the transformers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from tokenizers import Tokenizer

from distill.apps.bench.sentences import Sentences, made_up_tokenizer, make_sentences
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
WIDTH = 256  # of potion-base-8M


@dataclass(frozen=True)
class Reader:
    """A student, or a peer of it, on a device.

    Attributes:
        name: for people.
        precision: of its weights, ``fp32`` or ``bf16``.
        num_parameters: how many numbers were trained.
        encoding: prepares sentences given as ids; a call of what it returns makes their vectors. None if its vectors
            are made of text only.
        predict: what it says of texts, or of pairs of them.
    """

    name: str
    precision: str
    num_parameters: int
    encoding: Callable[[Ragged], Callable[[], object]] | None
    predict: Callable[[Sequence[str], Sequence[str] | None], object]


def wait_for(device: torch.device) -> None:
    """Returns when a GPU has done all that it was told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
            features_NF: torch.Tensor = student.encoder.reduce(ids_T, starts_S)
            wait_for(device)
            return features_NF

        return encode

    return Reader(name, "fp32", num_parameters(student), encoding, predictor)


def static_reader(name: str, tokenizer: Tokenizer, vocabulary_size: int) -> Reader:
    """A model of random vectors for the student's tokens; its own code makes vectors of texts, and predicts nothing."""
    from model2vec import StaticModel

    vectors_VE = np.random.default_rng(0).normal(size=(vocabulary_size, WIDTH)).astype(np.float32)
    model = StaticModel(vectors_VE, Tokenizer.from_str(tokenizer.to_str()))

    def predict(texts1: Sequence[str], texts2: Sequence[str] | None) -> object:
        return [model.encode(list(texts)) for texts in (texts1, texts2) if texts is not None]

    return Reader(name, "fp32", vectors_VE.size, None, predict)
