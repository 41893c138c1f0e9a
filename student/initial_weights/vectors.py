"""Token vectors of a student that start from its teacher's, from pretrained ones, or from a file of word vectors.

A teacher's token vectors follow the recipe of static embeddings (model2vec, Arora et al. 2017): principal components,
with smaller weights for frequent tokens if vectors are summed, because these would dominate a sum.

Pretrained vectors for BERT's uncased vocabulary are part of the package. The README.md here has all commands that make
their file, of which ``python -m student.initial_weights.vectors RUN FILE`` is the last one.

Shapes: V vocabulary, W width of the given vectors, E width of the student's, K = min(W, E), N vectors of D numbers.
"""

import argparse
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from pipeline import console
from pipeline.arrays import Floats, Ints
from pipeline.errors import ConfigError, DataError, DistillError, IntegrityError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.sets.open import LogitSet
from pipeline.sets.token_vectors import VocabularyVectors
from pipeline.text.text_to_ids import TextReader
from pipeline.text.tokenizer import bert_uncased
from pipeline.text.word_vectors import read_word_vectors
from pipeline.training.checkpoint import check_tensors, write_tensors
from student.encoders.encoder import Encoder
from student.encoders.specs import Aligned, Bert, EncoderSpec
from student.model.disk_rounding import rounded, widened
from student.settings import Start

# This is a in a / (a + p) of Arora et al. (2017), who recommend values from 1e-4 to 1e-3.
SIF_WEIGHT = 1e-3
INIT_FLAG = "--init"
FILE = Path(__file__).with_name("bert-uncased.safetensors")
# The name has the ending for which vectors of tokens are rounded in fine steps.
NAME, VOCABULARY = "vectors.table.weight", "vocabulary_sha256"
MOST_NUMBERS = 2**26
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PretrainedVectors:
    """Vectors that were trained to be summed, so frequent tokens already have short ones.

    Attributes:
        vector_VW: float32, by id.
        sha256: the checksum that their file contains.
    """

    vector_VW: torch.Tensor
    sha256: str


StartVectors = VocabularyVectors | PretrainedVectors


def starts_from_teacher(spec: EncoderSpec, init: str | None, first: LogitSet) -> bool:
    """Whether a student's vectors start from the token vectors of a set.

    Raises:
        ConfigError: if the flags require it, but there are no token vectors.
    """
    # A BERT starts from layers, which include their own word embeddings.
    if isinstance(spec, Bert):
        return False
    root, record, has_vectors = first.root, first.record, has_token_vectors(first)
    if init == "teacher" and first.vocabulary is not None:
        raise ConfigError(
            "--init teacher: token vectors belong to the tokens of the teacher, but the student has "
            f"{first.vocabulary.words}. Use --vocabulary teacher."
        )
    if init == "teacher" and not has_vectors:
        advice = f"Repeat its command to add them ({record.command}), or use --init noise"
        if record.teacher.is_imported:
            advice = "Its answers were imported, so use --init noise"
        raise ConfigError(f"--init teacher: {root} has no token vectors. {advice}")
    # Token vectors are the default where they exist, because they cost nothing at training time.
    return has_vectors and init != "noise" and spec.has_vectors


def has_token_vectors(first: LogitSet) -> bool:
    """Whether a set has vectors of the tokens of its rows."""
    return first.vocabulary is None and first.record.signals.token_vectors is not None


@torch.no_grad()
def start_from_vectors(encoder: Encoder, vectors: StartVectors, chosen_V: torch.Tensor | None = None) -> None:
    """Initializes the vectors of an encoder from others, also for unused tokens. The padding stays 0.

    If they are narrower than the student's, the other columns do not change.

    Args:
        encoder: an encoder with vectors.
        vectors: the teacher's vectors, or pretrained ones.
        chosen_V: bool, the tokens to initialize. Default: all.
    """
    table = encoder.vector_table()
    assert table is not None, "only called for a student with vectors"
    how = (encoder.pad_id, encoder.start_deviation, encoder.counts_less)
    # Principal components are fitted on the whole vocabulary, so the start does not depend on the rows chosen.
    start_VK = torch.from_numpy(start_vectors(vectors, table.embedding_dim, *how))
    chosen_V = torch.ones(len(start_VK), dtype=torch.bool) if chosen_V is None else chosen_V[: len(start_VK)].cpu()
    chosen_N = chosen_V.nonzero().flatten()
    encoder.start_vectors(chosen_N.to(table.weight.device), start_VK[chosen_N])


