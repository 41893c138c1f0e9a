"""A linear model on n-grams, whose logits a student adds to those of its network.

It reads the words that an input's tokens spell: words, pairs of neighbouring words, and two to four bytes within a word
and the spaces around it. Each n-gram has a row of weights, found by a hash. What an input has twice counts once. Of
pairs, an n-gram counts apart in the first text alone, in the second alone, and in both.

Sums of int8 weights are exact, so every implementation gives the same logits. The engine's is in ``ngrams.cpp``.

Shapes: N inputs, S texts, T tokens, V vocabulary, Y bytes, R rows of weights, G groups (1, or 3 of pairs), C logits.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer
from torch import Tensor, nn

from pipeline.arrays import Floats, Ints, Ragged

if TYPE_CHECKING:
    from scipy import sparse

WORD_WEIGHT, BYTES_WEIGHT = 3, 1  # there are about eight times as many n-grams of bytes as of words
MOST_BYTES = 4
SPACE = ord(" ")
# A text's hash is the sum of (byte + 1) * BASE^place modulo 2^64, whose upper bits, multiplied by MIX, are the row.
BASE, MIX = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
MODULUS = 2**64
MOST_WEIGHTS = 2**20  # in each group
LEAST_ROWS, MOST_ROWS = 2**12, 2**18
STARTS_OF_WORDS = ("Ġ", "▁")  # of byte-level BPE and SentencePiece


class NgramSizes(BaseModel):
    """The sizes of an n-gram part.

    Attributes:
        num_rows: R, a power of two.
        num_bytes: Y, of all tokens' spellings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    num_rows: int = Field(ge=LEAST_ROWS, le=MOST_ROWS)
    num_bytes: int = Field(ge=0, le=2**30)


