"""A step of pretraining on vectors: sentences, the distance of their vectors from the teacher's, one move of AdamW.

Shapes: B sentences, T tokens of all of them, S = B + 1 starts, H width of a vector.
"""

import json
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState

from pipeline.config import refuse_flags
from pipeline.device import to_device
from pipeline.sets.sentence_reader import SentenceSet, open_sentences
from pipeline.sets.token_vectors import VocabularyVectors, read_token_vectors
from pipeline.training.run_record import Metrics
from student.config import PretrainConfig
from student.pretrain.card import vector_card_text
from student.pretrain.embedding_learner import EmbeddingLearner, new_student
from student.pretrain.lesson import Lesson
from student.pretrain.vector_data import VectorStream
from student.pretrain.vector_evaluate import held_out_scores
from student.pretrain.vector_loss import vector_loss
from student.pretrain.vector_model import VectorStudent, design_vectors
from student.train.initialize import starts_from_teacher


class VectorLearner(EmbeddingLearner[VectorStudent]):
    """A student and the set of sentences that it is pretrained and scored on.

    Args:
        config: the settings.
        student: is trained in place; on the device of ``state``.
        sentence_set: its train split is trained on, a held-out split scored.
        stream: the batches of the train split.
        total_steps: steps of the whole run.
        folder: where the student is written to.
        state: this process and the others.
        token_vectors: what the student's vectors have started from, if not from noise.
    """

    def __init__(
        self,
        config: PretrainConfig,
        student: VectorStudent,
        sentence_set: SentenceSet,
        stream: VectorStream,
        total_steps: int,
        folder: Path,
        state: PartialState,
        token_vectors: VocabularyVectors | None,
    ) -> None:
        super().__init__(config, student, student.map, total_steps, folder, state, token_vectors)
        self._set, self._stream = sentence_set, stream

    def train_step(self, step: int) -> tuple[torch.Tensor, int]:
        """Takes one step; returns the mean loss of a sentence over all processes, and this one's number of them."""
        config, state = self._config, self._state
        batch = self._stream.batch(step, state.process_index)
        ids_T, starts_S, stored_BH = (
            to_device(part, state.device) for part in (batch.ids_T, batch.starts_S, batch.vectors_BH)
        )
        vectors_BH = self.model(ids_T, starts_S, self._rows_of(ids_T))
        loss = vector_loss(vectors_BH, stored_BH, config.vector_loss, config.temperature)
        loss.backward()  # type: ignore[no-untyped-call]
        return self._move(step, loss, "mean"), len(stored_BH)

    def evaluate(self) -> Metrics:
        """Scores on the sentences held out; every process works them all out."""
        return held_out_scores(self.model, self._set)


def vector_lesson(config: PretrainConfig, root: Path, state: PartialState) -> Lesson:
    """What a set of sentences teaches.

    Raises:
        ConfigError: naming every flag that does not fit.
    """
    refuse_flags(config, {"alpha"}, "is for a set of tokens; this one is of sentences")
    if config.vector_loss != "gram":
        refuse_flags(config, {"temperature"}, "is for a set of tokens, or for --vector-loss gram")
    sentence_set = open_sentences(root, config.allow_unverified)
    student_config = design_vectors(config, sentence_set)
    is_from_teacher = starts_from_teacher(config, sentence_set.root, sentence_set.record)
    start = read_token_vectors(sentence_set.root, sentence_set.record) if is_from_teacher else None
    stream = VectorStream(sentence_set, "train", config.per_device_train_batch_size, config.seed, state.num_processes)

    def learner(total_steps: int, folder: Path) -> VectorLearner:
        student = new_student(config, VectorStudent, student_config, start).to(state.device)
        return VectorLearner(config, student, sentence_set, stream, total_steps, folder, state, start)

    vectors = sentence_set.vectors
    begun = {"token_vectors_sha256": start.sha256} if start else {}
    return Lesson(
        stored=sentence_set,
        stream=stream,
        learner=learner,
        settings={"codec": json.loads(vectors.codec.model_dump_json()), "pooling": vectors.pooling, **begun},
        unused={"alpha"} if config.vector_loss == "gram" else {"alpha", "temperature"},
        card=partial(vector_card_text, record=sentence_set.record),
    )
