"""Students that are pretrained on vectors of sentences: their batches, task, losses and scores.

Shapes: N sentences, B of a batch, T tokens of all of them end to end, S = B + 1 starts, H width of a vector, M pairs of
sentences, R = 1.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from torch.nn import functional

from pipeline.arrays import Floats, Floats64, Ints, Ragged
from pipeline.devices import to_device
from pipeline.errors import FingerprintMismatchError
from pipeline.record_file import Record
from pipeline.sets.kinds.sentences import SentenceSet
from pipeline.sets.open import Group
from pipeline.sets.token_vectors import read_token_vectors
from pipeline.tasks.metrics import pearson
from pipeline.tasks.task import TRAIN
from pipeline.training.run_record import Metrics
from student.initial_weights.vectors import starts_from_teacher
from student.lessons.pretraining import GroupBatches, PretrainTask, card_text, first_batches
from student.model.pretrained import SentenceStudent, build_sentence_config
from student.model.student import default_device
from student.pretrain_settings import PretrainSettings, VectorLoss
from student.row_adam import rows_of_batch
from student.vocabulary import as_run_reads, in_vocabulary

if TYPE_CHECKING:
    from accelerate import PartialState

NEIGHBOURS = 8  # number of following sentences that a sentence is compared with


@dataclass(frozen=True)
class VectorBatch:
    """Sentences end to end, and the teacher's vectors.

    Attributes:
        ids_T: int64.
        starts_S: int64. Sentence b is ``ids_T[starts_S[b] : starts_S[b + 1]]``.
        vectors_BH: float32.
    """

    ids_T: torch.Tensor
    starts_S: torch.Tensor
    vectors_BH: torch.Tensor

    def __len__(self) -> int:
        return len(self.vectors_BH)


@dataclass(frozen=True)
class VectorPool:
    """Row groups in memory: sentences, and their vectors."""

    ids: Ragged
    vectors_NH: Floats

    @property
    def lengths(self) -> Ints:
        """Tokens per sentence."""
        return self.ids.lengths

    def batch(self, rows: list[int]) -> VectorBatch:
        """Returns the batch of some of its sentences."""
        taken = self.ids.take(rows)
        return VectorBatch(
            torch.from_numpy(taken.flat), torch.from_numpy(taken.offsets), torch.from_numpy(self.vectors_NH[rows])
        )


def read_vectors(sentence_set: SentenceSet, groups: list[Group]) -> VectorPool:
    """Reads row groups into memory."""
    table = pa.concat_tables([sentence_set.read_group(group) for group in groups])
    return VectorPool(sentence_set.sequences(table), sentence_set.decode(table))


def vector_batches(
    sentence_set: SentenceSet, batch_size: int, seed: int, num_processes: int = 1, rank: int = 0
) -> GroupBatches[VectorBatch]:
    """Returns the batches of a set's train split."""
    return GroupBatches(sentence_set, partial(read_vectors, sentence_set), batch_size, seed, num_processes, rank)


class SentenceTask(PretrainTask[VectorBatch, SentenceStudent]):
    """A student and its set of sentences for pretraining and scores.

    Args:
        settings: the settings.
        root: the set, with a train split for training and a held-out split for scores.
        state: this process and the others.

    Raises:
        ConfigError: naming every flag that does not fit.
    """

    student_type = SentenceStudent

    def __init__(self, settings: PretrainSettings, root: Path, state: "PartialState") -> None:
        opened = SentenceSet.open(root, settings.allow_unverified)
        settings.check_kind(opened.record.kind)
        [sentence_set] = in_vocabulary([opened], settings.vocabulary)
        vectors, record = sentence_set.vectors, sentence_set.record
        student_config = build_sentence_config(settings, record, sentence_set.tokenizer, vectors.codec.width)
        is_from_teacher = starts_from_teacher(settings.encoder, settings.init, sentence_set)
        start = read_token_vectors(root, record) if is_from_teacher else None
        sizes = (settings.per_device_train_batch_size, settings.seed, state.num_processes, state.process_index)
        super().__init__(settings, sentence_set, student_config, vector_batches(sentence_set, *sizes), state, start)
        self._set = sentence_set
        begun = {"token_vectors_sha256": start.sha256} if start else {}
        self.of_set = {"codec": json.loads(vectors.codec.model_dump_json()), "pooling": vectors.pooling, **begun}

    def loss(self, batch: VectorBatch) -> torch.Tensor:
        parts = (batch.ids_T, batch.starts_S, batch.vectors_BH)
        ids_T, starts_S, stored_BH = (to_device(part, self._state.device) for part in parts)
        vectors_BH = self.model(ids_T, starts_S, rows_of_batch(self.optimizer, self.model.encoder, ids_T))
        return vector_loss(vectors_BH, stored_BH, self.settings.vector_loss, self.settings.temperature)

    def evaluate(self) -> Metrics:
        # Every process computes all scores.
        return held_out_scores(self.model, self._set)

    def card(self, record: Record) -> str:
        config, of_set = self.model.config, self.opened.record
        own = {
            "made_by": "a linear layer makes" if config.vector_map == "linear" else "it is compared with",
            "width": f"{config.width:,}",
            "signals": " and ".join(map(str, of_set.signals.stored)),
            "loss": record["settings"]["vector_loss"],
        }
        return card_text("card_sentences.md", "feature-extraction", self.model, record, of_set, own)


