"""Makes the file of pretrained vectors from a run of ``distill pretrain-student`` on vectors of sentences.

``python -m student.initial_weights.build_pretrained RUN FILE``. The README.md here has all commands.

Shapes: V vocabulary, W width.
"""

import argparse
from pathlib import Path

import torch

from pipeline.errors import DataError, DistillError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.training.checkpoint import write_tensors
from student.initial_weights.pretrained import NAME, VOCABULARY, vocabulary_sha256
from student.initial_weights.teacher import onto_axes
from student.model.disk_rounding import rounded
from student.model.pretrained import SentenceStudent


def write_pretrained(run: Path, path: Path) -> None:
    """Writes the vectors of a student that was pretrained on vectors of sentences.

    Raises:
        DataError: if the student has no vectors.
        IntegrityError: if the folder has no such student.
    """
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    try:
        write_pretrained(given.run, given.file)
    except DistillError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
