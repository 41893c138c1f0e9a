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
from pipeline.logit_set.codecs import Decoder, Distribution
from pipeline.logit_set.token_reader import TokenSet, open_tokens
from pipeline.training.loop import Learner
from pipeline.training.run_record import Metrics
from pipeline.training.steps import seed_step
from student.config import PretrainConfig
from student.model.architecture import MlmConfig
from student.pretrain.card import card_text
from student.pretrain.data import MaskedBatch, Stream
from student.pretrain.evaluate import scores_and_control
from student.pretrain.frequencies import log_frequencies, start_without_context
from student.pretrain.head import HeadPass, TeacherOf
from student.pretrain.lesson import Lesson, embedding_optimizer
from student.pretrain.model import MlmStudent, design_mlm
from student.train.used_rows import neutralise_unmoved, with_used_rows


class MlmLearner(Learner):
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
        self.model = student
        self.optimizer = embedding_optimizer(config, student.encoder, student.head, student.config.pad_id)
        self._config, self._set, self._stream = config, token_set, stream
        self._total_steps, self._steps_taken = total_steps, 0
        self._folder, self._state = folder, state
        self._decoder = token_set.decoder()
        self._log_frequency_V = log_frequencies(token_set)
        start_without_context(student.head, self._log_frequency_V)
        self._head = HeadPass(student.head, torch.bfloat16 if has_fast_bf16() else torch.float32)

    def train_step(self, step: int) -> tuple[torch.Tensor, int]:
        """Takes one step; returns the mean loss of a position over all processes, and this one's number of them."""
        config, student, optimizer, state = self._config, self.model, self.optimizer, self._state
        batch = self._stream.batch(step, state.process_index, student.config.pad_id)
        # Processes add up gradients of the same shape: those of whole tables.
        rows = optimizer.use(batch.ids_BL.flatten()) if optimizer.by_rows and state.num_processes == 1 else None
        features_PF = student(
            *(to_device(part, state.device) for part in (batch.ids_BL, batch.row_P, batch.place_P)), rows
        )
        num_positions = torch.tensor(float(len(batch.row_P)), device=state.device)
        if state.num_processes > 1:
            num_positions = reduce(num_positions, reduction="sum")
        teacher_of = stored_teacher(self._set, self._decoder, batch, config.temperature)
        target_P = to_device(batch.target_P, state.device)
        mean = self._head.backward(
            features_PF, target_P, teacher_of, config.alpha, config.temperature, 1 / num_positions
        )
        if state.num_processes > 1:
            for parameter in student.parameters():
                parameter.grad = reduce(parameter.grad, reduction="sum")
            mean = reduce(mean, reduction="sum")
        optimizer.clip_gradients(config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        self._steps_taken = step + 1
        return mean, len(batch.row_P)

    def evaluate(self) -> Metrics:
        """Scores on the rows held out, see `scores_and_control`; every process works them all out."""
        return scores_and_control(self.model, self._set, self._log_frequency_V)

    def keep(self) -> None:
        """Writes the student."""
        self.model.config = with_used_rows(self.model.config, self.model.encoder)
        self.model.save(self._folder)

    def catch_up(self) -> None:
        """Moves the rows that the last batches did not use to where dense Adam has them.

        After the last step the rows that no step has moved are made neutral: where they are is noise.
        """
        self.optimizer.catch_up()
        if self._steps_taken == self._total_steps:
            neutralise_unmoved(self.model.encoder, new_student(self._config, self.model.config).encoder)


def new_student(config: PretrainConfig, student_config: MlmConfig) -> MlmStudent:
    """The student before its first step, on the CPU."""
    seed_step(config.seed, 0)
    return MlmStudent(student_config)


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
    refuse_flags(config, {"vector_loss", "vector_map"}, "is for a set of sentences; this one is of tokens")
    token_set.check_temperature(config.temperature)
    student_config = design_mlm(config, token_set.record)
    stream = Stream(token_set, "train", config.per_device_train_batch_size, config.seed, state.num_processes)

    def learner(total_steps: int, folder: Path) -> MlmLearner:
        student = new_student(config, student_config).to(state.device)
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
