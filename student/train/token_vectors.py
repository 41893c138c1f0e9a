"""Starting a student's vectors from what its teacher says of each vocabulary entry alone.

The recipe of static embeddings (model2vec; Arora et al. 2017): principal components, and frequent tokens count less
where vectors are summed, since a sum would be theirs.

Shapes: V vocabulary, W width of the teacher's vectors, E size of the student's, K = min(W, E).
"""

import numpy as np
import numpy.typing as npt
import torch

from pipeline.arrays import Floats, Ints
from pipeline.sets.token_vectors import VocabularyVectors
from student.model.encoder import Encoder

Doubles = npt.NDArray[np.float64]
SIF_WEIGHT = 1e-3  # a of a / (a + p): tokens more frequent than that count less


@torch.no_grad()
def start_from_teacher(encoder: Encoder, vectors: VocabularyVectors, chosen_V: torch.Tensor | None = None) -> None:
    """Gives the vectors of an encoder the teacher's start, used tokens or not; the padding stays 0.

    Where the teacher's width is smaller than the student's, the other columns stay as they are.

    Args:
        encoder: one with vectors.
        vectors: the teacher's.
        chosen_V: bool, the tokens whose vectors start so. (default: all)
    """
    table = encoder.vector_table()
    assert table is not None, "asked of a student with vectors"
    how = (encoder.pad_id, encoder.start_deviation, encoder.counts_less)
    start_VK = torch.from_numpy(start_vectors(vectors, table.embedding_dim, *how))
    chosen_V = torch.ones(len(start_VK), dtype=torch.bool) if chosen_V is None else chosen_V[: len(start_VK)].cpu()
    chosen_N = chosen_V.nonzero().flatten()
    encoder.start_vectors(chosen_N.to(table.weight.device), start_VK[chosen_N])


def start_vectors(
    vectors: VocabularyVectors,
    size: int,
    pad_id: int,
    deviation: float = Encoder.start_deviation,
    counts_less: bool = True,
) -> Floats:
    """The vectors that a student starts with.

    Args:
        vectors: the teacher's, with the counts of the training rows.
        size: E.
        pad_id: the token whose row is 0; it may be past the vocabulary.
        deviation: standard deviation of all numbers together.
        counts_less: whether frequent tokens get shorter vectors.

    Returns:
        start_VK: float32, the first K principal components, times the SIF weights if so.
    """
    start_VK = principal_components(vectors.vector_VW.astype(np.float64), size)
    if counts_less:
        start_VK *= sif_weights(vectors.count_V)[:, None]
    start_VK[pad_id : pad_id + 1] = 0
    return scaled(start_VK, deviation)


def scaled(start_NK: Doubles, deviation: float) -> Floats:
    """Vectors brought to one standard deviation of all their numbers, float32; zeros stay zeros."""
    theirs = start_NK.std()
    return (start_NK * (deviation / theirs if theirs else 0)).astype(np.float32)


def principal_components(vector_VW: Doubles, size: int) -> Doubles:
    """Coordinates of vectors along their first principal axes, float64 [V, K], the axis of most variance first.

    An axis points to where its largest number is positive, so that the same vectors give the same table everywhere.
    """
    centred_VW = vector_VW - vector_VW.mean(axis=0)
    _, axes_WW = np.linalg.eigh(centred_VW.T @ centred_VW)
    axes_WK = axes_WW[:, ::-1][:, :size]
    largest_K = np.abs(axes_WK).argmax(axis=0)
    component_VK: Doubles = centred_VW @ (axes_WK * np.sign(np.take_along_axis(axes_WK, largest_K[None], axis=0)))
    return component_VK


def sif_weights(count_V: Ints) -> Doubles:
    """Smooth inverse frequency a / (a + p) of each token [V], p from its count and one more."""
    p_V = (count_V + 1) / (count_V + 1).sum()
    weight_V: Doubles = SIF_WEIGHT / (SIF_WEIGHT + p_V)
    return weight_V
