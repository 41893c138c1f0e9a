"""The file of pretrained vectors for BERT's uncased vocabulary, which is part of the package.

``python -m student.pretrained.vectors RUN FILE`` makes such a file from a run of ``distill pretrain-student`` on
vectors of sentences.

Shapes: V vocabulary, E width of the vectors.
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from pipeline.errors import DataError, IntegrityError
from pipeline.training.checkpoint import check_tensors, write_tensors
from pipeline.training.run_record import TOKENIZER_FILE
from student.model.pretrained import SentenceStudent
from student.model.rounded import rounded, widened

FILE = Path(__file__).with_name("bert-uncased.safetensors")
# The name has the ending for which vectors of tokens are rounded in fine steps.
NAME, VOCABULARY = "vectors.table.weight", "vocabulary_sha256"
MOST_NUMBERS = 2**26

T = TypeVar("T")


@dataclass(frozen=True)
class PretrainedVectors:
    """Vectors that were trained to be summed, so frequent tokens already have short ones.

    Attributes:
        vector_VE: float32, by id. The first columns have the largest numbers.
        sha256: the hash of their file.
    """

    vector_VE: torch.Tensor
    sha256: str


def pretrained_vocabulary() -> str:
    """Returns the hash of the vocabulary of the package's vectors, without reading them.

    Raises:
        IntegrityError: if their file is missing, or something else.
    """
    return _of_file(FILE, lambda file: str(file.metadata()[VOCABULARY]))


def read_pretrained() -> PretrainedVectors:
    """Returns the pretrained vectors of the package.

    Raises:
        IntegrityError: if their file is missing, damaged, or something else.
    """
    return _read(FILE)


@cache
def _read(path: Path) -> PretrainedVectors:
    def vectors(file: Any) -> PretrainedVectors:
        sha256 = check_tensors(path)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return PretrainedVectors(widened(tensors, MOST_NUMBERS)[NAME], sha256)

    return _of_file(path, vectors)


def _of_file(path: Path, read: Callable[[Any], T]) -> T:
    try:
        with safe_open(path, framework="pt") as file:
            return read(file)
    except (OSError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path}: not a file of pretrained vectors: {error}") from error


def write_pretrained(run: Path, path: Path) -> None:
    """Writes the vectors of a student that was pretrained on vectors of sentences.

    Raises:
        DataError: if the student has no vectors.
        IntegrityError: if the folder has no such student.
    """
    table = SentenceStudent.load(run).encoder.vector_table()
    if table is None:
        raise DataError(f"{run}: its student has no vectors of tokens")
    vector_VE = table.weight.detach()
    # Rotated onto their principal axes, so that fewer columns are the best vectors of that width. Their mean is kept,
    # since sums are then the same but for the rotation.
    axes_EE = torch.linalg.eigh(vector_VE.double().T @ vector_VE.double()).eigenvectors.flip(1)
    turned_VE = (vector_VE.double() @ axes_EE).float().contiguous()
    digest = vocabulary_sha256((run / TOKENIZER_FILE).read_text(encoding="utf-8"))
    write_tensors(path, rounded({NAME: turned_VE}), {VOCABULARY: digest})


def vocabulary_sha256(tokenizer_json: str) -> str:
    """Returns the hash of a tokenizer's tokens and their ids."""
    # The file itself is not compared, since versions of a library write the same tokenizer differently.
    ids = sorted(Tokenizer.from_str(tokenizer_json).get_vocab().items(), key=lambda entry: entry[1])
    return hashlib.sha256("\n".join(f"{token_id} {token}" for token, token_id in ids).encode()).hexdigest()


if __name__ == "__main__":
    write_pretrained(Path(sys.argv[1]), Path(sys.argv[2]))
