"""Answers as a student does, with numpy alone: an oracle that shares no code with the project.

For students of one label a text with a BERT tokenizer, rounded or float32 weights, no windows, MLP or linear head; of
pairs two texts each, by DiffCat or concatenate-compare. Shapes: L tokens, E and M = D * D numbers of a token's vector
and matrix, F features, C labels.
"""

import json
import re
import unicodedata
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np

DTYPES = {"F32": np.float32, "I32": np.int32, "I8": np.int8, "U8": np.uint8, "BF16": np.uint16}


def read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays of a file, and its texts, by name: 8 bytes tell how long the header is, that where each array lies."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    arrays, header = {}, json.loads(content[8:begin])
    texts = header.pop("__metadata__", {})
    for name, one in header.items():
        start, stop = one["data_offsets"]
        arrays[name] = np.frombuffer(content[begin + start : begin + stop], DTYPES[one["dtype"]]).reshape(one["shape"])
    return arrays, texts


def weights_of(run: Path) -> dict[str, np.ndarray]:
    """A student's weights, those of an encoder that it shares with students of other tasks among them."""
    weights, texts = read_safetensors(run / "model.safetensors")
    if "encoder_sha256" in texts:
        encoder, its_texts = read_safetensors(run / "encoder.safetensors")
        assert its_texts["sha256"] == texts["encoder_sha256"], "the encoder is of another epoch than the head"
        weights |= encoder
    names = [name.removesuffix(".shape") for name in weights if name.endswith(".shape")]
    return weights | {name: matrix_of(name, weights) for name in names}


def matrix_of(name: str, parts: dict[str, np.ndarray]) -> np.ndarray:
    """A rounded matrix: a neutral row, and in some rows what is added to it, in whole steps."""
    rows, (num_rows, num_columns) = parts[f"{name}.rows"], parts[f"{name}.shape"]
    content = zlib.decompress(parts[f"{name}.numbers"].tobytes())
    numbers = np.frombuffer(content, np.int8).reshape(len(rows), num_columns)
    # bfloat16 is the first half of float32.
    steps = (parts[f"{name}.steps"].astype(np.uint32) << 16).view(np.float32)
    neutral = np.eye(int(num_columns**0.5)).reshape(-1) if "matrices.table" in name else np.zeros(num_columns)
    matrix = np.tile(neutral.astype(np.float32), (num_rows, 1))
    matrix[rows] += numbers * steps[:, None]
    return matrix


def words_of(text: str, normalizer: dict[str, bool]) -> list[str]:
    """BERT's words: control characters go, each punctuation mark and each Chinese character stands alone."""
    text = "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    if normalizer.get("strip_accents") or (normalizer.get("strip_accents") is None and normalizer["lowercase"]):
        text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
    text = text.lower() if normalizer["lowercase"] else text
    alone = "".join({c for c in text if unicodedata.category(c)[0] == "P" or c in "$+<=>^`|~" or "一" <= c <= "鿿"})
    return re.sub(f"([{re.escape(alone)}])", r" \1 ", text).split() if alone else text.split()


def pieces_of(word: str, vocabulary: dict[str, int], unknown: int) -> list[int]:
    """WordPiece: the longest piece that the vocabulary has, again and again; a word with a gap is unknown."""
    ids, start = [], 0
    while start < len(word):
        pieces = (("##" if start else "") + word[start:end] for end in range(len(word), start, -1))
        piece = next((piece for piece in pieces if piece in vocabulary), None)
        if piece is None or len(word) > 100:
            return [unknown]
        ids.append(vocabulary[piece])
        start += len(piece) - (2 if start else 0)
    return ids


def features(ids: list[int], weights: dict[str, np.ndarray], with_max: bool) -> np.ndarray:
    """[sum of v_t ; max of v_t ; X_1 X_2 … X_L ; Y_L … Y_2 Y_1 ; sum of known pairs], F numbers."""
    parts = []
    if "encoder.vectors.table.weight" in weights:
        v_LE = weights["encoder.vectors.table.weight"][ids]
        parts += [v_LE.sum(axis=0)] + [v_LE.max(axis=0) if ids else v_LE.sum(axis=0)] * with_max
    for name, order in (("forward", ids), ("backward", ids[::-1])):
        table_VM = weights.get(f"encoder.{name}_matrices.table.weight")
        if table_VM is not None:
            side = int(table_VM.shape[1] ** 0.5)
            product = np.eye(side, dtype=np.float32)
            for matrix in table_VM[order].reshape(-1, side, side):
                product = product @ matrix
            parts.append(product.reshape(-1))
    if "encoder.bigrams.pairs_K2" in weights:
        row_of = {tuple(pair): row for row, pair in enumerate(weights["encoder.bigrams.pairs_K2"].tolist())}
        rows = np.array([row_of[pair] for pair in pairwise(ids) if pair in row_of], np.int64)
        parts.append(weights["encoder.bigrams.table.weight"][rows].sum(axis=0))
    return np.concatenate(parts)


def head(x_F: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    """Logits C: LayerNorm and Linear, before which an MLP has Linear and ReLU."""
    layers = [name.removesuffix(".bias") for name in sorted(weights) if name.startswith("head.") and "bias" in name]
    for layer in layers:
        weight, bias = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
        is_norm = weight.ndim == 1
        x_F = (x_F - x_F.mean()) / np.sqrt(x_F.var() + 1e-5) * weight + bias if is_norm else weight @ x_F + bias
        x_F = x_F if is_norm or layer == layers[-1] else np.maximum(x_F, 0)
    return x_F


def answer_of(run: Path, *texts: str) -> tuple[str, dict[str, float]]:
    """The label of an input, and the probability of each."""
    config, tokenizer = (json.loads((run / name).read_text("utf-8")) for name in ("config.json", "tokenizer.json"))
    weights, model = weights_of(run), tokenizer["model"]
    unknown, room = model["vocab"][model["unk_token"]], config["max_seq_length"] - 1 - len(texts)  # [CLS], [SEP]
    split = [words_of(text, tokenizer["normalizer"]) for text in texts]
    ids = [[i for word in words for i in pieces_of(word, model["vocab"], unknown)] for words in split]
    while sum(map(len, ids)) > room:  # the longer is cut first
        max(reversed(ids), key=len).pop()
    u_F, *w = (features(one, weights, config["encoder"]["pooling"] == "sum+max") for one in ids)
    for w_F in w:
        u_F = np.concatenate([u_F, w_F, *[u_F * w_F] * (config["pairing"] == "compare"), np.abs(u_F - w_F)])
    logits_C = head(u_F, weights)
    p_C = np.exp(logits_C - logits_C.max())
    probabilities = dict(zip(config["target"]["names"], (p_C / p_C.sum()).tolist(), strict=True))
    return max(probabilities, key=lambda name: probabilities[name]), probabilities
