"""A step of pretraining: masked sequences, the head's loss and gradients at once, one move of AdamW.

Shapes: B rows, L tokens, P masked positions, F features.
"""

from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import reduce

from pipeline.device import has_fast_bf16, to_device
from pipeline.logit_set.codecs import Decoder, Distribution
from pipeline.logit_set.token_reader import TokenSet
from pipeline.training.loop import Learner
from pipeline.training.run_record import Metrics
from pipeline.training.steps import seed_step
from student.config import PretrainConfig
from student.pretrain.data import MaskedBatch, Stream
from student.pretrain.evaluate import evaluate_mlm
from student.pretrain.head import HeadPass, TeacherOf
from student.pretrain.model import MlmConfig, MlmStudent
from student.train.optimizer import RowAdam
from student.train.used_rows import count_used_rows, neutralise_unmoved

BETAS, EPS = (0.9, 0.98), 1e-6  # of the published code


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
        self.optimizer: RowAdam = _optimizer(config, student)
        self._config, self._set, self._stream = config, token_set, stream
        self._total_steps, self._steps_taken = total_steps, 0
        self._folder, self._state = folder, state
        self._decoder = token_set.decoder()
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
        """Scores on the rows held out, see `evaluate_mlm`; every process works them all out."""
        return {"validation": evaluate_mlm(self.model, self._set, "validation")}

    def keep(self) -> None:
        """Writes the student."""
        count_used_rows(self.model)
        self.model.save(self._folder)

    def catch_up(self) -> None:
        """Moves the rows that the last batches did not use to where dense Adam has them.

        After the last step the rows that no batch has used are made neutral: where they are is noise.
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


def _optimizer(config: PretrainConfig, student: MlmStudent) -> RowAdam:
    """AdamW. Embeddings do not decay: a matrix near the identity would decay to nothing, not to doing nothing."""
    tables = (table.weight for table in student.encoder.tables())
    rates = (config.learning_rate, config.weight_decay)
    pad_id = student.config.pad_id
    return RowAdam(tables, student.head.parameters(), *rates, padding_idx=pad_id, betas=BETAS, eps=EPS)