def num_rows_for(num_logits: int) -> int:
    """Returns the number of rows of weights for so many logits: about a megabyte of them."""
    return max(LEAST_ROWS, min(MOST_ROWS, 1 << (MOST_WEIGHTS // num_logits).bit_length() - 1))


class Ngrams(nn.Module):
    """The n-gram part of a student.

    Args:
        sizes: its sizes.
        num_tokens: V.
        num_logits: C.
        is_pair: whether an input has two texts.

    Attributes:
        spelling_Y: uint8. Token v spells ``spelling_Y[start_V[v] : start_V[v + 1]]``. A word starts with a space.
        start_V: int32 [V + 1].
        weight_GRC: int8.
        scale_C: float32, what a weight of 1 is worth.
        overlap_C: float32, added in proportion to the n-grams that two texts share.
        bias_C: float32.
        network: float32 scalar, the factor of the network's logits.
    """

    spelling_Y: Tensor
    start_V: Tensor
    weight_GRC: Tensor
    scale_C: Tensor
    overlap_C: Tensor
    bias_C: Tensor
    network: Tensor

    def __init__(self, sizes: NgramSizes, num_tokens: int, num_logits: int, is_pair: bool) -> None:
        super().__init__()
        self.register_buffer("spelling_Y", torch.zeros(sizes.num_bytes, dtype=torch.uint8))
        self.register_buffer("start_V", torch.zeros(num_tokens + 1, dtype=torch.int32))
        groups = 3 if is_pair else 1
        self.register_buffer("weight_GRC", torch.zeros(groups, sizes.num_rows, num_logits, dtype=torch.int8))
        for name in ("scale_C", "overlap_C", "bias_C"):
            self.register_buffer(name, torch.zeros(num_logits))
        self.register_buffer("network", torch.ones(()))

    def file_tensors(self) -> dict[str, Tensor]:
        """Returns its tensors in a file for the engine. The network's factor is in the last layer of the head."""
        names = ("spelling_Y", "start_V", "weight_GRC", "scale_C", "overlap_C", "bias_C")
        in_file = ("spelling", "starts", "weight", "scale", "overlap", "bias")
        return {f"ngrams.{new}": getattr(self, old) for old, new in zip(names, in_file, strict=True)}

    def count(self, texts: Ragged) -> "Counts":
        """Counts the n-grams of inputs, given the ids of their texts, all first ones before the second ones."""
        from scipy import sparse  # takes as long to import as a prediction, and most students have no n-grams

        groups, num_rows, _ = self.weight_GRC.shape
        byte_Y, start_V = self.spelling_Y.cpu().numpy(), self.start_V.cpu().numpy()
        spelling = Ragged(np.append(byte_Y, np.uint8(SPACE)), np.append(start_V, start_V[-1] + 1))
        counted = _counted(spelling, texts, num_rows)
        if groups == 1:
            total_N = _totals(counted)
            return Counts(counted, np.sqrt(np.maximum(total_N, 1)), np.zeros_like(total_N))
        first, second = counted[: counted.shape[0] // 2], counted[counted.shape[0] // 2 :]
        both = first.minimum(second)
        of_first_N, of_second_N = _totals(first), _totals(second)
        shared_N = _totals(both) / np.sqrt(np.maximum(of_first_N * of_second_N, 1))
        in_groups = sparse.hstack([first - both, second - both, both], format="csr")
        return Counts(in_groups, np.sqrt(np.maximum(of_first_N + of_second_N, 1)), shared_N)

    def forward(self, ids_T: Tensor, starts_S: Tensor) -> Tensor:
        """Returns what is added to the network's logits, float32 [N, C].

        Args:
            ids_T: ids of all texts end to end, all first ones before the second ones.
            starts_S: text s is ``ids_T[starts_S[s] : starts_S[s + 1]]``.
        """
        counts = self.count(Ragged(ids_T.cpu().numpy(), starts_S.cpu().numpy()))
        weight_FC = self.weight_GRC.cpu().numpy().astype(np.int32).reshape(counts.weighted_NF.shape[1], -1)
        sum_NC = torch.from_numpy((counts.weighted_NF @ weight_FC).astype(np.float32)).to(ids_T.device)
        length_N, shared_N = (torch.from_numpy(part).to(ids_T.device)[:, None] for part in counts[1:])
        return sum_NC * self.scale_C / length_N + shared_N * self.overlap_C + self.bias_C


class Counts(NamedTuple):
    """The n-grams of inputs.

    Attributes:
        weighted_NF: int32 [N, G * R], the weight of each n-gram that an input has.
        length_N: float32, the square root of all weights of an input's texts.
        shared_N: float32, the share of them that is in both texts.
    """

    weighted_NF: "sparse.csr_matrix"
    length_N: Floats
    shared_N: Floats


def spelled(tokenizer_json: str, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Returns what each token of a vocabulary spells, as `Ngrams.spelling_Y` and `Ngrams.start_V`.

    Special tokens spell nothing.
    """
    tokenizer, model = Tokenizer.from_str(tokenizer_json), json.loads(tokenizer_json)["model"]
    prefix = model.get("continuing_subword_prefix") if model["type"] == "WordPiece" else None
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    names = {number: name for name, number in tokenizer.get_vocab().items() if number not in special}
    spellings = [_spelling(names.get(number, ""), prefix) for number in range(num_tokens)]
    starts = np.cumsum([0, *map(len, spellings)], dtype=np.int32)
    return torch.tensor(list(b"".join(spellings)), dtype=torch.uint8), torch.from_numpy(starts)


def _spelling(token: str, prefix: str | None) -> bytes:
    if prefix is not None and token:
        token = token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
    elif token.startswith(STARTS_OF_WORDS):
        token = f" {token[1:]}"
    return token.encode("utf-8", "surrogatepass")


def _totals(counted: "sparse.csr_matrix") -> Floats:
    return np.asarray(counted.sum(axis=1), dtype=np.float32).ravel()


def _counted(spelling: Ragged, texts: Ragged, num_rows: int) -> "sparse.csr_matrix":
    """Returns for each text the weight of each row of weights whose n-gram it has, int32 [S, R]."""
    from scipy import sparse

    # Behind the last token of each text comes the last spelling, a space.
    found = spelling.take(np.insert(texts.flat, texts.offsets[1:], len(spelling) - 1))
    text_Y = np.repeat(np.repeat(np.arange(len(texts)), texts.lengths + 1), found.lengths)
    is_space_Y = found.flat == SPACE
    rows_of, shape = _hashes(found.flat, num_rows), (len(texts), num_rows)

    def weighted(begin_N: Ints, end_N: Ints, weight: int) -> "sparse.csr_matrix":
        places = (text_Y[begin_N], rows_of(begin_N, end_N))
        counted = sparse.csr_matrix((np.ones(len(begin_N), dtype=np.int32), places), shape)
        counted.data[:] = weight
        return counted

    spaces = np.flatnonzero(is_space_Y)
    begin_W, end_W = spaces[:-1], spaces[1:] + 1
    # Between two texts are the space behind one and the space before the other.
    is_word_W = end_W - begin_W > 2
    begin_W, end_W = begin_W[is_word_W], end_W[is_word_W]
    follows_W = end_W[:-1] - 1 == begin_W[1:]
    begins, ends = [begin_W, begin_W[:-1][follows_W]], [end_W, end_W[1:][follows_W]]
    of_words = weighted(np.concatenate(begins), np.concatenate(ends), WORD_WEIGHT)
    num_spaces_Y = np.concatenate([[0], np.cumsum(is_space_Y)])
    begins, ends = [], []
    for size in range(2, MOST_BYTES + 1):
        begin_N = np.arange(max(0, len(is_space_Y) - size + 1))
        # Spaces are at the ends of an n-gram, never inside.
        is_inside_N = (num_spaces_Y[begin_N + size - 1] == num_spaces_Y[begin_N + 1]) & (
            text_Y[begin_N] == text_Y[begin_N + size - 1]
        )
        begins.append(begin_N[is_inside_N])
        ends.append(begin_N[is_inside_N] + size)
    counted: sparse.csr_matrix = of_words.maximum(weighted(np.concatenate(begins), np.concatenate(ends), BYTES_WEIGHT))
    return counted


def _hashes(byte_Y: Ints, num_rows: int) -> Callable[[Ints, Ints], Ints]:
    """Returns a function from the begins and ends of substrings to their rows."""
    # Products modulo 2^64 have an inverse, so the hash of every substring is a difference of two sums.
    base, inverse = np.uint64(BASE), np.uint64(pow(BASE, -1, MODULUS))
    power_Y = np.cumprod(np.append(np.uint64(1), np.full(len(byte_Y), base)))
    unpower_Y = np.cumprod(np.append(np.uint64(1), np.full(len(byte_Y), inverse)))
    sum_Y = np.append(np.uint64(0), np.cumsum((byte_Y.astype(np.uint64) + np.uint64(1)) * power_Y[:-1]))
    shift = np.uint64(65 - num_rows.bit_length())

    def rows(begin_N: Ints, end_N: Ints) -> Ints:
        hash_N = (sum_Y[end_N] - sum_Y[begin_N]) * unpower_Y[begin_N]
        return np.asarray((hash_N * np.uint64(MIX)) >> shift, dtype=np.int64)

    return rows
