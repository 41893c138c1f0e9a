"""A corpus as a teacher reads it: which documents belong to a split, cut and masked as the flags say."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from pipeline import console
from pipeline.arrays import Ints, stacked
from pipeline.errors import ConfigError, DataError
from pipeline.sets.record_parts import Shard
from pipeline.sources import Documents, load_documents
from pipeline.tasks.task import TRAIN, Corpus, load_corpus
from pipeline.text.tokenizer import require_known_ids, vocabulary_size
from teacher.config import CorpusFlags
from teacher.corpus.masking import MaskingPlan, frequency_weights, uniform_weights
from teacher.corpus.sequences import Document, Sequences, read_sequences
from teacher.models.loaded import LoadedTokenizer
from teacher.models.masked_lm import MlmTokenizer

VALIDATION = "validation"
SPLITS = (VALIDATION, TRAIN)
COUNTED_DOCUMENTS = 50_000
MOST_LOOKED_AT = 64  # batches of sequences, for words that the tokenizer knows


@dataclass(frozen=True)
class Text:
    """A corpus with the settings it is read by."""

    corpus: Corpus
    documents: Documents
    config: CorpusFlags
    max_seq_length: int

    def sequences(self, tokens: LoadedTokenizer, split: str, start: int, stop: int) -> Iterator[Sequences]:
        """The sequences of a split that begin in the documents ``start`` to ``stop`` (exclusive), in batches."""
        config, special = self.config, tokens.num_special
        return read_sequences(
            self._numbered(split, start, stop),
            tokens.reader,
            config.packing,
            self.corpus.language,
            max(1, config.min_seq_length - special),
            self.max_seq_length - special,
        )

    def count(self, split: str, start: int, stop: int) -> int:
        """How many of the documents ``start`` to ``stop`` (exclusive) belong to a split."""
        every = self.config.validation_every
        held_out = len(range(-(-start // every) * every, stop, every))
        return held_out if split == VALIDATION else stop - start - held_out

    def samples(self) -> Iterator[list[tuple[int, int]]]:
        """Start and end of documents spread evenly over the corpus; for those who find nothing more, and then all."""
        total, few = self.documents.num_documents, 64 if self.config.packing == "blocks" else 8  # that fill a block
        for count, size in ((512, few), (8192, 1024)):
            if count < total:
                starts = np.linspace(0, total - size, count // size).astype(int)
                yield [(start, start + size) for start in starts.tolist()]
        yield [(0, total)]

    def hold(self, shard: Shard) -> "HeldText":
        """The documents of a shard, read, and no others."""
        read = tuple(self._numbered(shard.split, shard.start, shard.stop))
        without_files = replace(self.documents, parts=())
        return HeldText(self.corpus, without_files, self.config, self.max_seq_length, read)

    def _numbered(self, split: str, start: int, stop: int) -> Iterator[list[Document]]:
        every = self.config.validation_every
        for first, texts in self.documents.read(start, stop):
            yield [(row, text) for row, text in enumerate(texts, start=first) if in_split(row, split, every)]


@dataclass(frozen=True)
class HeldText(Text):
    """The documents of one shard, in memory, in the batches that they were read in."""

    read: tuple[list[Document], ...]

    def _numbered(self, split: str, start: int, stop: int) -> Iterator[list[Document]]:
        yield from self.read


def open_text(config: CorpusFlags, max_seq_length: int) -> Text:
    """The corpus that the flags name, opened.

    Args:
        config: the corpus, and how it is cut and masked.
        max_seq_length: longest sequence in tokens, with special tokens.

    Raises:
        ConfigError: if there is no such corpus, or the lengths leave no room for a sequence.
        DataError: if its text cannot be found or read.
    """
    if config.min_seq_length > max_seq_length:
        problem = f"{config.min_seq_length} is above --max-seq-length {max_seq_length}"
        raise ConfigError(f"--min-seq-length: {problem}")
    corpus = load_corpus(config.corpus, config.manifest, config.data)
    return Text(corpus, load_documents(corpus, config.data, config.max_documents), config, max_seq_length)


def in_split(row: int, split: str, validation_every: int) -> bool:
    """Whether a document belongs to a split: every so many is held out for validation."""
    return (row % validation_every == 0) == (split == VALIDATION)


def nothing_to_mask(text: Text, where: str) -> DataError:
    """What to raise if a corpus has no token to mask where it was looked for, as "512 documents"."""
    return DataError(
        f"{text.documents.description}: no text with a token to mask in {where}; is --min-seq-length "
        f"{text.config.min_seq_length} too large?"
    )


def require_known_words(text: Text, tokens: LoadedTokenizer, name: str) -> None:
    """Raises DataError if a model's tokenizer does not know most words of documents spread over a corpus."""
    for ranges in text.samples():
        parts = (part.ids for start, stop in ranges for part in text.sequences(tokens, TRAIN, start, stop))
        ids = list(islice(parts, MOST_LOOKED_AT))
        if ids:
            require_known_ids(tokens.tokenizer, stacked(ids), f"model {name}")
            return


def masking_plan(text: Text, tokens: MlmTokenizer, seed: int, num_copies: int) -> MaskingPlan:
    """The plan by which a corpus is masked; frequencies are those of an even sample of its documents."""
    special = list(tokens.special_ids)
    if text.config.masking == "uniform":
        weight_V = uniform_weights(vocabulary_size(tokens.tokenizer), special)
    else:
        weight_V = frequency_weights(_count_tokens(text, tokens), special)
    return MaskingPlan(seed, text.config.mlm_probability, num_copies, tokens.mask_id, weight_V)


def _count_tokens(text: Text, tokens: MlmTokenizer) -> Ints:
    """How often each token occurs [V] in at most so many documents, in blocks spread evenly over the corpus."""
    total, block = text.documents.num_documents, 1000
    num_blocks = max(1, min(total, COUNTED_DOCUMENTS) // block)
    blocks = np.unique(np.linspace(0, max(0, total - block), num_blocks).astype(int))
    count_V = np.zeros(vocabulary_size(tokens.tokenizer), dtype=np.int64)
    with console.progress(len(blocks), "counting tokens") as steps:
        for start in blocks.tolist():
            for sequences in text.sequences(tokens, TRAIN, start, min(total, start + block)):
                count_V += np.bincount(sequences.ids.flat, minlength=len(count_V))
            steps.advance()
    return count_V
