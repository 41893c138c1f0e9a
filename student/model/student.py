"""Students of tasks, for inputs or their tokens: encoder, pairing, head. They are saved as a self-contained folder.

Shapes: B batch, L tokens of the first sentence, K tokens of the second, N sequences (B or 2 B), T tokens of all
sequences end to end, S = N + 1 starts, P and F features, C logits.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, snapshot_download
from torch import nn

from pipeline.file_names import CONFIG_FILE, TOKENIZER_FILE
from pipeline.files import write_atomically
from pipeline.sets.record_parts import KindName
from pipeline.training.run_record import thresholds_file
from student.encoders.aligned import AlignedEncoder
from student.encoders.bert import BertEncoder
from student.encoders.biattentive import BiattentiveEncoder
from student.encoders.encoder import Encoder, remaining_starts, without_padding
from student.encoders.lstm import LstmEncoder
from student.encoders.matrices import MatrixEncoder
from student.encoders.products import SparseGrads
from student.encoders.recurrent import RecurrentEncoder
from student.encoders.specs import EmbeddingKind, Sums
from student.model.architecture import StudentConfig, TokenLabelConfig
from student.model.card import CARD_FILE, card_text
from student.model.config_file import (
    TOKENIZER_CONFIG_FILE,
    bert_json,
    read_config,
    read_task_config,
    read_token_label_config,
)
from student.model.heads import HEADS, PAIRINGS, is_as_large, share_hidden_layers
from student.model.ngrams import Ngrams
from student.model.tables import SmallTable
from student.model.weights import check_room, load_weights, save_weights, stored_bytes

ENCODERS: dict[EmbeddingKind, Callable[[Any], Encoder]] = {
    "hybrid": MatrixEncoder,
    "cmow": MatrixEncoder,
    "cbow": MatrixEncoder,
    "recurrent": RecurrentEncoder,
    "lstm": LstmEncoder,
    "biattentive": BiattentiveEncoder,
    "aligned": AlignedEncoder,
    "bert": BertEncoder,
}


class TaskStudent(nn.Module, PyTorchModelHubMixin):
    """The base class of students of tasks. ``from_pretrained`` and ``push_to_hub`` work as for any model of the hub.

    Args:
        config: the architecture.
        encoder: an encoder that another student shares. Default: a new one.

    Attributes:
        config: as given.
        encoder: the encoder, which several students may share.
        head: the module from a representation to logits.
        ngrams: the n-gram part, whose logits are added to those of the head.
        companions: the other files in its folder by name: the tokenizer and its settings, the card, the thresholds of
            labels.
    """

    config: Any
    encoder: Encoder
    head: nn.Module

    def __init__(self, config: Any, encoder: Encoder | None = None) -> None:
        super().__init__()
        self.config = config
        # Companion files are kept as bytes, so that a student that is saved elsewhere stays complete.
        self.companions: dict[str, bytes] = {}
        self.encoder = ENCODERS[config.embedding](config) if encoder is None else encoder
        # Some heads have dropout of their own, as published, and a second one would double it.
        self.dropout = nn.Dropout(0 if HEADS[config.head].drops_itself else config.hidden_dropout)
        self.head = HEADS[config.head].make(config.head_shape, self.num_features)
        self.ngrams: Ngrams | None = None

    @property
    def num_features(self) -> int:
        """F, the number of the head's input features."""
        raise NotImplementedError

    @property
    def head_multiply_adds(self) -> tuple[int, int]:
        """Multiply-adds of the head per token, and per input."""
        return HEADS[self.config.head].multiply_adds(self.head, self.num_features)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def config_json(self) -> str:
        """Returns the text of its ``config.json``."""
        return bert_json(self.config) if self.config.is_hugging_face else self.config.model_dump_json(indent=2)

    def save(self, folder: Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``, each atomically."""
        is_rounded = self.config.weights == "rounded"
        save_weights(folder, self.config_json, self, self.config.is_hugging_face, is_rounded)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a student in evaluation mode.

        Raises:
            IntegrityError: if a file is missing or damaged, or has a newer format, or contains another kind of student.
        """
        config = cls.read_config(folder / CONFIG_FILE)
        # The size is checked before any tensor is made, because a config of a few bytes can describe terabytes.
        check_room(folder, config.least_bytes)
        student = cls(config)
        load_weights(folder, student)
        for name in (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, CARD_FILE):
            if (folder / name).is_file():
                student.companions[name] = (folder / name).read_bytes()
        if config.target.has_label_lists:
            student.companions |= thresholds_file(folder)
        return student.eval()

    @staticmethod
    def read_config(path: Path) -> Any:
        """Reads the ``config.json`` of a student of this kind."""
        raise NotImplementedError

    def _save_pretrained(self, save_directory: Path) -> None:
        self.save(save_directory)
        for name, content in self.companions.items():
            write_atomically(save_directory / name, partial(Path.write_bytes, data=content))

    @classmethod
    def _from_pretrained(cls, *, model_id: str, config: object = None, **download: Any) -> Self:
        """Loads a folder, or a repository of the hub. The file ``config.json`` counts, and ``config`` is ignored."""
        folder = Path(model_id)
        return cls.load(folder if folder.is_dir() else Path(snapshot_download(model_id, **download)))

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """Returns a card for a student without one."""
        return ModelCard(card_text(self.config, num_parameters(self), num_bytes(self)))


class Student(TaskStudent):
    """A student with logits per input."""

    config: StudentConfig
    read_config = staticmethod(read_config)

    def __init__(self, config: StudentConfig, encoder: Encoder | None = None) -> None:
        super().__init__(config, encoder)
        sizes = (config.num_tokens, config.target.num_logits, config.num_sequences == 2)
        self.ngrams = None if config.ngrams is None else Ngrams(config.ngrams, *sizes)

    @property
    def num_features(self) -> int:
        """F, the number of the head's input features."""
        size = self.encoder.token_size if HEADS[self.config.head].reads_tokens else self.encoder.size
        return size * (PAIRINGS[self.config.pairing].width if self.config.is_pair else 1)

    def forward(self, ids1_BL: torch.Tensor, ids2_BK: torch.Tensor | None = None) -> torch.Tensor:
        """Returns logits_BC, float32, before softmax.

        Args:
            ids1_BL: int64 ids of the first sentences without special tokens, or of both as one sequence for pairing
                ``joint``, padded at the end. A bert's single sentences have special tokens. See `sequences`.
            ids2_BK: the second sentences, if an input has two sequences.
        """
        ids_T, starts_S = without_padding(ids1_BL, self.config.pad_id)
        if ids2_BK is not None:
            ids2_T, starts2_S = without_padding(ids2_BK, self.config.pad_id)
            # All second sentences follow all first ones, so that `chunk(2)` separates them after encoding.
            ids_T, starts_S = torch.cat([ids_T, ids2_T]), torch.cat([starts_S, starts2_S[1:] + len(ids_T)])
        return self.logits(*self.drop_tokens(ids_T, starts_S))

    def logits(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Returns logits_BC like `forward`, for sequences end to end.

        Args:
            ids_T: int64 ids of all sequences. All first sentences precede the second ones.
            starts_S: int64. Sequence n is ``ids_T[starts_S[n] : starts_S[n + 1]]``.
            sparse_grads: receives the gradients of the tables. See `student.encoders.products`.

        Returns:
            logits_BC, float32.
        """
        logits_BC: torch.Tensor = self.head(*self.head_inputs(ids_T, starts_S, sparse_grads))
        return logits_BC if self.ngrams is None else self.ngrams.network * logits_BC + self.ngrams(ids_T, starts_S)

    def head_inputs(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Returns the arguments of the head, which other heads on the same encoder take as well. See `logits`."""
        if not HEADS[self.config.head].reads_tokens:
            return (self.dropout(self.features(ids_T, starts_S, sparse_grads)),)
        # Heads that read tokens compare the two sentences position by position, as the published code does.
        compare = PAIRINGS[self.config.pairing].compare if self.config.num_sequences == 2 else None
        features, lengths = self.encoder.per_token(ids_T, starts_S, sparse_grads), starts_S.diff().clamp(min=1)
        if compare:
            features, lengths = compare(*features.chunk(2)), torch.maximum(*lengths.chunk(2))
        return self.dropout(features), lengths

    def features(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Returns the input of a head for whole texts: features_BF, float32. See `logits` for the arguments."""
        if self.config.num_sequences == 1:
            return self.encoder.reduce(ids_T, starts_S, sparse_grads)
        compare = PAIRINGS[self.config.pairing].compare
        # The bi-attentive encoder combines both sentences itself, so nothing is left to compare.
        if compare is None:
            return self.encoder.reduce_pairs(ids_T, starts_S, sparse_grads)
        return compare(*self.encoder.reduce(ids_T, starts_S, sparse_grads).chunk(2))

    def drop_tokens(self, ids_T: torch.Tensor, starts_S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Drops whole tokens during training. Dropping numbers of a matrix would destroy the product."""
        if not self.training or not self.config.token_dropout:
            return ids_T, starts_S
        # Dropping whole tokens leaves identity matrices. Element-wise dropout of 0.1 leaves a cosine of 0.2 to the
        # clean product at 32 tokens.
        is_left_T = torch.rand(ids_T.shape, device=ids_T.device) >= self.config.token_dropout
        return ids_T[is_left_T], remaining_starts(is_left_T, starts_S)


class TokenLabelStudent(TaskStudent):
    """A student with logits per token."""

    config: TokenLabelConfig
    read_config = staticmethod(read_token_label_config)

    @property
    def reads_alone(self) -> bool:
        """Whether the head also reads each token and its neighbours, besides everything before it."""
        return isinstance(self.config.encoder, Sums)

    @property
    def num_features(self) -> int:
        """F, the number of the head's input features."""
        return self.encoder.token_size + (3 * self.encoder.size if self.reads_alone else 0)

    @property
    def head_multiply_adds(self) -> tuple[int, int]:
        """Multiply-adds of the head per token. It has no others, because it reads each token separately."""
        return sum(super().head_multiply_adds), 0

    def forward(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Returns logits_TC, float32, before softmax.

        Args:
            ids_T: int64, all sentences end to end, without special tokens.
            starts_S: int64. Sentence n is ``ids_T[starts_S[n] : starts_S[n + 1]]``.
            sparse_grads: receives the gradients of the tables. See `student.encoders.products`.
        """
        return self.head(self.dropout(self.features(ids_T, starts_S, sparse_grads)))  # type: ignore[no-any-return]

    def features(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Returns the features of each token, features_TF, float32.

        With sums, they include its own and its neighbours' vectors.

        Prefix and suffix features alone carry little information about the token itself and its neighbours.
        """
        read_TP = self.encoder.scan(ids_T, starts_S, sparse_grads)
        if not self.reads_alone:
            return read_TP
        # Each token becomes a sequence of its own, which reuses the kernel for whole texts.
        each = torch.arange(len(ids_T) + 1, device=ids_T.device)
        return torch.cat([read_TP, *beside(self.encoder.reduce(ids_T, each, sparse_grads), starts_S)], dim=1)


def beside(alone_TF: torch.Tensor, starts_S: torch.Tensor) -> list[torch.Tensor]:
    """Returns the features of each token's left neighbour, of the token, and of its right neighbour, or 0 if absent."""
    sentence_T = torch.arange(len(starts_S) - 1, device=starts_S.device).repeat_interleave(starts_S.diff())
    # Sentences lie end to end, so a neighbour counts only if it belongs to the same sentence.
    is_one_T1 = (sentence_T[1:] == sentence_T[:-1]).unsqueeze(1)
    nothing_1F = alone_TF.new_zeros(min(1, len(alone_TF)), alone_TF.shape[1])
    left_TF = torch.cat([nothing_1F, alone_TF[:-1] * is_one_T1])
    return [left_TF, alone_TF, torch.cat([alone_TF[1:] * is_one_T1, nothing_1F])]


STUDENTS: dict[KindName, type[TaskStudent]] = {"examples": Student, "token_labels": TokenLabelStudent}


def load_student(folder: Path) -> TaskStudent:
    """Reads a student of a task with any kind of row, in evaluation mode. See `TaskStudent.load` for errors."""
    return STUDENTS[read_task_config(folder / CONFIG_FILE).rows].load(folder)


def num_parameters(module: nn.Module) -> int:
    """Returns the number of a module's parameters, including those stored as float16 or int8."""
    # Small tables are buffers and not parameters, because they are never trained.
    small = (part.residual_RF.numel() for part in module.modules() if isinstance(part, SmallTable))
    ngrams = (part.weight_GRC.numel() for part in module.modules() if isinstance(part, Ngrams))
    return sum(p.numel() for p in module.parameters()) + sum(small) + sum(ngrams)


def num_bytes(module: nn.Module) -> int:
    """Returns the size of everything that is stored of a module."""
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())


def bytes_on_disk(student: TaskStudent, folder: Path) -> int:
    """Returns the size of a student's weights in its folder."""
    # Only the file shows the size of rounded weights.
    return stored_bytes(folder) if student.config.weights == "rounded" else num_bytes(student)


def default_device() -> torch.device:
    """Returns the GPU if there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def share_hidden(students: Sequence[TaskStudent]) -> None:
    """Gives students of one kind, with representations of one size, the same hidden layer in their heads."""
    for kind in dict.fromkeys(type(student) for student in students):
        share_hidden_layers([student.head for student in students if type(student) is kind], is_as_large)
