"""Students that are timed, and the random sentences that they and their peers read.

Their peers are in `transformer_peers` and `static_peers`.

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
from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import write_text
from pipeline.tasks.target import Target
from pipeline.text.tokenizer import SPECIAL_TOKENS, pad_id, tokenizer_sha256, wordpiece
from student.model.build_config import build_config
from student.model.student import Student, num_parameters
from student.predict.engine_predictor import FolderPredictor
from student.predict.predictor import Predictor
from student.settings import TrainSettings
from student.train import write_student_file

ROWS, PAPER_LENGTH = 256, 64
MEAN_LENGTH, LENGTH_SIGMA, MAX_LENGTH = 13.2, 0.6, 60
DOCUMENT_BYTES = 3600  # two pages
MEASURES = {
    "paper": f"from {ROWS} x {PAPER_LENGTH} random ids to vectors",
    "realistic": f"from ids of sentences of {MEAN_LENGTH} tokens in the mean to vectors",
    "text": f"from text to labels, sentences of {MEAN_LENGTH} tokens in the mean",
    "documents": f"from text to labels, documents of {DOCUMENT_BYTES:,} bytes",
}
OF_IDS = ("paper", "realistic")  # the measures that begin with ids
SYLLABLES = tuple(f"{consonant}{vowel}" for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou")


@dataclass(frozen=True)
class Texts:
    """`ROWS` inputs, whose words are drawn from the tokenizer's by Zipf's law.

    Attributes:
        first: the (first) texts.
        second: the second texts of pairs, or None for single texts.
        num_tokens: of each input [N].
        num_bytes: of an input, in the mean.
    """

    first: list[str]
    second: list[str] | None
    num_tokens: Ints
    num_bytes: float


@dataclass(frozen=True)
class Sentences:
    """What every reader is timed on, by the names of `MEASURES`.

    Attributes:
        paper: ids of `ROWS` sentences of `PAPER_LENGTH` tokens, uniformly random.
        realistic: ids of `ROWS` sentences, their lengths log-normal, their ids uniformly random.
        text: sentences of the same lengths.
        documents: texts of `DOCUMENT_BYTES`.
    """

    paper: Ragged
    realistic: Ragged
    text: Texts
    documents: Texts


def make_sentences(tokenizer: Tokenizer, vocabulary_size: int, pad_id: int, is_pair: bool) -> Sentences:
    """Returns random sentences for a student.

    Args:
        tokenizer: the source of the texts' words.
        vocabulary_size: the number of ids to draw from.
        pad_id: the id that does not occur in any sentence.
        is_pair: whether the student reads pairs.
    """
    random = np.random.default_rng(0)
    paper = _random_ids(random, np.full(ROWS, PAPER_LENGTH), vocabulary_size, pad_id)
    realistic = _random_ids(random, _lengths(random), vocabulary_size, pad_id)
    sentences = [_texts(random, tokenizer, _lengths(random)) for _ in range(1 + is_pair)]
    most_words = np.full(ROWS, DOCUMENT_BYTES // 2)
    long = [_texts(random, tokenizer, most_words, DOCUMENT_BYTES) for _ in range(1 + is_pair)]
    return Sentences(paper, realistic, _counted(tokenizer, sentences), _counted(tokenizer, long))


def _counted(tokenizer: Tokenizer, parts: Sequence[list[str]]) -> Texts:
    counts = [[len(row) for row in tokenizer.encode_batch(part, add_special_tokens=False)] for part in parts]
    num_bytes = sum(len(text.encode()) for part in parts for text in part) / ROWS
    return Texts(parts[0], parts[1] if len(parts) == 2 else None, np.sum(counts, axis=0), num_bytes)


def _lengths(random: np.random.Generator) -> Ints:
    # The mean of a log-normal distribution is exp(mu + sigma^2 / 2).
    mu = np.log(MEAN_LENGTH) - LENGTH_SIGMA**2 / 2
    return np.clip(random.lognormal(mu, LENGTH_SIGMA, ROWS).astype(np.int64), 1, MAX_LENGTH)


def _random_ids(random: np.random.Generator, lengths_N: Ints, vocabulary_size: int, pad_id: int) -> Ragged:
    flat = random.integers(max(1, vocabulary_size - 1), size=lengths_N.sum())
    # Skips the id of padding without drawing again.
    flat += flat >= pad_id
    return Ragged(flat, np.concatenate([[0], np.cumsum(lengths_N)]))


def _texts(random: np.random.Generator, tokenizer: Tokenizer, lengths_N: Ints, most: int | None = None) -> list[str]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    words = sorted((token for token in vocabulary if token.isalpha()), key=vocabulary.__getitem__) or ["a"]
    # Zipf's law: frequent words repeat, as in real text, so that the caches of tokenizer and CPU are hit realistically.
    share_W = 1 / np.arange(1, len(words) + 1)
    share_W /= share_W.sum()
    return [" ".join(random.choice(words, count, p=share_W))[:most] + "." for count in lengths_N]


def made_up_tokenizer(size: int) -> Tokenizer:
    """A WordPiece tokenizer with this many tokens. Its words have two syllables or three."""
    words = chain(product(SYLLABLES, repeat=2), product(SYLLABLES, repeat=3))
    return wordpiece(islice(chain(".", ("".join(word) for word in words)), size - len(SPECIAL_TOKENS)))


BERT_VOCABULARY_SIZE = 30522
MAX_TOKENS = 2048  # of a new student, so that it reads whole documents


@dataclass(frozen=True)
class Reader:
    """A student, or a peer of it, on a device.

    Attributes:
        name: for people.
        precision: of its weights, ``fp32`` or ``bf16``.
        num_parameters: the number of trained parameters.
        encoding: prepares sentences given as ids and returns a function that computes their vectors. None if the model
            reads text only.
        predict: returns its labels for texts or pairs. Transformers return vectors.
        max_tokens: how many tokens of an input it reads. None: all.
        set_threads: limits the threads of the CPU that are not torch's.
    """

    name: str
    precision: str
    num_parameters: int
    encoding: Callable[[Ragged], Callable[[], object]] | None
    predict: Callable[[Sequence[str], Sequence[str] | None], object]
    max_tokens: int | None = None
    set_threads: Callable[[int], None] = lambda count: None


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
    max_seq_length: int = 128,
    is_pair: bool = False,
) -> Student:
    """The student described by the flags, with random weights, for a task with these labels."""
    facts = {
        "task": "bench",
        "target": Target(kind="classes", names=labels),
        "metrics": ("accuracy",),
        "is_pair": is_pair,
        "vocabulary_size": vocabulary_size,
        "pad_id": padding_idx,
        "tokenizer_sha256": tokenizer_sha256(tokenizer_json),
        "max_seq_length": max_seq_length,
    }
    return Student(build_config(flags, facts))


def write_default_student(run: Path) -> None:
    """Writes a student of the default size with random weights and made-up words."""
    tokenizer = made_up_tokenizer(BERT_VOCABULARY_SIZE)
    tokenizer_json = tokenizer.to_str()
    write_text(run / TOKENIZER_FILE, tokenizer_json)
    student = random_student(
        TrainSettings(), BERT_VOCABULARY_SIZE, ("yes", "no"), pad_id(tokenizer), tokenizer_json, MAX_TOKENS
    )
    student.save(run)
    write_student_file(run, {run: student})


def load_or_make(run: Path | None) -> Predictor:
    """The student of a run, or a new one of the default size."""
    if run is not None:
        return Predictor(run)
    with TemporaryDirectory() as folder:
        write_default_student(Path(folder))
        predictor = Predictor(folder)
        _ = predictor.student  # which is loaded when it is first used
        return predictor


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
    """Moves a student to a device and returns its reader. On a CPU, the engine reads texts if the run has its file."""
    student = predictor.student.to(device)
    reads = predictor
    if device.type != "cpu" and isinstance(predictor, FolderPredictor):
        reads = predictor.by_torch

    def encoding(ids: Ragged) -> Callable[[], torch.Tensor]:
        ids_T, starts_S = (torch.from_numpy(part).to(device) for part in (ids.flat, ids.offsets))

        def encode() -> torch.Tensor:
            features_NF: torch.Tensor = student.encoder.reduce(ids_T, starts_S)
            wait_for(device)
            return features_NF

        return encode

    limits = student.config.max_seq_length, reads.set_threads
    return Reader(name, "fp32", num_parameters(student), encoding, reads.columns, *limits)
