"""The file of pretrained vectors for BERT's uncased vocabulary, which is part of the package.

`student.pretrained.build` makes it. Shapes: V vocabulary, W width of the vectors.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from pipeline.errors import IntegrityError
from pipeline.training.checkpoint import check_tensors
from student.model.disk_rounding import widened

FILE = Path(__file__).with_name("bert-uncased.safetensors")
# The name has the ending for which vectors of tokens are rounded in fine steps.
NAME, VOCABULARY = "vectors.table.weight", "vocabulary_sha256"
MOST_NUMBERS = 2**26


@dataclass(frozen=True)
class PretrainedVectors:
    """Vectors that were trained to be summed, so frequent tokens already have short ones.

    Attributes:
        vector_VW: float32, by id. The first columns have the largest numbers.
        sha256: the checksum that their file contains.
    """

    vector_VW: torch.Tensor
    sha256: str


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
