"""Peers without layers: model2vec with two tokenizers, and fastText. They read texts on the CPU and return labels.

Their numbers are random, except that fastText has seen the texts once, which makes its table of words. All of them
return the most probable of two labels, as a student does.

Shapes: N texts, T tokens, V vocabulary, E numbers of a vector, F features, C labels.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from distill.apps.bench.readers import Reader, Sentences
from pipeline.arrays import Floats

VECTOR_SIZE = 256  # of potion-base-8M
LABELS = ("yes", "no")
Vectors = Callable[[Sequence[str]], Floats]


def static_reader(name: str, tokenizer: Tokenizer, is_pair: bool) -> Reader:
    """Returns model2vec with vectors for the student's tokens, and a linear layer.

    Args:
        name: for people.
        tokenizer: the student's.
        is_pair: whether inputs have two texts.
    """
    from model2vec import StaticModel

    vectors_VE = _random((tokenizer.get_vocab_size(), VECTOR_SIZE))
    model = StaticModel(vectors_VE, Tokenizer.from_str(tokenizer.to_str()))
    encode = partial(model.encode, max_length=None, use_multiprocessing=False)
    return _linear(name, vectors_VE.size, lambda texts: encode(list(texts)), is_pair)


def nanotoken_reader(name: str, tokenizer: Tokenizer, is_pair: bool) -> Reader:
    """Returns the mean of vectors as model2vec has them, of ids from nanotoken. See `static_reader`."""
    import nanotoken

    fast = nanotoken.Tokenizer.from_json(tokenizer.to_str())
    vectors_VE = torch.from_numpy(_random((tokenizer.get_vocab_size(), VECTOR_SIZE)))

    def encode(texts: Sequence[str]) -> Floats:
        ids = fast.encode_batch(list(texts), add_special_tokens=False, parallel=torch.get_num_threads() > 1)
        ids_T, starts_N = torch.from_numpy(ids.ids.astype(np.int64)), torch.from_numpy(ids.offsets[:-1])
        mean_NE: Floats = functional.embedding_bag(ids_T, vectors_VE, starts_N, mode="mean").numpy()
        return mean_NE

    return _linear(name, vectors_VE.numel(), encode, is_pair)


def fasttext_reader(name: str, sentences: Sentences) -> Reader:
    """Returns fastText as it comes, after one pass over what it will read. A pair is one line.

    Args:
        name: for people.
        sentences: the texts.
    """
    import fasttext

    read = [_lines(texts.first, texts.second) for texts in (sentences.text, sentences.documents)]
    lines = [line for part in read for line in part]
    with TemporaryDirectory() as folder:
        path = Path(folder, "lines.txt")
        path.write_text("".join(f"__label__{LABELS[n % 2]} {line}\n" for n, line in enumerate(lines)), encoding="utf-8")
        # Each thread sets a tenth of the vectors, so with fewer than ten, fastText learns from whatever is in memory.
        model = fasttext.train_supervised(str(path), epoch=1, thread=10, verbose=0)

    def predict(first: Sequence[str], second: Sequence[str] | None) -> list[str]:
        labels, _ = model.predict(_lines(first, second))
        return [label.removeprefix("__label__") for (label,) in labels]

    return Reader(name, "fp32", model.get_input_matrix().size, None, predict)


def _lines(first: Sequence[str], second: Sequence[str] | None) -> list[str]:
    return list(first) if second is None else [f"{a} {b}" for a, b in zip(first, second, strict=True)]


def _linear(name: str, num_parameters: int, encode: Vectors, is_pair: bool) -> Reader:
    """A linear layer on the vector of a text, or on those of two side by side."""
    weight_FC = _random((VECTOR_SIZE * (1 + is_pair), len(LABELS)))

    def predict(first: Sequence[str], second: Sequence[str] | None) -> list[str]:
        vectors = [encode(texts) for texts in (first, second) if texts is not None]
        return [LABELS[k] for k in (np.concatenate(vectors, axis=1) @ weight_FC).argmax(axis=1).tolist()]

    return Reader(name, "fp32", num_parameters + weight_FC.size, None, predict)


def _random(shape: tuple[int, int]) -> Floats:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)
