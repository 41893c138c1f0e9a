"""Safetensors: the decoder and the basis of a set, the weights of a student."""

import numpy as np

from pipeline.file_names import WEIGHTS_FILE
from pipeline.sets.codecs.codec import read_decoder
from pipeline.sets.codecs.vectors import Basis, fit_basis, read_basis
from pipeline.sets.record import read_set_record
from student.model.student import Student
from student.model.weights import load_weights
from tests.fuzz.files import FIXTURES, FOLDER, of_a_kind, seeds, written

COVERS = ("pipeline.sets.codecs.codec", "pipeline.sets.codecs.vectors", "student.model.weights")
KINDS = ("decoder", "basis", "student")
CODEC = read_set_record(FIXTURES / "hidden").codec
STUDENT = Student.load(FIXTURES / "run-pairs")  # which has every table there is
BASIS: Basis = fit_basis(np.eye(5, dtype=np.float32), 3)
STUDENT.save(FOLDER)
SEEDS = seeds(
    KINDS,
    {
        "decoder": [(FIXTURES / "hidden" / "decoder.safetensors").read_bytes()],
        "basis": [BASIS.to_bytes()],
        "student": [(FIXTURES / "run-pairs" / WEIGHTS_FILE).read_bytes(), (FOLDER / WEIGHTS_FILE).read_bytes()],
    },
)


def read(data: bytes) -> None:
    kind, content = of_a_kind(data, KINDS)
    path = written(WEIGHTS_FILE, content)
    if kind == "decoder":
        read_decoder(path, CODEC.vocabulary_size, CODEC.hidden_size)  # type: ignore[union-attr]
    elif kind == "basis":
        read_basis(path, 3, 5)
    else:
        load_weights(FOLDER, STUDENT)
