"""How far a student's vectors are from its teacher's. Shapes: B sentences, H width of a vector."""

import torch
from torch.nn import functional

from student.config import VectorLoss


def vector_loss(said_BH: torch.Tensor, stored_BH: torch.Tensor, loss: VectorLoss, temperature: float) -> torch.Tensor:
    """The mean loss of a batch.

    Args:
        said_BH: float32, the student's vectors.
        stored_BH: float32, the teacher's.
        loss: ``cosine``, ``mse``, their sum ``cosine-mse``, or ``gram``.
        temperature: of ``gram``.

    Returns:
        A scalar.
    """
    if loss == "gram":
        return gram_divergence(said_BH, stored_BH, temperature)
    total = said_BH.new_zeros(())
    if "cosine" in loss:
        total = total + (1 - functional.cosine_similarity(said_BH, stored_BH)).mean()
    if "mse" in loss:
        total = total + functional.mse_loss(said_BH, stored_BH)
    return total


def gram_divergence(said_BH: torch.Tensor, stored_BH: torch.Tensor, temperature: float) -> torch.Tensor:
    """T² * KL(teacher ‖ student) of how similar each sentence is to the others of its batch (Luxical, 2025).

    A sentence's cosines with the others, divided by T, are the logits of a distribution over them. The student's
    vectors may be turned or stretched against the teacher's: their similarities count alone.

    Returns:
        The mean over the batch, nats; 0 for a sentence alone.
    """
    others_BO = ~torch.eye(len(said_BH), dtype=torch.bool, device=said_BH.device)

    def log_shares(vectors_BH: torch.Tensor) -> torch.Tensor:
        unit_BH = functional.normalize(vectors_BH)
        cosine_BO = (unit_BH @ unit_BH.T)[others_BO].view(len(unit_BH), -1)
        return (cosine_BO / temperature).log_softmax(dim=1)

    log_p_BO, log_q_BO = log_shares(stored_BH), log_shares(said_BH)
    return temperature**2 * (log_p_BO.exp() * (log_p_BO - log_q_BO)).sum(dim=1).mean()
