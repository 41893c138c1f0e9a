"""A student's encoder as a module of sentence-transformers, version 6 or newer."""

from pathlib import Path
from typing import Any, Self

import torch
from sentence_transformers.base.modules import InputModule
from tokenizers import Tokenizer

from pipeline.arrays import stacked
from student.model.architecture import sequences
from student.predict.predictor import Predictor


class StudentModule(InputModule):  # type: ignore[misc]
    """A student's sentence embeddings, for ``SentenceTransformer(modules=[StudentModule("runs/mnli")])``.

    Args:
        run: folder of a finished run.

    Raises:
        IntegrityError: if the folder holds no student.
    """

    def __init__(self, run: str | Path) -> None:
        super().__init__()
        predictor = Predictor(run)
        self.student, self.reader = predictor.student, predictor.reader

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the student's ids."""
        tokenizer: Tokenizer = self.reader.tokenizer
        return tokenizer

    @property
    def max_seq_length(self) -> int:
        """Maximum number of tokens of a sentence, including special tokens. Longer sentences are truncated."""
        longest: int = self.student.config.max_seq_length
        return longest

    def preprocess(self, inputs: list[str], prompt: str | None = None, **_: Any) -> dict[str, torch.Tensor]:
        """Returns the sentences' tokens end to end, int64 ``input_ids`` [T], and their ``starts`` [S]."""
        texts = [f"{prompt or ''}{text}" for text in inputs]
        ids = stacked(sequences(self.student.config, *self.reader.read(texts, None, self.max_seq_length)))
        return {"input_ids": torch.from_numpy(ids.flat), "starts": torch.from_numpy(ids.offsets)}

    def forward(self, features: dict[str, torch.Tensor], **_: Any) -> dict[str, torch.Tensor]:
        """Adds ``sentence_embedding``, float32 [N, F], not normalised."""
        # Vectors are not normalised, so that a Normalize module of sentence-transformers can decide it.
        features["sentence_embedding"] = self.student.encoder.reduce(features["input_ids"], features["starts"])
        return features

    def get_embedding_dimension(self) -> int:
        """Returns F."""
        size: int = self.student.encoder.size
        return size

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Writes the student's folder."""
        self.student.save_pretrained(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **_: Any) -> Self:
        """Reads a folder that `save` wrote. A folder of the hub must be downloaded first."""
        return cls(Path(model_name_or_path) / subfolder)
