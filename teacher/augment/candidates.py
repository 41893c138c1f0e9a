"""Computes replacement candidates for every distinct sentence of a task once, and stores them.

A masked LM proposes words of one piece, word vectors propose others. The masked LM reads the same input as in
TinyBERT's code: the sentence with one piece masked, followed by the original sentence. (The paper does not mention the
second part.) Shapes: P queries, V vocabulary.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from accelerate import PartialState
from tokenizers import Encoding

from pipeline import console
from pipeline.arrays import Floats, Ints, Ragged
from pipeline.cluster.ray_pool import RayFlags, RayPool, WorkerTask, on_cluster
from pipeline.errors import TeacherError
from pipeline.files import make_folder
from pipeline.interrupts import stop_between
from pipeline.record_file import json_sha256
from pipeline.resumable import RangePart, Workspace, range_parts
from pipeline.sets.record_parts import Setting
from pipeline.sources import ROWS_AT_ONCE
from pipeline.text.tokenizer import special_ids, tokenizer_sha256
from pipeline.text.word_vectors import file_sha256, read_word_vectors
from teacher.augment.editors import Site, Sites, Span, read_sites, replaceable, table_of_sites
from teacher.models.batches import run_batches, tokens_per_batch
from teacher.models.loaded import inference_mode, weights_sha256
from teacher.models.masked_lm import MaskedLm, load_masked_lm, predict_masked
from teacher.models.model_settings import ForwardFlags

FOLDER = "candidates"
LIBRARIES = ("distill-offline", "torch", "transformers", "tokenizers")
# Increase it when the same settings give other candidates.
RULES = 1
SENTENCES_PER_PART = 2048
SENTENCES_AT_ONCE = 256


FLAG = "--word-vectors"
MAX_WORDS = 100_000  # as in TinyBERT's code, because these files list frequent words first
QUERIES_AT_ONCE = 128


@dataclass(frozen=True)
class WordVectors:
    """Words by descending frequency, with float32 vectors of length 1."""

    words: list[str]
    vectors_WD: Floats

    def neighbours(self, words: Sequence[str], k: int) -> dict[str, list[str]]:
        """The k nearest other words by cosine, nearest first, of each word that has a vector.

        A word is looked up as written, and then in small letters.
        """
        number = self._number
        numbers = {word: number.get(word, number.get(word.lower(), -1)) for word in dict.fromkeys(words)}
        queries = [(word, n) for word, n in numbers.items() if n >= 0]
        nearest: dict[str, list[str]] = {}
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            batch = queries[start : start + QUERIES_AT_ONCE]
            query_Q = np.array([n for _, n in batch])
            cosine_QW = self.vectors_WD[query_Q] @ self.vectors_WD.T
            # Every word is its own nearest neighbour.
            cosine_QW[np.arange(len(batch)), query_Q] = -np.inf
            top_QK = torch.topk(torch.from_numpy(cosine_QW), min(k, len(self.words) - 1)).indices.tolist()
            nearest |= {word: [self.words[n] for n in row] for (word, _), row in zip(batch, top_QK, strict=True)}
        return nearest

    @cached_property
    def _number(self) -> dict[str, int]:
        # reversed, so that the first of equal words wins
        return {word: n for n, word in reversed(list(enumerate(self.words)))}


def read_vectors(path: Path) -> WordVectors:
    """Reads the first 100,000 vectors of a GloVe or word2vec text file, gzipped or not, without those of only zeros."""
    words, vectors_WD = read_word_vectors(path, FLAG, MAX_WORDS)
    # float64, because squares of large numbers could overflow float32.
    lengths_W1 = np.linalg.norm(vectors_WD.astype(np.float64), axis=1, keepdims=True)
    return WordVectors(words, (vectors_WD / lengths_W1).astype(np.float32))


class Query(NamedTuple):
    """A piece to mask: its sentence's number, its number in the sentence, and its word."""

    sentence: int
    piece: int
    span: Span


def whole_words(lm: MaskedLm) -> list[str | None]:
    """Returns the vocabulary, with None for pieces of words and special tokens."""
    tokenizer = lm.tokens.tokenizer
    model = json.loads(tokenizer.to_str())["model"]
    if model["type"] != "WordPiece":
        raise TeacherError(f"--masked-lm {lm.name}: its tokenizer is {model['type']}, but augmentation needs WordPiece")
    prefix = model["continuing_subword_prefix"]
    words = [tokenizer.id_to_token(token) for token in range(lm.vocabulary_size)]
    special = set(lm.tokens.special_ids)
    return [
        word if word is not None and not word.startswith(prefix) and number not in special else None
        for number, word in enumerate(words)
    ]


