"""A corpus as a teacher reads it: which documents belong to a split, truncated and masked according to the flags."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import islice

import numpy as np

from pipeline import console
from pipeline.arrays import Ints, stacked
from pipeline.errors import ConfigError, DataError
from pipeline.sets.codecs import Codec
from pipeline.sets.record_parts import CorpusRecord, KindName, Setting, Shard
from pipeline.sets.write import plan_shards
from pipeline.sources import Documents, load_documents
from pipeline.sources.hugging_face_rows import place
from pipeline.tasks.task import TRAIN, Corpus, load_corpus
from pipeline.text.tokenizer import require_known_ids, vocabulary_size
from teacher.corpus.sequences import (
    Document,
    MaskingPlan,
    Sequences,
    frequency_weights,
    mask,
    read_sequences,
    uniform_weights,
)
from teacher.dump.rows import hub_dataset
from teacher.models.loaded import LoadedTokenizer
from teacher.models.masked_lm import MlmTokenizer
from teacher.settings import CorpusFlags, Masking

VALIDATION = "validation"
SPLITS = (VALIDATION, TRAIN)
COUNTED_DOCUMENTS = 50_000
MOST_LOOKED_AT = 64  # batches of sequences, for words in the tokenizer's vocabulary


@dataclass(frozen=True)
class Text:
    """A corpus with the settings for reading it."""

    corpus: Corpus
    documents: Documents
    flags: CorpusFlags
    max_seq_length: int

    def sequences(self, tokens: LoadedTokenizer, split: str, start: int, stop: int) -> Iterator[Sequences]:
        """Yields the sequences of a split that begin in the documents ``start`` to ``stop`` (exclusive), in batches."""
        flags, special = self.flags, tokens.num_special
        return read_sequences(
            self._numbered(split, start, stop),
            tokens.reader,
            flags.packing,
            self.corpus.language,
            max(1, flags.min_seq_length - special),
            self.max_seq_length - special,
        )

    def count(self, split: str, start: int, stop: int) -> int:
        """Returns how many of the documents ``start`` to ``stop`` (exclusive) belong to a split."""
        every = self.flags.validation_every
        held_out = len(range(-(-start // every) * every, stop, every))
        return held_out if split == VALIDATION else stop - start - held_out

    def samples(self) -> Iterator[list[tuple[int, int]]]:
        """Returns start and end of evenly spread documents, then of more documents, and then of all."""
        total, few = self.documents.num_documents, 64 if self.flags.packing == "blocks" else 8  # that fill a block
        for count, size in ((512, few), (8192, 1024)):
            if count < total:
                starts = np.linspace(0, total - size, count // size).astype(int)
                yield [(start, start + size) for start in starts.tolist()]
        yield [(0, total)]

    def hold(self, shard: Shard) -> "HeldText":
        """Returns only the documents of a shard, in memory."""
        read = tuple(self._numbered(shard.split, shard.start, shard.stop))
        without_files = replace(self.documents, parts=())
        return HeldText(self.corpus, without_files, self.flags, self.max_seq_length, read)

    def _numbered(self, split: str, start: int, stop: int) -> Iterator[list[Document]]:
        every = self.flags.validation_every
        for first, texts in self.documents.read(start, stop):
            yield [(row, text) for row, text in enumerate(texts, start=first) if in_split(row, split, every)]


@dataclass(frozen=True)
class HeldText(Text):
    """The documents of one shard, in memory, in their original batches."""

    read: tuple[list[Document], ...]

    def _numbered(self, split: str, start: int, stop: int) -> Iterator[list[Document]]:
        yield from self.read


def open_text(flags: CorpusFlags, max_seq_length: int) -> Text:
    """Opens the corpus that the flags name.

    Raises:
        ConfigError: if there is no such corpus, or the lengths leave no room for a sequence.
        DataError: if its text cannot be found or read.
    """
    if flags.min_seq_length > max_seq_length:
        problem = f"{flags.min_seq_length} is above --max-seq-length {max_seq_length}"
        raise ConfigError(f"--min-seq-length: {problem}")
    corpus = load_corpus(flags.corpus, flags.manifest, flags.data)
    return Text(corpus, load_documents(corpus, flags.data, flags.max_documents), flags, max_seq_length)


def in_split(row: int, split: str, validation_every: int) -> bool:
    """Whether a document belongs to a split. One of so many is held out for validation."""
    return (row % validation_every == 0) == (split == VALIDATION)


def nothing_to_mask(text: Text, where: str) -> DataError:
    """Returns the error for a corpus without a token to mask in the examined part, such as "512 documents"."""
    return DataError(
        f"{text.documents.description}: no text with a token to mask in {where}. Try a smaller --min-seq-length "
        f"than {text.flags.min_seq_length}"
    )


def require_known_words(text: Text, tokens: LoadedTokenizer, name: str) -> None:
    """Raises DataError if a model's tokenizer lacks most words of documents spread over a corpus."""
    for ranges in text.samples():
        parts = (part.ids for start, stop in ranges for part in text.sequences(tokens, TRAIN, start, stop))
        ids = list(islice(parts, MOST_LOOKED_AT))
        if ids:
            require_known_ids(tokens.tokenizer, stacked(ids), f"model {name}")
            return


