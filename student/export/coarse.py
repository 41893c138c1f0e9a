"""A student in numbers of four bits, small enough for a page: what an HTML file holds.

Most of them are 0, which deflates well: what a number weighs is how often it is not. So the step between two numbers
is wide, and finer for tokens that texts have often, whose error is in many sentences. A token that the training rows do
not have gets no row, and is neutral.

Shapes: V vocabulary, R rows that are kept, F features.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.arrays import Floats, Ints
from student.model.bigrams import BigramSums
from student.model.embeddings import matrix_encoder
from student.model.model import Student

LARGEST = 7
STEPS = {"vectors": 1.75, "forward_matrices": 3.25, "backward_matrices": 3.25}  # what they cost: docs/students.md
BIGRAM_STEP = 1.75
MLP_STEP = 1.0
RARENESS = 0.25  # the step grows with 1 / count to this power
MLP_WEIGHT = "0.weight"


@dataclass(frozen=True)
class Packed:
    """Rows of numbers that are ``neutral_F + step_R * numbers_RF``.

    Attributes:
        numbers_RF: int8, from -7 to 7.
        step_R: float32.
        neutral_F: float32.
    """

    numbers_RF: np.ndarray
    step_R: Floats
    neutral_F: Floats

    def values(self) -> Floats:
        """The rows, float32 [R, F]."""
        values_RF: Floats = self.neutral_F + self.step_R[:, None] * self.numbers_RF.astype(np.float32)
        return values_RF

    def nibbles(self) -> np.ndarray:
        """Two numbers in a byte, uint8 [R, F / 2 rounded up]: the first one above, 8 for 0."""
        shifted_RF = (self.numbers_RF + (LARGEST + 1)).astype(np.uint8)
        if shifted_RF.shape[1] % 2:
            shifted_RF = np.pad(shifted_RF, ((0, 0), (0, 1)), constant_values=LARGEST + 1)
        nibbles: np.ndarray = shifted_RF[:, 0::2] << 4 | shifted_RF[:, 1::2]
        return nibbles


def packed(weight_RF: Floats, neutral_F: Floats, step: float, count_R: Ints | None = None) -> Packed:
    """Rounds rows to numbers of four bits.

    Args:
        weight_RF: float32.
        neutral_F: float32, what a row of zeros stands for.
        step: between two numbers, in typical deviations from the neutral row (their root mean square).
        count_R: how often each row is used, at least 1; None for all alike.
    """
    deviation_RF = weight_RF - neutral_F
    typical = float(np.sqrt(np.mean(np.square(deviation_RF, dtype=np.float64)))) or 1.0
    fineness_R = np.ones(len(weight_RF)) if count_R is None else count_R.astype(np.float64) ** RARENESS
    usual_R = step * typical * np.exp(np.log(fineness_R).mean()) / fineness_R
    widest_R = np.maximum(usual_R, np.abs(deviation_RF).max(axis=1) / LARGEST)
    step_R = np.maximum(widest_R, np.finfo(np.float32).tiny).astype(np.float32)  # below it a step would be 0
    numbers_RF = np.rint(deviation_RF / step_R[:, None]).clip(-LARGEST, LARGEST).astype(np.int8)
    return Packed(numbers_RF, step_R, neutral_F)


@dataclass(frozen=True)
class CoarseStudent:
    """A student whose numbers are coarse, and these numbers.

    Attributes:
        student: answers as the page does.
        ids_R: the tokens that have a row, rising.
        tables: of the parts that there are, a row per token of ``ids_R``.
        bigrams: the vectors of the student's pairs of tokens; None without any.
        mlp: the MLP's first weights; None for a linear head.
    """

    student: Student
    ids_R: Ints
    tables: dict[str, Packed]
    bigrams: Packed | None
    mlp: Packed | None


@torch.no_grad()
def coarse(student: Student, count_V: Ints | None) -> CoarseStudent:
    """Makes a student coarse.

    Args:
        student: with tables of any kind, a linear or an MLP head, on the CPU.
        count_V: how often each token occurs in the training rows; None keeps all rows that are used, all alike.
    """
    config, encoder = student.config, matrix_encoder(student.encoder)
    if count_V is None:
        ids_R = encoder.used_ids().numpy() if encoder.rows is None else encoder.rows.token_R.numpy().astype(np.int64)
    else:
        ids_R = np.flatnonzero(count_V)
    ids_R = ids_R[ids_R != config.pad_id]
    made = Student(config.model_copy(update={"table_dtype": "float32", "used_rows": len(ids_R) + 1})).eval()
    made.head.load_state_dict(student.head.state_dict())
    tables = {}
    for name, step in STEPS.items():
        part, made_part = getattr(encoder, name), getattr(made.encoder, name)
        if part is None:
            continue
        neutral_F, weight_RF = (
            _rows(student, part.table, np.array([config.pad_id]))[0],
            _rows(student, part.table, ids_R),
        )
        tables[name] = packed(weight_RF, neutral_F, step, None if count_V is None else count_V[ids_R])
        made_part.table.weight[:] = torch.from_numpy(neutral_F)
        made_part.table.weight[torch.from_numpy(ids_R)] = torch.from_numpy(tables[name].values())
    bigrams = None if encoder.bigrams is None else _coarse_bigrams(made, encoder.bigrams, ids_R)
    return CoarseStudent(made, ids_R, tables, bigrams, _coarse_mlp(made) if config.head == "mlp" else None)


def _coarse_bigrams(student: Student, bigrams: BigramSums, ids_R: Ints) -> Packed:
    """Vectors of pairs, which the student takes over; 0 of a pair with a token that has no row."""
    is_known_K = torch.isin(bigrams.pairs_K2, torch.from_numpy(ids_R)).all(dim=1, keepdim=True)
    vectors_KG = torch.where(is_known_K, bigrams.vectors(), 0).numpy()
    rows = packed(vectors_KG, np.zeros(student.config.bigram_size, np.float32), BIGRAM_STEP)
    made = matrix_encoder(student.encoder).bigrams
    assert made is not None, "of the same configuration"
    made.set_pairs(bigrams.pairs_K2)
    made.take_over(bigrams.pairs_K2, torch.from_numpy(rows.values()))
    return rows


def _coarse_mlp(student: Student) -> Packed:
    weight: Tensor = student.head.state_dict()[MLP_WEIGHT]
    mlp = packed(weight.numpy(), np.zeros(weight.shape[1], np.float32), MLP_STEP)
    weight.copy_(torch.from_numpy(mlp.values()))
    return mlp


def _rows(student: Student, table: torch.nn.Module, ids_R: Ints) -> Floats:
    """A table's rows of tokens, float32 [R, F]."""
    ids = torch.from_numpy(ids_R)
    index = matrix_encoder(student.encoder).rows
    rows_RF: Floats = table(ids if index is None else index(ids)).numpy()
    return rows_RF
