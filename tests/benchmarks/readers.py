"""Students, and what people use instead of them, as `tests.benchmarks.throughput` times them.

The peers have the shapes of the real models and random weights. Each returns the most probable of two labels, as a
student does, except that transformers return vectors.

Shapes: N texts, B batch, L tokens, V vocabulary, E numbers of a vector, H hidden size, F features, C labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import AutoModel, BertConfig, DistilBertConfig, PreTrainedConfig, PreTrainedModel

from pipeline.arrays import Floats, Ragged
from pipeline.text.text_to_ids import TextReader
from student.model.student import num_parameters
from student.predict.engine_backend import EngineBackend
from student.predict.predictor import Predictor
from teacher.models.batches import token_budget_batches, tokens_per_batch
from teacher.models.loaded import DTYPES

VECTOR_SIZE = 256  # of potion-base-8M
LABELS = ("yes", "no")
MAX_POSITIONS = 512
TRANSFORMERS: dict[str, PreTrainedConfig] = {
    "bert-base": BertConfig(),
    "distilbert": DistilBertConfig(),  # Sanh et al. 2019
    # Jiao et al. 2020
    "tinybert-4": BertConfig(hidden_size=312, num_hidden_layers=4, num_attention_heads=12, intermediate_size=1200),
}
Texts = tuple[list[str], list[str] | None]  # the first texts, and the second ones of pairs


@dataclass(frozen=True)
class Reader:
    """A student, or a peer of it, on a device.

    Attributes:
        num_parameters: the number of trained parameters.
        predict: returns labels for texts or pairs.
        encoding: prepares sentences given as ids and returns a function that computes their vectors. None if the model
            reads text only.
        set_threads: limits the threads of the CPU that are not torch's.
    """

    num_parameters: int
    predict: Callable[[Sequence[str], Sequence[str] | None], object]
    encoding: Callable[[Ragged], Callable[[], object]] | None = None
    set_threads: Callable[[int], None] = lambda count: None


def wait_for(device: torch.device) -> None:
    """Waits until a GPU has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def student_reader(predictor: Predictor, device: torch.device) -> Reader:
    """Moves a student to a device and returns its reader. On a CPU, the engine reads texts if the run has its file."""
    student = predictor.student.to(device)
    reads = predictor
    if device.type != "cpu" and isinstance(predictor.backend, EngineBackend):
        reads = Predictor.of(predictor.backend.by_torch)

    def encoding(ids: Ragged) -> Callable[[], torch.Tensor]:
        ids_T, starts_S = (torch.from_numpy(part).to(device) for part in (ids.flat, ids.offsets))

        def encode() -> torch.Tensor:
            features_NF: torch.Tensor = student.encoder.reduce(ids_T, starts_S)
            wait_for(device)
            return features_NF

        return encode

    return Reader(num_parameters(student), reads.columns, encoding, reads.set_threads)


def new_transformer(config: PreTrainedConfig, precision: str, device: torch.device) -> PreTrainedModel:
    """Returns an encoder with random weights in ``precision`` and with its fastest implementation of attention."""
    model = AutoModel.from_config(config, attn_implementation="sdpa")
    return model.eval().to(device, DTYPES[precision])


def transformer_reader(model: PreTrainedModel, tokenizer: Tokenizer, max_seq_length: int) -> Reader:
    """A transformer that reads batches of similar lengths, as a dump does.

    The head, one small product per sentence, is left out, which favours the transformer. Ids beyond its vocabulary wrap
    around, because every row of a random table is equally fast to read.
    """
    device, text_reader = model.device, TextReader.of(tokenizer)

    def encoding(ids: Ragged) -> Callable[[], torch.Tensor]:
        # The student's vocabulary may be larger than this table.
        wrapped = Ragged(ids.flat % model.config.vocab_size, ids.offsets)
        groups = token_budget_batches(ids.lengths.tolist(), tokens_per_batch(device))
        batches = [(rows, _batch(wrapped, rows, device)) for rows in groups]
        vectors_NH = torch.empty(len(ids), model.config.hidden_size, device=device)

        def encode() -> torch.Tensor:
            for rows, batch in batches:
                vectors_NH[rows] = model(**batch).last_hidden_state[:, 0].float()
            wait_for(device)
            return vectors_NH

        return encode

    def predict(texts1: Sequence[str], texts2: Sequence[str] | None) -> torch.Tensor:
        inputs = text_reader.tokenize(texts1, texts2, min(max_seq_length, MAX_POSITIONS))
        return encoding(Ragged.of([row.ids for row in inputs]))().cpu()

    return Reader(model.num_parameters(), predict, encoding)


