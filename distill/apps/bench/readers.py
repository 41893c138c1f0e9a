"""The models that are timed: students and model2vec, on the same random sentences. The transformers are in `peers`.

The paper's protocol (Galke et al. 2022, Table V) is 256 sentences of 64 tokens. Real sentences are shorter and vary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from tokenizers import Tokenizer

from pipeline.arrays import Ints, Ragged
from pipeline.errors import ConfigError, raise_all
from pipeline.files import write_text
from pipeline.tasks.target import Target
from pipeline.text.tokenizer import SPECIAL_TOKENS, pad_id, tokenizer_sha256, wordpiece
from pipeline.training.run_record import TOKENIZER_FILE
from student.config import TrainSettings
from student.model.build_config import build_config
from student.model.model import Student, num_parameters
from student.predict import Predictor

ROWS, PAPER_LENGTH = 256, 64
MEAN_LENGTH, LENGTH_SIGMA, MAX_LENGTH = 13.2, 0.6, 60
MEASURES = {
    "paper": f"from {ROWS} x {PAPER_LENGTH} random ids to vectors",
    "realistic": f"from ids of sentences of {MEAN_LENGTH} tokens in the mean to vectors",
    "text": "from text to predictions",
}
SYLLABLES = tuple(f"{consonant}{vowel}" for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou")


@dataclass(frozen=True)
class Sentences:
    """The sentences on which every reader is timed.

    Attributes:
        paper: ids of `ROWS` sentences of `PAPER_LENGTH` tokens, uniformly random.
        realistic: ids of `ROWS` sentences, their lengths log-normal, their ids uniformly random.
        texts: `ROWS` texts of the same lengths, whose words are drawn from the tokenizer's by Zipf's law.
        seconds: the second sentences of pairs, or None for single sentences.
    """

    paper: Ragged
    realistic: Ragged
    texts: list[str]
    seconds: list[str] | None


def make_sentences(tokenizer: Tokenizer, vocabulary_size: int, pad_id: int, is_pair: bool) -> Sentences:
    """Returns random sentences for a student.

    Args:
        tokenizer: the source of the texts' words.
        vocabulary_size: the number of ids to draw from.
        pad_id: the id that does not occur in any sentence.
        is_pair: whether the student reads pairs.
    """
    random = np.random.default_rng(0)
    return Sentences(
        _random_ids(random, np.full(ROWS, PAPER_LENGTH), vocabulary_size, pad_id),
        _random_ids(random, _lengths(random), vocabulary_size, pad_id),
        _texts(random, tokenizer),
        _texts(random, tokenizer) if is_pair else None,
    )


def _lengths(random: np.random.Generator) -> Ints:
    # The mean of a log-normal distribution is exp(mu + sigma^2 / 2).
    mu = np.log(MEAN_LENGTH) - LENGTH_SIGMA**2 / 2
    return np.clip(random.lognormal(mu, LENGTH_SIGMA, ROWS).astype(np.int64), 1, MAX_LENGTH)


def _random_ids(random: np.random.Generator, lengths_N: Ints, vocabulary_size: int, pad_id: int) -> Ragged:
    flat = random.integers(max(1, vocabulary_size - 1), size=lengths_N.sum())
    # Skips the id of padding without drawing again.
    flat += flat >= pad_id
    return Ragged(flat, np.concatenate([[0], np.cumsum(lengths_N)]))


def _texts(random: np.random.Generator, tokenizer: Tokenizer) -> list[str]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    words = sorted((token for token in vocabulary if token.isalpha()), key=vocabulary.__getitem__) or ["a"]
    # Zipf's law: frequent words repeat, as in real text, so that the caches of tokenizer and CPU are hit realistically.
    share_W = 1 / np.arange(1, len(words) + 1)
    share_W /= share_W.sum()
    return [" ".join(random.choice(words, count, p=share_W)) + "." for count in _lengths(random)]


def made_up_tokenizer(size: int) -> Tokenizer:
    """A WordPiece tokenizer with this many tokens. Its words have two syllables or three."""
    words = chain(product(SYLLABLES, repeat=2), product(SYLLABLES, repeat=3))
    return wordpiece(islice(chain(".", ("".join(word) for word in words)), size - len(SPECIAL_TOKENS)))


BERT_VOCABULARY_SIZE = 30522
WIDTH = 256  # of potion-base-8M


@dataclass(frozen=True)
class Reader:
    """A student, or a peer of it, on a device.

    Attributes:
        name: for people.
        precision: of its weights, ``fp32`` or ``bf16``.
        num_parameters: the number of trained parameters.
        encoding: prepares sentences given as ids and returns a function that computes their vectors. None if the model
            computes vectors from text only.
        predict: returns its predictions for texts or pairs.
    """

    name: str
    precision: str
    num_parameters: int
    encoding: Callable[[Ragged], Callable[[], object]] | None
    predict: Callable[[Sequence[str], Sequence[str] | None], object]


def wait_for(device: torch.device) -> None:
    """Waits until a GPU has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_student(
    flags: TrainSettings,
    vocabulary_size: int,
    labels: tuple[str, ...] = ("yes", "no"),
    padding_idx: int = 0,
    tokenizer_json: str = "{}",
) -> Student:
    """The student described by the flags, with random weights, for a task with these labels."""
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
        TrainSettings(), BERT_VOCABULARY_SIZE, padding_idx=pad_id(tokenizer), tokenizer_json=tokenizer_json
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
            problems.append(f"{run}: has another tokenizer than the student, or other inputs")
    raise_all(ConfigError, "--peer", problems)
    return peers


def sentences_for(predictor: Predictor) -> Sentences:
    """Returns the sentences that a student and its peers read."""
    config = predictor.student.config
    return make_sentences(predictor.reader.tokenizer, config.vocabulary_size, config.pad_id, config.is_pair)


def student_reader(name: str, predictor: Predictor, device: torch.device) -> Reader:
    """Moves a student to a device and returns its reader."""
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
    """Returns model2vec's own model with random vectors for the student's tokens.

    It encodes texts and predicts nothing.
    """
    from model2vec import StaticModel

    vectors_VE = np.random.default_rng(0).normal(size=(vocabulary_size, WIDTH)).astype(np.float32)
    model = StaticModel(vectors_VE, Tokenizer.from_str(tokenizer.to_str()))

    def predict(texts1: Sequence[str], texts2: Sequence[str] | None) -> object:
        return [model.encode(list(texts)) for texts in (texts1, texts2) if texts is not None]

    return Reader(name, "fp32", vectors_VE.size, None, predict)
