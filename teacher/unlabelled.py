"""``teacher-dump --unlabelled``: adds rows of unlabelled text after the task's own rows of ``train``.

Unlabelled text is in files with columns or lines, or in a corpus by name. The choice of rows is a function of the text,
the task's rows and the settings. Texts are compared by their words in NFKC and lower case, without punctuation.

A student that is trained on near copies of dev rows would be evaluated on rows it has seen. See `near_copies`.

Shapes: N rows or texts, W words.
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_matrix
from sentencex import segment

from pipeline import console
from pipeline.arrays import Bools, Ints, hashed
from pipeline.errors import ConfigError, DataError, did_you_mean, raise_all
from pipeline.files import sha256
from pipeline.sets.record_parts import Setting, UnlabelledRecord
from pipeline.sources import Source, load_documents, sentences
from pipeline.sources.columns import row_numbers, text_column
from pipeline.sources.hugging_face_rows import row_files
from pipeline.sources.row_files import FORMATS, open_rows
from pipeline.tasks.task import TRAIN, Task, corpus_names, load_corpus
from pipeline.text.near_copies import joined, letters, near_copies, normalized, normalized_inputs, words_of
from pipeline.text.text_to_ids import TextReader
from pipeline.text.windows import are_truncated
from teacher.settings import PairsFrom, Unlabelled

# Increase it when the same settings give other rows.
RULES = 2
# From this average number of sentences per text on, pairs are made of neighbouring sentences.
SENTENCES_OF_A_TEXT = 2
Places = tuple[tuple[str, int], ...]  # files, each with the number of its first row

TEXT = "text"  # the column of texts without the task's column names
DOCUMENTS_PER_BLOCK = 64
SPARE = 1.25  # factor on the requested rows, because some will be left out

# Words in more sentences are too common to indicate similarity.
MOST_SENTENCES = 100
SENTENCES_AT_ONCE = 4096
# Integer weights, because float sums depend on the order of additions and so on the machine.
WEIGHT_UNIT = 1024

Pairs = tuple[list[str], list[str]]


@dataclass(frozen=True)
class Texts:
    """Columns of text, as they were found.

    Attributes:
        description: their origin, for the record.
        sha256: hash of the content of the files or of the corpus.
        columns: for files one column of texts, or the first and the second sentences of pairs. Empty for a corpus.
        places: each file and the number of its first row, for messages.
        documents: for a corpus the sentences of each document.
    """

    description: str
    sha256: str
    columns: tuple[pa.Array, ...] = ()
    places: Places = ()
    documents: tuple[list[str], ...] = ()


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of a text."""
    return [sentence.strip() for sentence in segment(language, text) if sentence.strip()]


def find_texts(place: str, task: Task, max_rows: int | None, seed: int, wants_pairs: bool | None) -> Texts:
    """Returns the text in a file or a folder, or of a corpus by name.

    ``wants_pairs``: whether there must be two columns, one column, or either.

    Raises:
        ConfigError: if there is no such place, or a corpus has no requested number of rows.
        DataError: if a file cannot be read, lacks a column, or a row of it is not text.
    """
    path = Path(place)
    if path.exists():
        return _of_files(path, task, wants_pairs)
    if place not in corpus_names():
        known = did_you_mean(place, corpus_names())
        raise ConfigError(f"--unlabelled {place}: no such file, folder or corpus. {known}")
    if max_rows is None:
        raise ConfigError(f"--unlabelled {place}: Give the number of rows of this corpus with --max-unlabelled")
    if wants_pairs:
        raise ConfigError("--unlabelled-pairs columns: needs files with two columns, not a corpus")
    return _of_corpus(place, max_rows, seed)


def _of_files(path: Path, task: Task, wants_pairs: bool | None) -> Texts:
    paths = row_files(path, FORMATS) if path.is_dir() else [path]
    if not paths:
        raise DataError(f"--unlabelled {path}: contains no {', '.join(FORMATS)} file")
    files = [open_rows(p, line_column=TEXT) for p in paths]
    names = _names(task, [file.names for file in files], wants_pairs)
    tables = [file.wanted({name for accepted in names for name in accepted}) for file in files]
    problems: list[str] = []
    columns = tuple(
        pa.concat_arrays([text_column(t, str(p), accepted, problems) for p, t in zip(paths, tables, strict=True)])
        for accepted in names
    )
    raise_all(DataError, "--unlabelled", problems)
    starts = np.cumsum([0, *(table.num_rows for table in tables[:-1])]).tolist()
    digest = hashlib.sha256("".join(sha256(p) for p in paths).encode()).hexdigest()
    return Texts(str(path), digest, columns, tuple(zip(map(str, paths), starts, strict=True)))


