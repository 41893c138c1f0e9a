"""model2vec, a peer without layers or order: the mean of its tokens' vectors."""

from collections.abc import Sequence

import numpy as np
from model2vec import StaticModel
from tokenizers import Tokenizer

from distill.apps.bench.reader import Reader

WIDTH = 256  # of potion-base-8M


def static_reader(name: str, tokenizer: Tokenizer, vocabulary_size: int) -> Reader:
    """A model of random vectors for the student's tokens; its own code makes vectors of texts, and predicts nothing."""
    vectors_VE = np.random.default_rng(0).normal(size=(vocabulary_size, WIDTH)).astype(np.float32)
    model = StaticModel(vectors_VE, Tokenizer.from_str(tokenizer.to_str()))

    def predict(texts1: Sequence[str], texts2: Sequence[str] | None) -> object:
        return [model.encode(list(texts)) for texts in (texts1, texts2) if texts is not None]

    return Reader(name, "fp32", vectors_VE.size, None, predict)