def start_vectors(
    vectors: StartVectors,
    size: int,
    pad_id: int,
    deviation: float = Encoder.start_deviation,
    counts_less: bool = True,
) -> Floats:
    """The initial vectors of a student.

    Args:
        vectors: the teacher's vectors, with the counts of the training rows, or pretrained ones.
        size: E.
        pad_id: the token whose row is 0. It may be past the vocabulary.
        deviation: standard deviation of all numbers together.
        counts_less: whether frequent tokens get shorter vectors. Pretrained ones stay as they are.

    Returns:
        start_VK: float32, the first K principal components, times the SIF weights if so. Pretrained vectors stay as
            they are if they are no wider.
    """
    if isinstance(vectors, PretrainedVectors):
        start_VK = vectors.vector_VW.double().numpy()
        # The mean is not subtracted, so sums keep the lengths and similarities that they were trained for.
        start_VK = onto_axes(start_VK, size) if size < start_VK.shape[1] else start_VK
    else:
        start_VK = principal_components(vectors.vector_VW.astype(np.float64), size)
        if counts_less:
            # Frequent tokens carry little meaning but would dominate a sum. An LSTM learns such weights itself.
            start_VK *= sif_weights(vectors.count_V)[:, None]
    # The padding must stay neutral. The slice does nothing if the token lies beyond the teacher's vocabulary.
    start_VK[pad_id : pad_id + 1] = 0
    return scaled(start_VK, deviation)


def scaled(start_NK: Doubles, deviation: float) -> Floats:
    """Returns vectors scaled to a standard deviation of all their numbers, float32. Zeros stay zeros."""
    theirs = start_NK.std()
    return (start_NK * (deviation / theirs if theirs else 0)).astype(np.float32)


def principal_components(vector_VW: Doubles, size: int) -> Doubles:
    """Returns the coordinates of vectors along their principal axes, float64 [V, K], the largest variance first.

    The largest number of an axis is positive, so that the same vectors give the same table on every machine.
    """
    return onto_axes(vector_VW - vector_VW.mean(axis=0), size)


def onto_axes(vector_VW: Doubles, size: int) -> Doubles:
    """Like `principal_components`, but from the origin instead of the mean."""
    # The product has W² numbers whatever the vocabulary's size, so `eigh` is faster than an SVD.
    _, axes_WW = np.linalg.eigh(vector_VW.T @ vector_VW)
    axes_WK = axes_WW[:, ::-1][:, :size]
    # An eigenvector's sign is arbitrary and differs between LAPACK builds.
    largest_K = np.abs(axes_WK).argmax(axis=0)
    component_VK: Doubles = vector_VW @ (axes_WK * np.sign(np.take_along_axis(axes_WK, largest_K[None], axis=0)))
    return component_VK


def sif_weights(count_V: Ints) -> Doubles:
    """Returns the smooth inverse frequency a / (a + p) of each token [V], with p from its count plus one."""
    # One is added so that tokens without occurrences get a finite weight.
    p_V = (count_V + 1) / (count_V + 1).sum()
    weight_V: Doubles = SIF_WEIGHT / (SIF_WEIGHT + p_V)
    return weight_V


@torch.no_grad()
def start_from_words(encoder: Encoder, path: Path, tokenizer_json: str) -> None:
    """Initializes tokens with the vectors of words that are written like them. Other tokens do not change.

    Wider vectors are reduced to their principal components. For narrower vectors, the other columns do not change. All
    are scaled to the initial deviation of the encoder's vectors.

    Args:
        encoder: an encoder with vectors.
        path: the file.
        tokenizer_json: the tokenizer, with the spelling of each token.

    Raises:
        DataError: if the file cannot be read, or no token is written like a word of it.
    """
    table = encoder.vector_table()
    assert table is not None, "only called for a student with vectors"
    ids = Tokenizer.from_str(tokenizer_json).get_vocab()
    ids = {piece: token for piece, token in ids.items() if token < table.num_embeddings and token != encoder.pad_id}
    words, vectors_ND = read_word_vectors(path, INIT_FLAG, wanted=ids.keys())
    # Files may list a word twice. Reading backwards keeps its first entry, since files list frequent words first.
    first = {word: number for number, word in reversed(list(enumerate(words)))}
    start_ND = vectors_ND[list(first.values())].astype("float64")
    # Principal components lose the least variance for a given size.
    if start_ND.shape[1] > table.embedding_dim:
        start_ND = principal_components(start_ND, table.embedding_dim)
    ids_N = torch.tensor([ids[word] for word in first], device=table.weight.device)
    encoder.start_vectors(ids_N, torch.from_numpy(scaled(start_ND, encoder.start_deviation)))
    console.note(f"the vectors of {len(first):,} of {len(ids):,} tokens start from {path}")


def pretrained_vocabulary() -> str:
    """Returns the hash of the vocabulary of the package's vectors, without reading them.

    Raises:
        IntegrityError: if their file is missing, or something else.
    """
    with _opened(FILE) as file:
        return str(file.metadata()[VOCABULARY])


def read_pretrained() -> PretrainedVectors:
    """Returns the pretrained vectors of the package.

    Raises:
        IntegrityError: if their file is missing, damaged, or something else.
    """
    return _read(FILE)