def _batch(ids: Ragged, rows: list[int], device: torch.device) -> dict[str, torch.Tensor]:
    ids_BL = torch.from_numpy(ids.padded(rows, 0))
    mask_BL = torch.arange(ids_BL.shape[1]) < torch.from_numpy(ids.lengths[rows])[:, None]
    return {"input_ids": ids_BL.to(device), "attention_mask": mask_BL.long().to(device)}


def static_reader(tokenizer: Tokenizer, is_pair: bool) -> Reader:
    """Returns model2vec with vectors for the student's tokens, and a linear layer."""
    from model2vec import StaticModel

    vectors_VE = _random((tokenizer.get_vocab_size(), VECTOR_SIZE))
    model = StaticModel(vectors_VE, Tokenizer.from_str(tokenizer.to_str()))
    encode = partial(model.encode, max_length=None, use_multiprocessing=False)
    return _linear(vectors_VE.size, lambda texts: encode(list(texts)), is_pair)


def nanotoken_reader(tokenizer: Tokenizer, is_pair: bool) -> Reader:
    """Returns the mean of vectors as model2vec has them, of ids from nanotoken."""
    import nanotoken

    fast = nanotoken.Tokenizer.from_json(tokenizer.to_str())
    vectors_VE = torch.from_numpy(_random((tokenizer.get_vocab_size(), VECTOR_SIZE)))

    def encode(texts: Sequence[str]) -> Floats:
        ids = fast.encode_batch(list(texts), add_special_tokens=False, parallel=torch.get_num_threads() > 1)
        ids_T, starts_N = torch.from_numpy(ids.ids.astype(np.int64)), torch.from_numpy(ids.offsets[:-1])
        mean_NE: Floats = functional.embedding_bag(ids_T, vectors_VE, starts_N, mode="mean").numpy()
        return mean_NE

    return _linear(vectors_VE.numel(), encode, is_pair)


def fasttext_reader(read: Sequence[Texts]) -> Reader:
    """Returns fastText after one pass over what it will read, which makes its table of words. A pair is one line."""
    import fasttext

    lines = [line for texts in read for line in _lines(*texts)]
    with TemporaryDirectory() as folder:
        path = Path(folder, "lines.txt")
        path.write_text("".join(f"__label__{LABELS[n % 2]} {line}\n" for n, line in enumerate(lines)), encoding="utf-8")
        # Each thread sets a tenth of the vectors, so with fewer than ten, fastText learns from whatever is in memory.
        model = fasttext.train_supervised(str(path), epoch=1, thread=10, verbose=0)

    def predict(first: Sequence[str], second: Sequence[str] | None) -> list[str]:
        labels, _ = model.predict(_lines(first, second))
        return [label.removeprefix("__label__") for (label,) in labels]

    return Reader(model.get_input_matrix().size, predict)


def _lines(first: Sequence[str], second: Sequence[str] | None) -> list[str]:
    return list(first) if second is None else [f"{a} {b}" for a, b in zip(first, second, strict=True)]


def _linear(num_parameters: int, encode: Callable[[Sequence[str]], Floats], is_pair: bool) -> Reader:
    """A linear layer on the vector of a text, or on those of two side by side."""
    weight_FC = _random((VECTOR_SIZE * (1 + is_pair), len(LABELS)))

    def predict(first: Sequence[str], second: Sequence[str] | None) -> list[str]:
        vectors = [encode(texts) for texts in (first, second) if texts is not None]
        return [LABELS[k] for k in (np.concatenate(vectors, axis=1) @ weight_FC).argmax(axis=1).tolist()]

    return Reader(num_parameters + weight_FC.size, predict)


def _random(shape: tuple[int, int]) -> Floats:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)
