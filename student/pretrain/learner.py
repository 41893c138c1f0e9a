"""A step of pretraining: masked sequences, the head's loss and gradients at once, one move of AdamW.

Shapes: B rows, L tokens, P masked positions, F features.
"""

import json
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import reduce

from pipeline.config import refuse_flags
from pipeline.device import has_fast_bf16, to_device
from pipeline.sets.codecs import Decoder, Distribution
from pipeline.sets.token_reader import TokenSet, open_tokens
from pipeline.training.run_record import Metrics
from student.config import PretrainConfig
from student.pretrain.card import card_text
from student.pretrain.data import MaskedBatch, Stream
from student.pretrain.embedding_learner import EmbeddingLearner, new_student
from student.pretrain.evaluate import scores_and_control
from student.pretrain.frequencies import log_frequencies, start_without_context
from student.pretrain.head import HeadPass, TeacherOf
from student.pretrain.lesson import Lesson
from student.pretrain.model import MlmStudent, design_mlm


class MlmLearner(EmbeddingLearner[MlmStudent]):
    """A student and the set of tokens that it is pretrained and scored on.

    Args:
        config: the settings.
        student: is trained in place; on the device of ``state``.
        token_set: its train split is trained on, its validation split scored.
        stream: the batches of the train split.
        total_steps: steps of the whole run.
        folder: where the student is written to.
        state: this process and the others.
    """

    def __init__(
        self,
        config: PretrainConfig,
        student: MlmStudent,
        token_set: TokenSet,
        stream: Stream,
        total_steps: int,
        folder: Path,
        state: PartialState,
    ) -> None:
        super().__init__(config, student, student.head, total_steps, folder, state)
        self._set, self._stream = token_set, stream
        self._decoder = token_set.decoder()
        self._log_frequency_V = log_frequencies(token_set)
        start_without_context(student.head, self._log_frequency_V)
        self._head = HeadPass(student.head, torch.bfloat16 if has_fast_bf16() else torch.float32)

    def train_step(self, step: int) -> tuple[torch.Tensor, int]:
        """Takes one step; returns the mean loss of a position over all processes, and this one's number of them."""
        config, student, state = self._config, self.model, self._state
        batch = self._stream.batch(step, state.process_index, student.config.pad_id)
        inputs = (to_device(part, state.device) for part in (batch.ids_BL, batch.row_P, batch.place_P))
        features_PF = student(*inputs, self._rows_of(batch.ids_BL.flatten()))
        num_positions = torch.tensor(float(len(batch.row_P)), device=state.device)
        if state.num_processes > 1:
            num_positions = reduce(num_positions, reduction="sum")
        teacher_of = stored_teacher(self._set, self._decoder, batch, config.temperature)
        target_P = to_device(batch.target_P, state.device)
        mean = self._head.backward(
            features_PF, target_P, teacher_of, config.alpha, config.temperature, 1 / num_positions
        )
        return self._move(step, mean, "sum"), len(batch.row_P)

    def evaluate(self) -> Metrics:
        """Scores on the rows held out, see `scores_and_control`; every process works them all out."""
        return scores_and_control(self.model, self._set, self._log_frequency_V)


def stored_teacher(token_set: TokenSet, decoder: Decoder | None, batch: MaskedBatch, temperature: float) -> TeacherOf:
    """The teacher's distributions at some of a batch's positions, from what the set's codec has kept of them."""
    codec = token_set.record.codec

    def teacher_of(part: slice) -> Distribution:
        columns = {name: column[part] for name, column in batch.predictions.items()}
        return codec.decode(columns, temperature, decoder)

    return teacher_of


def masked_lesson(config: PretrainConfig, root: Path, state: PartialState) -> Lesson:
    """What a set of tokens teaches.

    Raises:
        ConfigError: naming every flag that does not fit, the temperature included if the set's codec has not kept it.
    """
    token_set = open_tokens(root, config.allow_unverified)
    refuse_flags(config, {"vector_loss", "vector_map", "init"}, "is for a set of sentences; this one is of tokens")
    token_set.check_temperature(config.temperature)
    student_config = design_mlm(config, token_set.record)
    stream = Stream(token_set, "train", config.per_device_train_batch_size, config.seed, state.num_processes)

    def learner(total_steps: int, folder: Path) -> MlmLearner:
        student = new_student(config, MlmStudent, student_config).to(state.device)
        return MlmLearner(config, student, token_set, stream, total_steps, folder, state)

    return Lesson(
        stored=token_set,
        stream=stream,
        learner=learner,
        settings={
            "codec": json.loads(token_set.record.codec.model_dump_json()),
            "precision": "bf16" if has_fast_bf16() else "fp32",
        },
        unused={"vector_loss", "vector_map"},
        card=partial(card_text, record=token_set.record),
    )
