"""Pretrained vectors for BERT's uncased vocabulary, which are part of the package, and which students start from them.

``python -m student.initial_weights.pretrained RUN FILE`` makes their file. The README.md here has all commands.

Shapes: V vocabulary, W width of the vectors.
"""

import argparse
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from pipeline.errors import ConfigError, DataError, DistillError, IntegrityError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.sets.open import LogitSet
from pipeline.sets.record import SetRecord
from pipeline.training.checkpoint import check_tensors, write_tensors
from student.encoders.aligned import AlignedEncoder
from student.encoders.kinds import ENCODERS, EncoderKind
from student.initial_weights.teacher import PretrainedVectors, onto_axes, starts_from_teacher
from student.model.disk_rounding import rounded, widened
from student.model.flags import EmbeddingKind
from student.settings import Start

FILE = Path(__file__).with_name("bert-uncased.safetensors")
# The name has the ending for which vectors of tokens are rounded in fine steps.
NAME, VOCABULARY = "vectors.table.weight", "vocabulary_sha256"
MOST_NUMBERS = 2**26


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


def given_vectors(embedding: EmbeddingKind, start: Start, first: LogitSet) -> Literal["pretrained", "teacher"] | None:
    """Returns which vectors the tokens of a student of a set start from.

    Returns:
        The pretrained ones of the package, or the set's. None: neither, but noise, a run, a file, or layers.

    Raises:
        ConfigError: if the flags require vectors that the set does not have, or that have another vocabulary.
    """
    if start.path is not None:
        return None
    by_default = start.init is None and _prefers_pretrained(ENCODERS[embedding], first.record)
    if (by_default or start.init == "pretrained") and has_pretrained(first):
        return "pretrained"
    if start.init == "pretrained":
        raise ConfigError(
            f"--init pretrained: the vectors are for the vocabulary of BERT (uncased), but {first.root} has another. "
            "Leave the flag out, or use --init noise"
        )
    return "teacher" if starts_from_teacher(embedding, start.init, first.root, first.record) else None


def has_pretrained(first: LogitSet) -> bool:
    """Whether the package has vectors for the vocabulary of a set."""
    return vocabulary_sha256(first.tokenizer_json()) == pretrained_vocabulary()


def _prefers_pretrained(kind: EncoderKind, record: SetRecord) -> bool:
    """Whether an encoder starts from pretrained vectors if the vocabulary is theirs."""
    is_aligned = kind.make is AlignedEncoder
    # LSTMs keep their start, because pretrained vectors are short for frequent tokens, as sums need it.
    if "vector_size" not in kind.sizes or not (kind.sums_vectors or is_aligned):
        return False
    # The vectors were trained in sums of sentences. Where single tokens count, a set's own are better (aligned pairs,
    # docs/experiments/sentence-vectors.md) or not worse for all that is known (labelled words). Both beat noise.
    reads_tokens = is_aligned or record.kind == "token_labels"
    return not reads_tokens or record.signals.token_vectors is None


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
    # Turned onto their axes, so that the first columns are the best vectors of their width. The mean is not subtracted,
    # so sums have the lengths and similarities that they were trained for.
    turned_VW = onto_axes(table.weight.detach().double().numpy(), table.embedding_dim)
    digest = vocabulary_sha256((run / TOKENIZER_FILE).read_text(encoding="utf-8"))
    write_tensors(path, rounded({NAME: torch.from_numpy(turned_VW).float()}), {VOCABULARY: digest})


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