def masking_plan(text: Text, tokens: MlmTokenizer, masking: Masking, num_copies: int = 1) -> MaskingPlan:
    """Returns the plan by which a corpus is masked. Frequencies are those of an even sample of its documents."""
    special = list(tokens.special_ids)
    if masking.masking == "uniform":
        weight_V = uniform_weights(vocabulary_size(tokens.tokenizer), special)
    else:
        weight_V = frequency_weights(_count_tokens(text, tokens), special)
    return MaskingPlan(masking.seed, masking.mlm_probability, num_copies, tokens.mask_id, weight_V)


def _count_tokens(text: Text, tokens: MlmTokenizer) -> Ints:
    """Returns the count of each token [V] in at most so many documents, in blocks spread evenly over the corpus."""
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


BYTES_PER_TOKEN = 2.25  # of the masked ids, positions and targets, measured on Wikipedia


@dataclass(frozen=True)
class Size:
    """The size of the set of some documents, including all copies."""

    documents: int
    rows: int
    tokens: int
    positions: int

    def num_bytes(self, codec: Codec) -> float:
        """Returns the approximate size of a set with this codec."""
        return self.tokens * BYTES_PER_TOKEN + self.positions * codec.num_bytes()


def estimate_size(text: Text, tokens: MlmTokenizer, plan: MaskingPlan) -> Size:
    """Estimates the size from documents spread evenly over the corpus."""
    total = text.documents.num_documents
    for ranges in text.samples():
        sample = _size(text, tokens, plan, ranges)
        if sample.positions:
            numbers = (sample.rows, sample.tokens, sample.positions)
            return Size(total, *(round(number * total / sample.documents) for number in numbers))
    raise nothing_to_mask(text, f"{total:,} documents")


def _size(text: Text, tokens: MlmTokenizer, plan: MaskingPlan, ranges: list[tuple[int, int]]) -> Size:
    """Returns the exact size of only these documents."""
    documents = rows = num_tokens = positions = 0
    for start, stop in ranges:
        documents += stop - start
        for split in SPLITS:
            for sequences in text.sequences(tokens, split, start, stop):
                masked = mask(sequences, plan)
                rows += len(masked.sequence_R)
                num_tokens += len(masked.ids.flat)
                positions += len(masked.positions.flat)
    return Size(documents, rows, num_tokens, positions)


def document_shards(text: Text, rows_per_shard: int, folder: KindName = "masked_words") -> tuple[Shard, ...]:
    """Returns ranges of documents for both splits, validation first, so that problems of a teacher show early."""
    shards = []
    for split in SPLITS:
        documents = rows_per_shard * (text.flags.validation_every if split == VALIDATION else 1)
        shards += plan_shards(split, text.documents.num_documents, documents, folder)
    return tuple(shards)


def corpus_record(text: Text) -> CorpusRecord:
    """Describes a corpus, and how it is cut."""
    hub = text.corpus.hub
    is_from_hub = hub is not None and text.documents.description == f"{place(hub)}:{text.corpus.hub_split}"
    return CorpusRecord(
        name=text.corpus.name,
        version=text.corpus.version,
        language=text.corpus.language,
        licence=text.corpus.licence,
        packing=text.flags.packing,
        min_seq_length=text.flags.min_seq_length,
        validation_every=text.flags.validation_every,
        license=text.corpus.license,
        hub=hub_dataset(hub) if is_from_hub else None,
    )


def corpus_settings(record: CorpusRecord) -> dict[str, Setting]:
    """Returns the part of a corpus's record that decides the rows of a set."""
    # Facts for people and for the hub must not change fingerprints.
    deciding = record.model_dump(exclude={"licence", "license", "hub"})
    return {f"corpus.{name}": value for name, value in deciding.items()}


def how_cut() -> str:
    """Returns the version of the package that determines the ends of sentences."""
    return f"sentencex {version('sentencex')}"
