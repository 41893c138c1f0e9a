"""A step of pretraining on vectors: sentences, the distance of their vectors from the teacher's, one move of AdamW.

Shapes: B sentences, T tokens of all of them, S = B + 1 starts, H width of a vector.
"""

import json
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import reduce

from pipeline.config import refuse_flags
from pipeline.device import to_device
from pipeline.logit_set.sentence_reader import SentenceSet, open_sentences
from pipeline.training.loop import Learner
from pipeline.training.run_record import Metrics
from pipeline.training.steps import seed_step
from student.config import PretrainConfig
from student.model.architecture import VectorConfig
from student.pretrain.card import vector_card_text
from student.pretrain.lesson import Lesson, embedding_optimizer
from student.pretrain.vector_data import VectorStream
from student.pretrain.vector_evaluate import held_out_scores
from student.pretrain.vector_loss import vector_loss
from student.pretrain.vector_model import VectorStudent, design_vectors
from student.train.used_rows import neutralise_unmoved, with_used_rows


class VectorLearner(Learner):
    """A student and the set of sentences that it is pretrained and scored on.

    Args:
        config: the settings.
        student: is trained in place; on the device of ``state``.
        sentence_set: its train split is trained on, a held-out split scored.
        stream: the batches of the train split.
        total_steps: steps of the whole run.
        folder: where the student is written to.
        state: this process and the others.
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
    ) -> None:
        self.model = student
        self.optimizer = embedding_optimizer(config, student.encoder, student.map, student.config.pad_id)
        self._config, self._set, self._stream = config, sentence_set, stream
        self._total_steps, self._steps_taken = total_steps, 0
        self._folder, self._state = folder, state

    def train_step(self, step: int) -> tuple[torch.Tensor, int]:
        """Takes one step; returns the mean loss of a sentence over all processes, and this one's number of them."""
        config, optimizer, state = self._config, self.optimizer, self._state
        batch = self._stream.batch(step, state.process_index)
        ids_T, starts_S, stored_BH = (
            to_device(part, state.device) for part in (batch.ids_T, batch.starts_S, batch.vectors_BH)
        )
        # Processes add up gradients of the same shape: those of whole tables.
        rows = optimizer.use(ids_T) if optimizer.by_rows and state.num_processes == 1 else None
        loss = vector_loss(self.model(ids_T, starts_S, rows), stored_BH, config.vector_loss, config.temperature)
        loss.backward()  # type: ignore[no-untyped-call]
        if state.num_processes > 1:
            for parameter in self.model.parameters():
                parameter.grad = reduce(parameter.grad, reduction="mean")
            loss = reduce(loss.detach(), reduction="mean")
        optimizer.clip_gradients(config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        self._steps_taken = step + 1
        return loss, len(stored_BH)

    def evaluate(self) -> Metrics:
        """Scores on the sentences held out; every process works them all out."""
        return held_out_scores(self.model, self._set)

    def keep(self) -> None:
        """Writes the student."""
        self.model.config = with_used_rows(self.model.config, self.model.encoder)
        self.model.save(self._folder)

    def catch_up(self) -> None:
        """Moves the rows that the last batches did not use to where dense Adam has them.

        After the last step the rows that no batch has used are made neutral: where they are is noise.
        """
        self.optimizer.catch_up()
        if self._steps_taken == self._total_steps:
            neutralise_unmoved(self.model.encoder, new_student(self._config, self.model.config).encoder)


def new_student(config: PretrainConfig, student_config: VectorConfig) -> VectorStudent:
    """The student before its first step, on the CPU."""
    seed_step(config.seed, 0)
    return VectorStudent(student_config)


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
    stream = VectorStream(sentence_set, "train", config.per_device_train_batch_size, config.seed, state.num_processes)

    def learner(total_steps: int, folder: Path) -> VectorLearner:
        student = new_student(config, student_config).to(state.device)
        return VectorLearner(config, student, sentence_set, stream, total_steps, folder, state)

    vectors = sentence_set.vectors
    return Lesson(
        stored=sentence_set,
        stream=stream,
        learner=learner,
        settings={"codec": json.loads(vectors.codec.model_dump_json()), "pooling": vectors.pooling},
        unused={"alpha"} if config.vector_loss == "gram" else {"alpha", "temperature"},
        card=partial(vector_card_text, record=sentence_set.record),
    )