def _names(task: Task, found: Sequence[list[str]], wants_pairs: bool | None) -> list[tuple[str, ...]]:
    """Returns the accepted names of each column. For pairs, a single column of texts must be called ``text``."""
    first = tuple(dict.fromkeys([*task.columns.sentence1, "sentence1"]))
    if task.columns.sentence2 is None:
        return [tuple(dict.fromkeys([*first, TEXT]))]
    pair = [first, tuple(dict.fromkeys([*task.columns.sentence2, "sentence2"]))]
    has_text = all(TEXT in names for names in found)
    is_pair = all(any(name in names for name in accepted) for accepted in pair for names in found)
    return [(TEXT,)] if wants_pairs is False or (wants_pairs is None and has_text and not is_pair) else pair


def _of_corpus(name: str, max_rows: int, seed: int) -> Texts:
    """Returns documents of a corpus, in random order by blocks, until they have enough sentences."""
    corpus = load_corpus(name)
    documents = load_documents(corpus)
    wanted = int(SPARE * max_rows) + 1
    chosen: dict[int, list[list[str]]] = {}
    blocks = np.argsort(hashed(seed, np.arange(-(-documents.num_documents // DOCUMENTS_PER_BLOCK))), kind="stable")
    with console.progress(wanted, "sentences") as steps:
        for block in blocks.tolist():
            start = block * DOCUMENTS_PER_BLOCK
            stop = min(start + DOCUMENTS_PER_BLOCK, documents.num_documents)
            read = (text for _, texts in documents.read(start, stop) for text in texts)
            chosen[start] = [split_sentences(text, corpus.language) for text in read]
            found = sum(map(len, chosen[start]))
            steps.advance(found)
            wanted -= found
            if wanted <= 0:
                break
    in_order = tuple(sentences for start in sorted(chosen) for sentences in chosen[start])
    return Texts(documents.description, documents.sha256, documents=in_order)


def add_unlabelled(task: Task, source: Source, wanted: Unlabelled) -> tuple[Source, UnlabelledRecord]:
    """Adds rows without gold to ``train``, after the task's own.

    Raises:
        ConfigError: if there is no such place, or pairs are requested for single sentences.
        DataError: if there is no ``train``, or the text cannot be read or has no usable row.
    """
    place, pairs = wanted.unlabelled, wanted.unlabelled_pairs
    max_rows, seed = wanted.max_unlabelled, wanted.seed
    if TRAIN not in source.splits:
        raise DataError(f"{source.description}: has no rows of the split {TRAIN!r}, to which --unlabelled adds")
    if pairs is not None and not task.is_pair:
        raise ConfigError(f"--unlabelled-pairs: a row of {task.name!r} is a single sentence")
    wants_pairs = None if pairs is None else pairs == "columns"
    texts = find_texts(place, task, max_rows, seed, wants_pairs)
    rows, made_from = _rows(task, texts, pairs, seed)
    first_row = source.splits[TRAIN].num_rows
    if not rows.num_rows:
        raise DataError(f"--unlabelled {place}: contains no text, or no text for pairs")
    # Sentences that were split out of texts have no row numbers.
    is_as_found = made_from in ("none", "columns")
    places = texts.places if is_as_found else ()
    chosen_N, counts = choose_rows(source, rows, max_rows, seed, places, wanted.keep_near_copies)
    if counts["near_dev"]:
        left_out = f"{counts['near_dev']:,} of {rows.num_rows:,} rows are near copies of dev rows"
        console.warn(f"--unlabelled {place}: {left_out} and are left out. Add them with --keep-near-copies")
    if not chosen_N.any():
        raise DataError(f"--unlabelled {place}: has no row to add among {rows.num_rows:,} found: {counts}")
    chosen = rows.filter(pa.array(chosen_N))
    settings: dict[str, Setting] = {"rules": RULES, "content": texts.sha256, "seed": seed, "pairs": made_from}
    if max_rows is not None:
        settings["max"] = max_rows
    if wanted.keep_near_copies:
        settings["near_copies"] = "kept"
    if texts.documents or made_from in ("neighbours", "similar"):
        settings["cut"] = f"sentencex {version('sentencex')}"
    record = UnlabelledRecord(
        source=texts.description,
        settings=settings,
        first_row=first_row,
        found=len(chosen_N),
        rows=chosen.num_rows,
        **counts,
    )
    return with_unlabelled(source, chosen), record


def count_truncated(
    record: UnlabelledRecord, source: Source, reader: TextReader, max_seq_length: int, by_windows: bool
) -> UnlabelledRecord:
    """Returns the record with the number of truncated rows."""
    first, second = sentences(source.splits[TRAIN].slice(record.first_row))
    parts = reader.read(first, second, None)
    room = max_seq_length - reader.tokenizer.num_special_tokens_to_add(second is not None)
    cut = int(are_truncated([part.lengths for part in parts], room, by_windows).sum())
    return record.model_copy(update={"cut": cut})


def _rows(task: Task, texts: Texts, pairs: PairsFrom | None, seed: int) -> tuple[pa.Table, str]:
    """Returns the columns sentence1 and sentence2 of all rows in the text, and the source of pairs."""
    if not task.is_pair:
        first = texts.columns[0] if texts.columns else pa.array(itertools.chain(*texts.documents), pa.string())
        return _table(first, pa.nulls(len(first), pa.string())), "none"
    if len(texts.columns) == 2:
        return _table(*texts.columns), "columns"
    documents = texts.documents or [split_sentences(text) for text in texts.columns[0].to_pylist()]
    num_sentences = sum(map(len, documents))
    if pairs is None:
        pairs = "neighbours" if num_sentences >= SENTENCES_OF_A_TEXT * len(documents) else "similar"
    made = neighbours(documents) if pairs == "neighbours" else similar([*itertools.chain(*documents)], seed)
    return _table(*(pa.array(column, pa.string()) for column in made)), pairs


def _table(first: pa.Array, second: pa.Array) -> pa.Table:
    return pa.table({"sentence1": first, "sentence2": second})


def choose_rows(
    source: Source,
    rows: pa.Table,
    max_rows: int | None = None,
    seed: int = 0,
    places: Places = (),
    keeps_near_copies: bool = False,
) -> tuple[Bools, dict[str, int]]:
    """Chooses rows without gold: those with words that are neither near copies of dev rows nor repeated.

    Returns:
        Which rows are chosen [N], and the counts of other rows by reason.
    """
    normal = normalized_inputs(rows)
    empty_N = np.zeros(rows.num_rows, dtype=bool)
    for column in normal:
        empty_N |= pc.equal(column, "").to_numpy(zero_copy_only=False)
    starts = [start for _, start in places]
    for (place, start), stop in zip(places, [*starts[1:], len(empty_N)][: len(places)], strict=True):
        if empty_N[start:stop].any():
            console.warn(f"{place}: no word in {row_numbers(pa.array(empty_N[start:stop]))}. Left out")
    dev = [table for split, table in source.splits.items() if split != TRAIN]
    near_N = np.zeros(len(empty_N), dtype=bool)
    if keeps_near_copies:
        console.warn("--keep-near-copies: rows may be near copies of dev rows, so dev scores may be too high")
    elif dev:
        near_N = ~empty_N & near_copies(joined(normal), joined(normalized_inputs(pa.concat_tables(dev))))
    else:
        console.warn(f"there are no rows of other splits than {TRAIN}, so near copies of dev rows cannot be left out")
    left_N = ~empty_N & ~near_N
    # Repeated texts would only weigh more in training, at the cost of a teacher's pass for each.
    chosen_N = left_N & _is_first(normalized_inputs(source.splits[TRAIN]), normal, left_N)
    counts = {"empty": empty_N.sum(), "near_dev": near_N.sum(), "repeated": (left_N & ~chosen_N).sum()}
    chosen = np.flatnonzero(chosen_N)
    if max_rows is not None and len(chosen) > max_rows:
        # Ordering by a hash draws a random subset that grows with max_rows: the rows of a smaller draw stay in a larger
        # one.
        chosen_N[chosen[np.argsort(hashed(seed, chosen), kind="stable")[max_rows:]]] = False
    return chosen_N, {name: int(count) for name, count in counts.items()}


def _is_first(own: list[pa.Array], normal: list[pa.Array], left_N: Bools) -> Bools:
    """Returns which remaining rows differ from all own rows of the task and from earlier remaining rows [N]."""
    keys = pa.concat_arrays([_keys(own), _keys(normal).filter(pa.array(left_N))])
    first = np.unique(keys.dictionary_encode().indices.to_numpy(), return_index=True)[1]
    is_first_N = np.zeros(len(left_N), dtype=bool)
    num_own = len(own[0])
    is_first_N[np.flatnonzero(left_N)[first[first >= num_own] - num_own]] = True
    return is_first_N


def _keys(normal: list[pa.Array]) -> pa.Array:
    """Returns the key of rows with the same text."""
    return pc.binary_join_element_wise(*map(letters, normal), " ")


def with_unlabelled(source: Source, rows: pa.Table) -> Source:
    """Returns a source with more rows without gold at the end of ``train``."""
    own = source.splits[TRAIN]
    columns = {
        "source_row": pa.array(np.arange(own.num_rows, own.num_rows + rows.num_rows)),
        "sentence1": rows.column("sentence1"),
        "sentence2": rows.column("sentence2"),
        "label": pa.nulls(rows.num_rows, own.schema.field("label").type),
        "score": pa.nulls(rows.num_rows, own.schema.field("score").type),
    }
    both = pa.concat_tables([own, pa.table(columns).select(own.column_names).cast(own.schema)]).combine_chunks()
    count = source.unlabelled + rows.num_rows
    return replace(source, splits=source.splits | {TRAIN: both}, unlabelled=count)


def neighbours(documents: Sequence[Sequence[str]]) -> Pairs:
    """Yields each sentence of a document with the next one."""
    pairs = [pair for sentences in documents for pair in itertools.pairwise(sentences)]
    return [first for first, _ in pairs], [second for _, second in pairs]


def similar(sentences: Sequence[str], seed: int) -> Pairs:
    """Returns each sentence with the most similar one, and every pair once, in random order within the pair.

    The similarity is Dice's coefficient with weights: twice the weight of common words by the weight of all words of
    both. The weight of a word is the logarithm of its inverse document frequency, and very frequent words are ignored.
    Equal sentences count as one. Sentences without such words are in no pair.
    """
    texts = normalized(pa.array(sentences, pa.string()))
    encoded = letters(texts).dictionary_encode().indices.to_numpy()
    place_N = np.sort(np.unique(encoded, return_index=True)[1])
    first_P, second_P = _most_similar(texts.take(pa.array(place_N)))
    swapped_P = (hashed(seed, first_P, second_P) & np.uint64(1)).astype(bool)
    one_P, other_P = np.where(swapped_P, second_P, first_P), np.where(swapped_P, first_P, second_P)
    return [sentences[k] for k in place_N[one_P]], [sentences[k] for k in place_N[other_P]]


def _most_similar(texts: pa.Array) -> tuple[Ints, Ints]:
    """Returns the sorted pairs of different texts, as their numbers with the lower one first."""
    words = words_of(texts)
    encoded = words.flat.dictionary_encode()
    key = np.unique(np.stack([words.text_W, encoded.indices.to_numpy()]), axis=1)  # each word counts once per text
    text_T, word_T = key
    found_V = np.bincount(word_T, minlength=len(encoded.dictionary))
    weight_V = np.round(WEIGHT_UNIT * np.log(len(texts) / found_V.clip(min=1))).astype(np.int64)
    total_N = np.bincount(text_T, weights=weight_V[word_T], minlength=len(texts)).astype(np.int64)
    counts_T = (found_V[word_T] > 1) & (found_V[word_T] <= MOST_SENTENCES)
    place = (text_T[counts_T], word_T[counts_T])
    shape = (len(texts), len(found_V))
    has_NV = csr_matrix((np.ones(len(place[0]), dtype=np.int64), place), shape=shape)
    weighted_NV = csr_matrix((weight_V[place[1]], place), shape=shape)
    pairs = [np.zeros((2, 0), dtype=np.int64)]
    for start in range(0, len(texts), SENTENCES_AT_ONCE):
        shared = (weighted_NV[start : start + SENTENCES_AT_ONCE] @ has_NV.T).tocoo()
        row_S, column_S = shared.row.astype(np.int64) + start, shared.col.astype(np.int64)
        other = (row_S != column_S) & (shared.data > 0)
        row_S, column_S, shared_S = row_S[other], column_S[other], shared.data[other]
        alike_S = 2 * shared_S / (total_N[row_S] + total_N[column_S])
        order = np.lexsort((column_S, -alike_S, row_S))  # among equally similar ones the first sentence wins
        row_S, column_S = row_S[order], column_S[order]
        best = np.flatnonzero(np.diff(row_S, prepend=-1))
        pairs.append(np.sort(np.stack([row_S[best], column_S[best]]), axis=0))
    first_P, second_P = np.unique(np.concatenate(pairs, axis=1), axis=1)
    return first_P, second_P
