"""How close a student's vectors come to its teacher's.

Shapes: N sentences, H width of a vector, M pairs of sentences, R = 1.
"""

import numpy as np
import torch
from torch.nn import functional

from pipeline.arrays import Floats64
from pipeline.errors import FingerprintMismatchError
from pipeline.sets.record import SetRecord
from pipeline.sets.sentence_reader import SentenceSet, open_sentences
from pipeline.tasks.metrics import pearson
from pipeline.training.run_record import RUN_RECORD, Metrics, read_run_record
from student.config import EvaluateConfig
from student.model.model import default_device
from student.pretrain.vector_data import first_batches
from student.pretrain.vector_model import VectorStudent
from student.trained_sets import evaluated_sets

MAX_ROWS, BATCH_SIZE = 4096, 256
NEIGHBOURS = 8  # a sentence is compared with so many that come after it


def evaluate_vector_run(config: EvaluateConfig) -> Metrics:
    """Evaluates a run pretrained on vectors on the held-out split of a set of sentences, by default its own.

    Returns:
        Per split the scores of `evaluate_vectors`.

    Raises:
        DataError: if the set is gone.
        FingerprintMismatchError: if another is in its place, or its ids or vectors come from elsewhere than the
            student's.
    """
    record = read_run_record(config.run / RUN_RECORD)
    student = VectorStudent.load(config.run).to(default_device())
    root = evaluated_sets(record, config.logits, config.store)[0]
    sentence_set = open_sentences(root, config.allow_unverified)
    if sentence_set.record.tokenizer.sha256 != student.config.tokenizer_sha256:
        raise FingerprintMismatchError(f"{root}: its token ids come from another tokenizer than the student's")
    width = sentence_set.vectors.codec.width
    if width != student.config.width:
        raise FingerprintMismatchError(
            f"{root}: vectors of {width} numbers, but the student's have {student.config.width}"
        )
    return held_out_scores(student, sentence_set)


def held_out_split(record: SetRecord) -> str | None:
    """The split that students are scored on: ``validation``, or else the first that is not ``train``."""
    others = [split for split in record.splits if split != "train"]
    return "validation" if "validation" in others else next(iter(others), None)


def held_out_scores(student: VectorStudent, sentence_set: SentenceSet) -> Metrics:
    """The scores on what is held out; empty if nothing is."""
    split = held_out_split(sentence_set.record)
    return {} if split is None else {split: evaluate_vectors(student, sentence_set, split)}


@torch.no_grad()
def evaluate_vectors(student: VectorStudent, sentence_set: SentenceSet, split: str) -> dict[str, float]:
    """Scores a student on at most so many sentences of a split.

    Returns:
        ``cosine`` with the teacher's vectors, and what their mean would get for every sentence
        (``cosine_of_mean_vector``); ``explained_variance``, 0 for the mean and 1 for the teacher's own;
        ``similarity_correlation``, Pearson's between the student's and the teacher's cosines of two sentences. Empty if
        the split has no row.
    """
    student.eval()
    said, stored = [], []
    for batch in first_batches(sentence_set, split, MAX_ROWS, BATCH_SIZE):
        said.append(student(batch.ids_T.to(student.device), batch.starts_S.to(student.device)).cpu().double())
        stored.append(batch.vectors_BH.double())
    if not said:
        return {}
    said_NH, stored_NH = torch.cat(said), torch.cat(stored)
    mean_H = stored_NH.mean(dim=0)
    spread = float((stored_NH - mean_H).square().sum())
    scores = {
        "cosine": float(functional.cosine_similarity(said_NH, stored_NH).mean()),
        "cosine_of_mean_vector": float(functional.cosine_similarity(mean_H[None], stored_NH).mean()),
        "explained_variance": 1 - float((said_NH - stored_NH).square().sum()) / spread if spread else 0.0,
    }
    if len(said_NH) > 2:
        pairs_2RM = np.stack([_similarities(said_NH), _similarities(stored_NH)])[:, None]
        scores["similarity_correlation"] = float(pearson(pairs_2RM)[0])
    return scores


def _similarities(vectors_NH: torch.Tensor) -> Floats64:
    """Cosines [M] of each sentence with those that come after it."""
    steps = range(1, min(NEIGHBOURS, len(vectors_NH) - 1) + 1)
    return torch.cat([functional.cosine_similarity(vectors_NH[step:], vectors_NH[:-step]) for step in steps]).numpy()