def pretrained_for(tokenizer_json: str) -> PretrainedVectors:
    """Returns the pretrained vectors of the tokens of a vocabulary.

    The vector of a token that BERT's uncased vocabulary lacks is the sum of those of its pieces.
    """
    vectors = read_pretrained()
    if vocabulary_sha256(tokenizer_json) == pretrained_vocabulary():
        return vectors
    shipped = bert_uncased()
    known, reader = shipped.get_vocab(), TextReader.of(shipped)
    tokens = sorted(Tokenizer.from_str(tokenizer_json).get_vocab().items(), key=lambda entry: entry[1])
    # The vectors were trained in sums, so a sum of pieces is what the student would read without the token.
    pieces = reader.read([token.removeprefix("##") for token, _ in tokens], None, None)[0].lists()
    own = [[known[token]] if token in known else ids for (token, _), ids in zip(tokens, pieces, strict=True)]
    vector_VW = torch.zeros(tokens[-1][1] + 1, vectors.vector_VW.shape[1])
    for (_, number), ids in zip(tokens, own, strict=True):
        vector_VW[number] = vectors.vector_VW[ids].sum(dim=0)
    return PretrainedVectors(vector_VW, vectors.sha256)


@cache
def _read(path: Path) -> PretrainedVectors:
    with _opened(path) as file:
        sha256 = check_tensors(path)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return PretrainedVectors(widened(tensors, MOST_NUMBERS)[NAME], sha256)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        advice = "Install distill again, or use --init teacher or --init noise"
        raise IntegrityError(f"{path}: not the pretrained vectors of distill: {error}. {advice}") from error


def vocabulary_sha256(tokenizer_json: str) -> str:
    """Returns the hash of a tokenizer's tokens and their ids."""
    # The file itself is not compared, since versions of a library write the same tokenizer differently.
    ids = sorted(Tokenizer.from_str(tokenizer_json).get_vocab().items(), key=lambda entry: entry[1])
    return hashlib.sha256("\n".join(f"{token_id} {token}" for token, token_id in ids).encode()).hexdigest()


def given_vectors(spec: EncoderSpec, start: Start, first: LogitSet) -> Literal["pretrained", "teacher"] | None:
    """Returns which vectors the tokens of a student of a set start from.

    Returns:
        The pretrained ones of the package, or the set's. None: neither, but noise, a run, a file, or layers.

    Raises:
        ConfigError: if the flags require vectors that the set does not have, or that have another vocabulary.
    """
    if start.path is not None:
        return None
    by_default = start.init is None and _prefers_pretrained(spec, first)
    if (by_default or start.init == "pretrained") and has_pretrained(first):
        return "pretrained"
    if start.init == "pretrained":
        raise ConfigError(
            f"--init pretrained: the vectors are for the vocabulary of BERT (uncased), but {first.root} has another. "
            "Leave the flag out, or use --init noise"
        )
    return "teacher" if starts_from_teacher(spec, start.init, first) else None


def has_pretrained(first: LogitSet) -> bool:
    """Whether the package has vectors for the vocabulary of a set, or for most tokens of a student's own one."""
    own = first.tokenizer_json()
    if first.vocabulary is None or vocabulary_sha256(own) == pretrained_vocabulary():
        return vocabulary_sha256(own) == pretrained_vocabulary()
    tokens = Tokenizer.from_str(own).get_vocab().keys()
    return len(tokens & bert_uncased().get_vocab().keys()) > len(tokens) / 2


def _prefers_pretrained(spec: EncoderSpec, first: LogitSet) -> bool:
    """Whether an encoder starts from pretrained vectors if the vocabulary is theirs."""
    is_aligned = isinstance(spec, Aligned)
    # LSTMs keep their start, because pretrained vectors are short for frequent tokens, as sums need it.
    if not spec.has_vectors or not (spec.sums_vectors or is_aligned):
        return False
    # The vectors were trained in sums of sentences. Where single tokens count, a set's own are better (aligned pairs,
    # docs/experiments/sentence-vectors.md) or not worse for all that is known (labelled words). Both beat noise.
    reads_tokens = is_aligned or first.record.kind == "token_labels"
    return not reads_tokens or not has_token_vectors(first)


def write_pretrained(run: Path, path: Path) -> None:
    """Writes the vectors of a student that was pretrained on vectors of sentences.

    Raises:
        DataError: if the student has no vectors.
        IntegrityError: if the folder has no such student.
    """
    from student.model.pretrained import SentenceStudent  # which nothing else here needs

    table = SentenceStudent.load(run).encoder.vector_table()
    if table is None:
        raise DataError(f"{run}: its student has no vectors of tokens")
    digest = vocabulary_sha256((run / TOKENIZER_FILE).read_text(encoding="utf-8"))
    write_tensors(path, rounded({NAME: table.weight.detach()}), {VOCABULARY: digest})


def main() -> None:
    """Reads the arguments and writes the file."""
    parser = argparse.ArgumentParser(
        description="Makes the file of pretrained vectors from a run of pretrain-student on sentences."
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    try:
        write_pretrained(given.run, given.file)
    except DistillError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
