"""Token vectors of a student that start from its teacher's, or from other vectors of the whole vocabulary.

A teacher's token vectors follow the recipe of static embeddings (model2vec, Arora et al. 2017): principal components,
with smaller weights for frequent tokens if vectors are summed, because these would dominate a sum.

Shapes: V vocabulary, W width of the teacher's vectors, E width of the student's, K = min(W, E), N vectors.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pipeline.arrays import Floats, Ints
from pipeline.errors import ConfigError
from pipeline.sets.record import SetRecord
from pipeline.sets.token_vectors import VocabularyVectors
from student.encoders.encoder import Encoder
from student.encoders.kinds import ENCODERS
from student.model.flags import EmbeddingKind

# This is a in a / (a + p) of Arora et al. (2017), who recommend values from 1e-4 to 1e-3.
SIF_WEIGHT = 1e-3
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PretrainedVectors:
    """Vectors that were trained to be summed, so frequent tokens already have short ones.

    Attributes:
        vector_VW: float32, by id. The first columns have the largest numbers.
        sha256: the checksum that their file contains.
    """

    vector_VW: torch.Tensor
    sha256: str


StartVectors = VocabularyVectors | PretrainedVectors


def starts_from_teacher(embedding: EmbeddingKind, init: str | None, root: Path, record: SetRecord) -> bool:
    """Whether a student's vectors start from the token vectors of the set in ``root``.

    Raises:
        ConfigError: if the flags require it, but there are no token vectors.
    """
    # A BERT starts from layers, which include their own word embeddings.
    if ENCODERS[embedding].is_bert:
        return False
    has_vectors = record.signals.token_vectors is not None
    if init == "teacher" and not has_vectors:
        advice = f"Repeat its command to add them ({record.command}), or use --init noise"
        if record.teacher.is_imported:
            advice = "Its answers were imported, so use --init noise"
        raise ConfigError(f"--init teacher: {root} has no token vectors. {advice}")
    # Token vectors are the default where they exist, because they cost nothing at training time.
    return has_vectors and init != "noise" and "vector_size" in ENCODERS[embedding].sizes


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
        start_VK: float32, the first K principal components, times the SIF weights if so. Of pretrained vectors, the
            first K columns.
    """
    if isinstance(vectors, PretrainedVectors):
        start_VK = vectors.vector_VW[:, :size].double().numpy()
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