def evaluate_vector_run(run: Path, root: Path, allow_unverified: bool) -> Metrics:
    """Evaluates a run pretrained on vectors on the held-out split of a set of sentences.

    Args:
        run: the folder of the run.
        root: the folder of the set.
        allow_unverified: also accept a set that is complete but not verified.

    Returns:
        Per split the scores of `evaluate_vectors`.

    Raises:
        FingerprintMismatchError: if the set's vectors have another width than the student's.
    """
    student = SentenceStudent.load(run).to(default_device())
    sentence_set = as_run_reads(SentenceSet.open(root, allow_unverified), run, student.config)
    width = sentence_set.vectors.codec.width
    if width != student.config.width:
        raise FingerprintMismatchError(
            f"{root}: vectors of {width} numbers, but the student's have {student.config.width}"
        )
    return held_out_scores(student, sentence_set)


def held_out_scores(student: SentenceStudent, sentence_set: SentenceSet) -> Metrics:
    """Returns the scores on the sentences of ``validation`` or the first other held-out split. Empty without one."""
    others = [split for split in sentence_set.record.splits if split != TRAIN]
    split = "validation" if "validation" in others else next(iter(others), None)
    return {} if split is None else {split: evaluate_vectors(student, sentence_set, split)}


@torch.no_grad()
def evaluate_vectors(student: SentenceStudent, sentence_set: SentenceSet, split: str) -> dict[str, float]:
    """Scores a student on at most so many sentences of a split.

    Returns: ``cosine`` with the teacher's vectors, and ``cosine_of_mean_vector``, the cosine of their mean.
        ``explained_variance``, 0 for the mean and 1 for the teacher's own vectors. ``similarity_correlation``,
        Pearson's correlation of the student's and the teacher's cosines of two sentences. Empty if the split has no
        row.
    """
    student.eval()
    predicted, stored = [], []
    for batch in first_batches(sentence_set, split, partial(read_vectors, sentence_set)):
        predicted.append(student(batch.ids_T.to(student.device), batch.starts_S.to(student.device)).cpu().double())
        stored.append(batch.vectors_BH.double())
    if not predicted:
        return {}
    predicted_NH, stored_NH = torch.cat(predicted), torch.cat(stored)
    mean_H = stored_NH.mean(dim=0)
    spread = float((stored_NH - mean_H).square().sum())
    scores = {
        "cosine": float(functional.cosine_similarity(predicted_NH, stored_NH).mean()),
        "cosine_of_mean_vector": float(functional.cosine_similarity(mean_H[None], stored_NH).mean()),
        "explained_variance": 1 - float((predicted_NH - stored_NH).square().sum()) / spread if spread else 0.0,
    }
    if len(predicted_NH) > 2:
        pairs_2RM = np.stack([_similarities(predicted_NH), _similarities(stored_NH)])[:, None]
        scores["similarity_correlation"] = float(pearson(pairs_2RM)[0])
    return scores


def _similarities(vectors_NH: torch.Tensor) -> Floats64:
    """Returns the cosines [M] of each sentence with the following ones."""
    steps = range(1, min(NEIGHBOURS, len(vectors_NH) - 1) + 1)
    return torch.cat([functional.cosine_similarity(vectors_NH[step:], vectors_NH[:-step]) for step in steps]).numpy()


def vector_loss(
    predicted_BH: torch.Tensor, stored_BH: torch.Tensor, loss: VectorLoss, temperature: float
) -> torch.Tensor:
    """Returns the mean loss of a batch.

    Args:
        predicted_BH: float32, the student's vectors.
        stored_BH: float32, the teacher's.
        loss: ``cosine``, ``mse``, their sum ``cosine-mse``, or ``gram``.
        temperature: the temperature of ``gram``.

    Returns:
        A scalar.
    """
    if loss == "gram":
        return gram_divergence(predicted_BH, stored_BH, temperature)
    return torch.stack([distance(predicted_BH, stored_BH) for distance in DISTANCES[loss]]).sum()


def _cosine_distance(predicted_BH: torch.Tensor, stored_BH: torch.Tensor) -> torch.Tensor:
    return (1 - functional.cosine_similarity(predicted_BH, stored_BH)).mean()


DISTANCES: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...]] = {
    "cosine": (_cosine_distance,),
    "mse": (functional.mse_loss,),
    "cosine-mse": (_cosine_distance, functional.mse_loss),
}


def gram_divergence(predicted_BH: torch.Tensor, stored_BH: torch.Tensor, temperature: float) -> torch.Tensor:
    """Returns T² * KL(teacher ‖ student) of each sentence's similarities to the others of its batch (Luxical, 2025).

    A sentence's cosines with the others, divided by T, are the logits of a distribution over them. The student's
    vectors may be rotated or scaled against the teacher's, because only similarities count.

    Returns:
        The mean over the batch, nats, or 0 for a sentence alone.
    """
    others_BO = ~torch.eye(len(predicted_BH), dtype=torch.bool, device=predicted_BH.device)

    def log_shares(vectors_BH: torch.Tensor) -> torch.Tensor:
        unit_BH = functional.normalize(vectors_BH)
        cosine_BO = (unit_BH @ unit_BH.T)[others_BO].view(len(unit_BH), -1)
        return (cosine_BO / temperature).log_softmax(dim=1)

    log_p_BO, log_q_BO = log_shares(stored_BH), log_shares(predicted_BH)
    return temperature**2 * (log_p_BO.exp() * (log_p_BO - log_q_BO)).sum(dim=1).mean()