def propose(
    lm: MaskedLm,
    words: Sequence[str | None],
    vectors: WordVectors | None,
    sentences: Sequence[str],
    k: int,
    max_seq_length: int,
) -> list[list[Site]]:
    """The sites of sentences and their candidates (TinyBERT, algorithm 1). Call it inside `inference_mode`.

    Without word vectors, words of several pieces are not replaced. Of longer sentences the masked LM reads only the
    part around the word.

    Returns: The sites of each sentence, in order. Candidates are in alphabetical order, because the order of nearly
        equal scores may depend on the batch.
    """
    encodings = lm.reader.encode(sentences)
    queries: list[Query] = []
    others: list[tuple[int, Span]] = []
    for number, (text, encoding) in enumerate(zip(sentences, encodings, strict=True)):
        words_here = _words(encoding)
        for span in sorted(replaceable(text, words_here)):
            pieces = words_here[span]
            if len(pieces) == 1:
                queries.append(Query(number, pieces[0], span))
            else:
                others.append((number, span))
    sites: list[list[Site]] = [[] for _ in sentences]
    for query, top in zip(queries, _top_k(lm, encodings, queries, k, max_seq_length), strict=True):
        candidates = [word for token in top if (word := words[token]) is not None]
        if candidates:
            sites[query.sentence].append(Site(query.span, sorted(candidates)))
    texts = [sentences[number][slice(*span)] for number, span in others]
    nearest = vectors.neighbours(texts, k) if vectors is not None else {}
    for (number, span), word_text in zip(others, texts, strict=True):
        if nearest.get(word_text):
            sites[number].append(Site(span, sorted(nearest[word_text])))
    return [sorted(of_sentence) for of_sentence in sites]


def _words(encoding: Encoding) -> dict[Span, list[int]]:
    """Returns the words of a text by position, and the numbers of their pieces."""
    pieces: dict[int, list[int]] = {}
    for place, word in enumerate(encoding.word_ids):
        assert word is not None  # there are no special tokens
        pieces.setdefault(word, []).append(place)
    offsets = encoding.offsets
    return {(offsets[places[0]][0], offsets[places[-1]][1]): places for places in pieces.values()}


def _top_k(
    lm: MaskedLm,
    encodings: Sequence[Encoding],
    queries: Sequence[Query],
    k: int,
    max_seq_length: int,
) -> list[list[int]]:
    """Returns the k most likely ids for each query. Batches depend only on the queries."""
    ids, second_P, place_P = _inputs(lm, encodings, queries, max_seq_length)
    top: list[list[int]] = [[] for _ in queries]

    def run(batch: list[int]) -> None:
        logits_PV = predict_masked(lm, ids, place_P, batch, second_starts=second_P)[1]
        best = torch.topk(logits_PV, min(k, logits_PV.shape[1]))
        # topk sorts NaN first, so the best values show any NaN.
        if not best.values.isfinite().all():
            raise TeacherError(f"--masked-lm {lm.name}: outputs NaN or Inf. Try --precision bf16 or fp32.")
        for query, tokens in zip(batch, best.indices.tolist(), strict=True):
            top[query] = tokens

    run_batches(ids.lengths.tolist(), tokens_per_batch(lm.model.device), run)
    return top


