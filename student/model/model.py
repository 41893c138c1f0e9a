"""The student: encoder, pairing, head; saved as a folder that explains itself.

Shapes: B batch, L tokens of the first sentence, K tokens of the second, N sequences (B or 2 B), T tokens of all
sequences end to end, S = N + 1 starts, F features, C logits.
"""

from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, snapshot_download
from torch import nn

from pipeline.files import write_atomically
from pipeline.sets.record import TOKENIZER_FILE
from student.answers.labels import thresholds_file
from student.model.architecture import StudentConfig
from student.model.bert_folder import TOKENIZER_CONFIG_FILE, bert_json
from student.model.card import CARD_FILE, card_text
from student.model.config_file import read_config
from student.model.encoder import Encoder, remaining_starts, without_padding
from student.model.headed import Headed
from student.model.heads import HEADS
from student.model.pairings import PAIRINGS
from student.model.products import SparseGrads
from student.model.tables import SmallTable
from student.model.weights import CONFIG_FILE, check_room, load_weights, save_weights


class Student(Headed, PyTorchModelHubMixin):
    """A student; ``from_pretrained`` and ``push_to_hub`` work as for any model of the hub.

    Attributes:
        config: its architecture.
        companions: the files that lie beside its weights, by name: the tokenizer, what others read of it, the card,
            the thresholds of labels that hold each by itself.
    """

    def __init__(self, config: StudentConfig, encoder: Encoder | None = None) -> None:
        super().__init__(config, encoder)
        self.config: StudentConfig = config
        self.companions: dict[str, bytes] = {}
        self.dropout = nn.Dropout(0 if HEADS[config.head].drops_itself else config.hidden_dropout)
        size = self.encoder.token_size if HEADS[config.head].reads_tokens else self.encoder.size
        self.num_features = size * (PAIRINGS[config.pairing].width if config.is_pair else 1)
        self.head = HEADS[config.head].make(config.head_shape, self.num_features)

    def forward(self, ids1_BL: torch.Tensor, ids2_BK: torch.Tensor | None = None) -> torch.Tensor:
        """Returns logits_BC, float32, before softmax.

        Args:
            ids1_BL: int64 ids of the first sentences without special tokens, or of both as one sequence for pairing
                ``joint``, padded at the end; of a bert's single sentences with special tokens, see `sequences`.
            ids2_BK: likewise the second sentences, if the student takes two sequences.
        """
        ids_T, starts_S = without_padding(ids1_BL, self.config.pad_id)
        if ids2_BK is not None:
            ids2_T, starts2_S = without_padding(ids2_BK, self.config.pad_id)
            ids_T, starts_S = torch.cat([ids_T, ids2_T]), torch.cat([starts_S, starts2_S[1:] + len(ids_T)])
        return self.logits(*self.drop_tokens(ids_T, starts_S))

    def logits(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Returns logits_BC as `forward` does, for sequences end to end.

        Args:
            ids_T: int64 ids of all sequences; of two per input, the second sentences after all the first ones.
            starts_S: int64; sequence n is ``ids_T[starts_S[n] : starts_S[n + 1]]``.
            sparse_grads: takes the gradients of the tables, see `student.model.products`.

        Returns:
            logits_BC, float32.
        """
        if not HEADS[self.config.head].reads_tokens:
            return self.head(self.dropout(self.features(ids_T, starts_S, sparse_grads)))  # type: ignore[no-any-return]
        compare = PAIRINGS[self.config.pairing].compare if self.config.num_sequences == 2 else None
        features, lengths = self.encoder.per_token(ids_T, starts_S, sparse_grads), starts_S.diff().clamp(min=1)
        if compare:
            features, lengths = compare(*features.chunk(2)), torch.maximum(*lengths.chunk(2))
        return self.head(self.dropout(features), lengths)  # type: ignore[no-any-return]

    def features(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """What a head reads that does not read tokens: features_BF, float32, for arguments as of `logits`."""
        if self.config.num_sequences == 1:
            return self.encoder.reduce(ids_T, starts_S, sparse_grads)
        compare = PAIRINGS[self.config.pairing].compare
        if compare is None:
            return self.encoder.reduce_pairs(ids_T, starts_S, sparse_grads)
        return compare(*self.encoder.reduce(ids_T, starts_S, sparse_grads).chunk(2))

    def drop_tokens(self, ids_T: torch.Tensor, starts_S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Leaves out whole tokens while training; dropping numbers of a matrix would destroy the product."""
        if not self.training or not self.config.token_dropout:
            return ids_T, starts_S
        is_left_T = torch.rand(ids_T.shape, device=ids_T.device) >= self.config.token_dropout
        return ids_T[is_left_T], remaining_starts(is_left_T, starts_S)

    @property
    def config_json(self) -> str:
        """The text of its ``config.json``."""
        return bert_json(self.config) if self.config.is_hugging_face else self.config.model_dump_json(indent=2)

    def save(self, folder: Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``, each whole or not at all."""
        save_weights(folder, self.config_json, self, is_bert=self.config.is_hugging_face)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a student in evaluation mode.

        Raises:
            IntegrityError: if a file is missing or damaged, or of a newer format.
        """
        config = read_config(folder / CONFIG_FILE)
        check_room(folder, config.least_bytes)
        student = cls(config)
        load_weights(folder, student)
        for name in (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, CARD_FILE):
            if (folder / name).is_file():
                student.companions[name] = (folder / name).read_bytes()
        if config.target.kind == "labels":
            student.companions |= thresholds_file(folder)
        return student.eval()

    def _save_pretrained(self, save_directory: Path) -> None:
        self.save(save_directory)
        for name, content in self.companions.items():
            write_atomically(save_directory / name, partial(Path.write_bytes, data=content))

    @classmethod
    def _from_pretrained(cls, *, model_id: str, config: object = None, **download: Any) -> Self:
        """Loads a folder, or a repository of the hub; the file ``config.json`` is what counts, not ``config``."""
        folder = Path(model_id)
        return cls.load(folder if folder.is_dir() else Path(snapshot_download(model_id, **download)))

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """A card for a student that has none yet."""
        return ModelCard(card_text(self.config, num_parameters(self), num_bytes(self)))


def num_parameters(module: nn.Module) -> int:
    """How many numbers a module's parameters have, those that are stored smaller included."""
    small = (part.residual_RF.numel() for part in module.modules() if isinstance(part, SmallTable))
    return sum(p.numel() for p in module.parameters()) + sum(small)


def num_bytes(module: nn.Module) -> int:
    """Bytes of all that is stored of a module."""
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())


def default_device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
