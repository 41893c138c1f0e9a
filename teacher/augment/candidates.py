"""Computes replacement candidates for every distinct sentence of a task once, and stores them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from accelerate import PartialState

from pipeline import console
from pipeline.arrays import Ints
from pipeline.cluster.ray_pool import RayFlags, RayPool, WorkerTask, on_cluster
from pipeline.files import make_folder
from pipeline.interrupts import stop_between
from pipeline.record_file import json_sha256
from pipeline.resumable import RangePart, Workspace, range_parts
from pipeline.sets.record_parts import Setting
from pipeline.sources import ROWS_AT_ONCE
from pipeline.text.tokenizer import tokenizer_sha256
from pipeline.text.word_vectors import file_sha256
from teacher.augment.proposals import FLAG, WordVectors, propose, read_vectors, whole_words
from teacher.augment.tinybert_editor import Site, Sites, read_sites, table_of_sites
from teacher.models.loaded import inference_mode, weights_sha256
from teacher.models.masked_lm import MaskedLm, load_masked_lm

if TYPE_CHECKING:
    from teacher.augment.methods import TinyBert  # whose plan calls this module

FOLDER = "candidates"
LIBRARIES = ("distill-offline", "torch", "transformers", "tokenizers")
# Increase it when the same settings give other candidates.
RULES = 1
SENTENCES_PER_PART = 2048
SENTENCES_AT_ONCE = 256


@dataclass(frozen=True)
class Proposer:
    """A masked LM that proposes candidates.

    Attributes:
        lm: the model.
        words: its vocabulary by token, with None for pieces of words.
        method: the flags.
        settings: everything that determines the candidates.
    """

    lm: MaskedLm
    words: list[str | None]
    method: "TinyBert"
    settings: dict[str, Setting]


def prepare_masked_lm(config: "TinyBert") -> Proposer:
    """Loads the masked LM that the flags name, and checks it before anything expensive.

    Raises:
        DataError: if it, or the word vectors, cannot be read.
        TeacherError: if it is not a masked LM, or does not use WordPiece.
    """
    vectors = "none"
    if config.word_vectors is None:
        console.warn("no --word-vectors: words of several pieces are not replaced")
    else:
        vectors = file_sha256(config.word_vectors, FLAG)
    forward = config.forward
    lm = load_masked_lm(config.masked_lm, None, forward.max_seq_length)
    settings: dict[str, Setting] = {
        "masked_lm": weights_sha256(lm.model),
        "tokenizer": tokenizer_sha256(lm.tokens.tokenizer.to_str()),
        "word_vectors": vectors,
        "num_candidates": config.num_candidates,
        "max_seq_length": forward.max_seq_length,
        "precision": forward.precision,
    }
    return Proposer(lm, whole_words(lm), config, settings)


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
    """Returns the candidates of all sentences. Each process computes its share of those that are not in the store.

    Args:
        proposer: the masked LM.
        sentences: the distinct sentences.
        state: the processes.
        store: the folder of sets.
        cluster: the cluster that computes them, or None for this process.
    """
    settings = {**proposer.settings, "rules": RULES, "sentences": _texts_sha256(sentences)}
    # The folder's name contains the fingerprint, so other settings get another folder and nothing has to be refused.
    work = Workspace(store / FOLDER / json_sha256(settings)[:16], settings)
    parts = range_parts("sentences", len(sentences), SENTENCES_PER_PART)
    make_folder(work.root)
    my_parts = work.my_missing(parts, state)
    if my_parts:
        path = proposer.method.word_vectors
        find = partial(_propose, proposer, read_vectors(path) if path else None)
        total = sum(part.size for part in my_parts)
        with console.progress(total, "candidates") as steps:
            if cluster is None:
                proposer.lm.model.to(state.device)
                for part in stop_between(my_parts):
                    work.write_table(part, table_of_sites(find(_texts(sentences, part), steps.advance)))
            else:
                _write_by_workers(cluster, CandidateTask(proposer.lm, find), sentences, work, my_parts, steps)
    state.wait_for_everyone()
    return read_sites([work.root / part.path for part in parts])


def _write_by_workers(
    cluster: RayFlags,
    candidates: "CandidateTask",
    sentences: pa.Array,
    work: Workspace,
    missing: list[RangePart],
    steps: console.Steps,
) -> None:
    """Computes missing parts by workers on a Ray cluster, and writes them here."""

    def take(part: RangePart) -> list[str]:
        return _texts(sentences, part)

    task = WorkerTask(_start, candidates, LIBRARIES)
    with on_cluster(cluster) as ray:
        pool: RayPool[RangePart, list[list[Site]]] = RayPool(ray, cluster, task, lambda part: part.path, take)
        for part, sites in pool.results(missing):
            work.write_table(part, table_of_sites(sites))
            steps.advance(len(sites))


@dataclass(frozen=True)
class CandidateTask:
    """Returns the input of a worker: the masked LM on the CPU, and the function that finds candidates with it."""

    lm: MaskedLm
    find: Callable[[list[str], Callable[[int], None]], list[list[Site]]]


def _start(task: CandidateTask) -> Callable[[list[str]], list[list[Site]]]:
    """Returns, in a worker, the function that finds the candidates of sentences."""
    task.lm.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return lambda texts: task.find(texts, lambda _: None)


def _texts(sentences: pa.Array, part: RangePart) -> list[str]:
    texts: list[str] = sentences[part.start : part.stop].to_pylist()
    return texts


def _texts_sha256(sentences: pa.Array) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(sentences), ROWS_AT_ONCE):
        for text in sentences[start : start + ROWS_AT_ONCE].to_pylist():
            data = text.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _propose(
    proposer: Proposer, vectors: WordVectors | None, texts: list[str], advance: Callable[[int], None]
) -> list[list[Site]]:
    """Returns the candidates of sentences, computed in small batches."""
    lm, method, forward = proposer.lm, proposer.method, proposer.method.forward
    sites: list[list[Site]] = []
    with inference_mode(lm.model.device, forward.precision):
        for first in range(0, len(texts), SENTENCES_AT_ONCE):
            some = texts[first : first + SENTENCES_AT_ONCE]
            sites += propose(lm, proposer.words, vectors, some, method.num_candidates, forward.max_seq_length)
            advance(len(some))
    return sites