def _inputs(
    lm: MaskedLm, encodings: Sequence[Encoding], queries: Sequence[Query], max_seq_length: int
) -> tuple[Ragged, Ints, Ragged]:
    """Returns the ids of each query without outer special tokens, the start of its second part, and its mask."""
    before, after = lm.tokens.frame
    parts = special_ids(lm.tokens.tokenizer)
    between = list(parts[1]) if parts else list(after)
    # The sentence is in the input twice, so each copy has half of the room.
    longest = max(1, (max_seq_length - len(before) - len(between) - len(after)) // 2)
    rows, seconds, places = [], [], []
    for sentence, piece, _ in queries:
        ids = encodings[sentence].ids
        start = max(0, min(piece - longest // 2, len(ids) - longest))
        window, place = ids[start : start + longest], piece - start
        rows.append([*window[:place], lm.tokens.mask_id, *window[place + 1 :], *between, *window])
        seconds.append(len(window) + len(between))
        places.append([place])
    return Ragged.of(rows), np.array(seconds, dtype=np.int64), Ragged.of(places)


@dataclass(frozen=True)
class Proposer:
    """A masked LM, and everything that determines the candidates that it proposes."""

    lm: MaskedLm
    words: list[str | None]
    word_vectors: Path | None
    num_candidates: int
    forward: ForwardFlags
    settings: dict[str, Setting]

    def sites(self, vectors: WordVectors | None, texts: list[str], advance: Callable[[int], None]) -> list[list[Site]]:
        """Returns the candidates of sentences, computed in small batches."""
        sites: list[list[Site]] = []
        with inference_mode(self.lm.model.device, self.forward.precision):
            for first in range(0, len(texts), SENTENCES_AT_ONCE):
                some = texts[first : first + SENTENCES_AT_ONCE]
                sites += propose(self.lm, self.words, vectors, some, self.num_candidates, self.forward.max_seq_length)
                advance(len(some))
        return sites


def prepare_masked_lm(
    masked_lm: str, word_vectors: Path | None, num_candidates: int, forward: ForwardFlags
) -> Proposer:
    """Loads the masked LM, and checks it before anything expensive."""
    vectors = "none"
    if word_vectors is None:
        console.warn("no --word-vectors: words of several pieces are not replaced")
    else:
        vectors = file_sha256(word_vectors, FLAG)
    lm = load_masked_lm(masked_lm, None, forward.max_seq_length)
    settings: dict[str, Setting] = {
        "masked_lm": weights_sha256(lm.model),
        "tokenizer": tokenizer_sha256(lm.tokens.tokenizer.to_str()),
        "word_vectors": vectors,
        "num_candidates": num_candidates,
        "max_seq_length": forward.max_seq_length,
        "precision": forward.precision,
    }
    return Proposer(lm, whole_words(lm), word_vectors, num_candidates, forward, settings)


def distinct_sentences(rows: pa.Table) -> tuple[pa.Array, Ints]:
    """Returns every distinct sentence, and numbers_NS, the numbers of each row's first and second sentence."""
    columns = [rows.column(name).combine_chunks() for name in ("sentence1", "sentence2")]
    both = pa.chunked_array([column for column in columns if column.null_count < len(column)])
    # In pair tasks a sentence often occurs in many rows. MNLI's premises occur three times each.
    encoded = both.dictionary_encode().unify_dictionaries()
    numbers = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks]).astype(np.int64)
    return encoded.chunk(0).dictionary, numbers.reshape(-1, rows.num_rows).T


def find_sites(
    proposer: Proposer, sentences: pa.Array, state: PartialState, store: Path, cluster: RayFlags | None
) -> Sites:
    """Returns the candidates of all sentences. Each process computes its share of those that are not in the store."""
    digest = hashlib.sha256()
    for start in range(0, len(sentences), ROWS_AT_ONCE):
        for text in sentences[start : start + ROWS_AT_ONCE].to_pylist():
            data = text.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
    settings = {**proposer.settings, "rules": RULES, "sentences": digest.hexdigest()}
    # The folder's name contains the fingerprint, so other settings get another folder and nothing has to be refused.
    work = Workspace(store / FOLDER / json_sha256(settings)[:16], settings)
    parts = range_parts("sentences", len(sentences), SENTENCES_PER_PART)
    make_folder(work.root)
    my_parts = work.my_missing(parts, state)
    vectors = read_vectors(proposer.word_vectors) if my_parts and proposer.word_vectors else None

    def take(part: RangePart) -> list[str]:
        texts: list[str] = sentences[part.start : part.stop].to_pylist()
        return texts

    total = sum(part.size for part in my_parts)
    if my_parts and cluster is None:
        proposer.lm.model.to(state.device)
        with console.progress(total, "candidates") as steps:
            for part in stop_between(my_parts):
                work.write_table(part, table_of_sites(proposer.sites(vectors, take(part), steps.advance)))
    elif my_parts and cluster is not None:
        task = WorkerTask(_start, (proposer, vectors), LIBRARIES)
        with console.progress(total, "candidates") as steps, on_cluster(cluster) as ray:
            pool: RayPool[RangePart, list[list[Site]]] = RayPool(ray, cluster, task, lambda part: part.path, take)
            for part, sites in pool.results(my_parts):
                work.write_table(part, table_of_sites(sites))
                steps.advance(len(sites))
    state.wait_for_everyone()
    return read_sites([work.root / part.path for part in parts])


def _start(shared: tuple[Proposer, WordVectors | None]) -> Callable[[list[str]], list[list[Site]]]:
    """Returns, in a worker, the function that finds the candidates of sentences."""
    proposer, vectors = shared
    proposer.lm.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return lambda texts: proposer.sites(vectors, texts, lambda _: None)
