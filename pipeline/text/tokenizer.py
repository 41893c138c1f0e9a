"""Reads tokenizers of the `tokenizers` library safely, compares and makes them, and finds their special tokens.

The library trusts the file ``tokenizer.json``, and a hostile one ends the process. A few kilobytes can require more
memory than exists: a chain of normalizers that each replace one letter by a hundred, or templates that add a special
token a million times. Patterns that backtrack forever are not a danger, because the library's regular expressions have
a limit.
"""

import base64
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from pipeline.arrays import Ragged
from pipeline.errors import DataError, DistillError, IntegrityError, unless_passing
from pipeline.files import read_small_file
from pipeline.untrusted import parse_json

MAX_TOKENS = 2**20
# Chained normalizers multiply: five that each turn one character into a hundred produce ten billion.
MAX_GROWTH = 1000
# Real templates add at most a handful of special tokens.
MAX_SPECIAL_TOKENS = 64


def size_problem(content: dict[str, Any]) -> str | None:
    """Returns an error message if the file has more tokens than any real tokenizer, else None."""
    model = content.get("model")
    parts = (model.get("vocab") if isinstance(model, dict) else None, content.get("added_tokens"))
    count = sum(len(part) for part in parts if isinstance(part, list | dict))
    return f"it has {count:,} tokens, more than {MAX_TOKENS:,}" if count > MAX_TOKENS else None


def growth_problem(content: dict[str, Any]) -> str | None:
    """Returns an error message if a few words could become more text or tokens than fit into memory, else None."""
    # Growth multiplies over a chain of normalizers, so each of them may be harmless alone.
    growth = math.prod(map(_growth, _parts(content.get("normalizer"))))
    if growth > MAX_GROWTH:
        return f"its normalizer may turn one character into {growth:,}"
    templates = [part for part in _parts(content.get("post_processor")) if "single" in part]
    if len(templates) > 1 or sum(map(_special_tokens, templates)) > MAX_SPECIAL_TOKENS:
        return f"its template puts more than {MAX_SPECIAL_TOKENS} special tokens around a text"
    return None


def vocabulary_problem(tokenizer: Tokenizer) -> str | None:
    """Returns an error message if the largest id far exceeds the number of tokens (tables have a row per id)."""
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    # Tables have a row per id, so one huge id would reserve gigabytes. Real vocabularies have few gaps.
    if not ids or max(ids) > 2 * len(ids) + 1000:
        return f"its ids go up to {max(ids, default=0):,}, but it has {len(ids):,} tokens"
    return None


@contextmanager
def reported(failure: str, kind: type[DistillError] = IntegrityError) -> Iterator[None]:
    """Turns exceptions of a library, including Rust's panics, into an error that begins with ``failure``.

    Args:
        failure: the failed action. The first line of the library's message follows.
        kind: the class of the error.
    """
    try:
        yield
    # Rust panics arrive as BaseException, so `except Exception` would miss them.
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            error_kind = unless_passing(kind, error) if kind is DataError else kind
            raise error_kind(f"{failure}: {reason}") from error
        raise


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """Yields the dictionaries in a part of a ``tokenizer.json``, starting with itself."""
    # A deeply nested file would exceed Python's recursion limit, so the walk keeps its own stack.
    left = [part]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
        left += part.values() if isinstance(part, dict) else part if isinstance(part, list) else []


def _growth(part: dict[str, Any]) -> int:
    """Returns the most characters that a normalizer may make of a single one, or of an empty text."""
    added = [part[name] for name in ("content", "prepend") if isinstance(part.get(name), str)]
    return 1 + sum(map(len, added)) + _longest_mapping(part.get("precompiled_charsmap"))


def _longest_mapping(charsmap: Any) -> int:
    """Returns the size of the longest text in SentencePiece's table: a trie, then texts that end in a zero."""
    if not isinstance(charsmap, str):
        return 0
    try:
        table = base64.b64decode(charsmap)
    except ValueError:
        # The library refuses such a table when it reads the file.
        return 0
    trie = 4 + int.from_bytes(table[:4], "little")
    return max(map(len, table[trie:].split(b"\0")))


def _special_tokens(template: dict[str, Any]) -> int:
    """Returns the special tokens of a template for one text and for two, with all their ids."""
    templates = (template.get(name) for name in ("single", "pair"))
    pieces = sum(len(pieces) for pieces in templates if isinstance(pieces, list | str))
    ids = [part["ids"] for part in _parts(template.get("special_tokens")) if isinstance(part.get("ids"), list)]
    return pieces * max(map(len, ids), default=1)


MAX_TOKENIZER_BYTES, MAX_COMMAS = 64 * 2**20, 2**21
FAILURE = "the tokenizer fails on a text"
PAD_TOKENS = ("[PAD]", "<pad>")
# If more than half of the tokens are unknown, the tokenizer almost surely belongs to another language.
MOST_UNKNOWN = 0.5
ROWS = 256
BERT_UNCASED = Path(__file__).with_name("bert-uncased-vocabulary.txt")  # of Google's BERT, Apache License 2.0
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPLITTER = pre_tokenizers.BertPreTokenizer()


@dataclass(frozen=True)
class Tokenized:
    """One input in tokens.

    Attributes:
        ids: all ids that the teacher reads, including special tokens.
        type_ids: 0 for the first sentence, 1 for the second, as long as ``ids``.
        ids1: only the first sentence's ids, truncated like the teacher's input.
        ids2: only the second sentence's ids. Empty for single sentences.
    """

    ids: list[int]
    type_ids: list[int]
    ids1: list[int]
    ids2: list[int]


def read_tokenizer_json(path: Path, sha256: str) -> str:
    """Returns the text of a ``tokenizer.json`` with a known hash.

    Raises:
        IntegrityError: if it is missing, damaged, or another file.
    """
    try:
        text = read_small_file(path, MAX_TOKENIZER_BYTES).decode("utf-8")
        # Parsing more values takes half a minute and over a gigabyte. Counting commas takes milliseconds.
        if text.count(",") > MAX_COMMAS:
            raise ValueError(f"more than {MAX_COMMAS:,} values")
        content = parse_json(text)
        actual = tokenizer_sha256(text)
    except (FileNotFoundError, ValueError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"{path}: not a readable tokenizer.json: {error}") from error
    # Ids are meaningless with another vocabulary, even if the file is a valid tokenizer.
    if actual != sha256:
        raise IntegrityError(f"{path}: not the tokenizer of the ids. The file was changed")
    # These checks precede the library, which ends the whole process on a hostile file.
    problem = size_problem(content) or growth_problem(content)
    if problem:
        raise IntegrityError(f"{path}: {problem}. It was not used")
    return text


def is_tokenizer(path: Path, sha256: str) -> bool:
    """Whether a file is the tokenizer with this hash. See `read_tokenizer_json`."""
    try:
        read_tokenizer_json(path, sha256)
    except IntegrityError:
        return False
    return True


def load_tokenizer(path: Path, sha256: str) -> Tokenizer:
    """Returns the tokenizer of a ``tokenizer.json`` with a known hash.

    Raises:
        IntegrityError: if it is missing, damaged, or another file.
    """
    text = read_tokenizer_json(path, sha256)
    with reported(f"{path}: this release of `tokenizers` cannot read it"):
        tokenizer = Tokenizer.from_str(text)
    problem = vocabulary_problem(tokenizer)
    if problem:
        raise IntegrityError(f"{path}: {problem}. It was not used")
    return tokenizer


def tokenizer_sha256(tokenizer_json: str) -> str:
    """Returns a hash of everything in a ``tokenizer.json`` that determines the ids, except truncation and padding.

    It is computed from the stored text, not from the library's form of it, so that it does not depend on the release.
    """
    content = json.loads(tokenizer_json)
    # Truncation and padding change with every use, and the project sets both itself.
    decisive = {key: value for key, value in content.items() if key not in {"truncation", "padding"}}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def pad_id(tokenizer: Tokenizer) -> int:
    """Returns the id of the padding token, or one past the vocabulary if the tokenizer has no such token."""
    ids = (tokenizer.token_to_id(token) for token in PAD_TOKENS)
    # GPT-like tokenizers have no padding token, so students add a row past the vocabulary.
    return next((i for i in ids if i is not None), vocabulary_size(tokenizer))


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Returns V, one more than the largest id, including added tokens."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def example(tokenizer: Tokenizer, is_pair: bool) -> Encoding:
    """Returns the encoding of one short word or of a pair, which shows where a tokenizer puts special tokens.

    Args:
        tokenizer: its truncation and padding settings are removed.
        is_pair: whether to encode a pair.
    """
    # Padding would appear among the special tokens that this example is meant to show.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    with reported(FAILURE):
        return tokenizer.encode("a", "a") if is_pair else tokenizer.encode("a")


def frame_ids(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Returns the special tokens before and after a single sentence. BERT's are ``[CLS]`` and ``[SEP]``.

    Args:
        tokenizer: its truncation and padding settings are removed.
    """
    encoding = example(tokenizer, is_pair=False)
    places = [place for place, sentence in enumerate(encoding.sequence_ids) if sentence is not None]
    first, last = (places[0], places[-1]) if places else (len(encoding.ids), len(encoding.ids))
    return encoding.ids[:first], encoding.ids[last + 1 :]


def special_ids(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Returns the special tokens before, between and after the two sentences of a pair, or None without tokens between.

    BERT's are ``[CLS]``, ``[SEP]`` and ``[SEP]``.

    Args:
        tokenizer: its truncation and padding settings are removed.
    """
    encoding = example(tokenizer, is_pair=True)
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    part = 0
    for token, sentence in zip(encoding.ids, encoding.sequence_ids, strict=True):
        if sentence is None:
            parts[part].append(token)
        else:
            part = sentence + 1
    before, between, after = map(tuple, parts)
    return (before, between, after) if between else None


def tokenize(
    tokenizer: Tokenizer, sentences1: Sequence[str], sentences2: Sequence[str] | None, max_seq_length: int
) -> list[Tokenized]:
    """Returns single sentences or pairs in tokens, by the library alone.

    `pipeline.text.text_to_ids` is a faster equivalent.

    The longest sentence of a pair is truncated first. Special tokens count.

    Args:
        tokenizer: its truncation and padding settings are replaced.
        sentences1: the (first) sentences.
        sentences2: the second sentences, or None.
        max_seq_length: maximum number of tokens per input.
    """
    tokenizer.no_padding()
    inputs = list(sentences1) if sentences2 is None else list(zip(sentences1, sentences2, strict=True))
    with reported(FAILURE):
        tokenizer.enable_truncation(max_seq_length)
        return [_tokenized(encoding) for encoding in tokenizer.encode_batch_fast(inputs)]


def _tokenized(encoding: Encoding) -> Tokenized:
    ids: list[int] = encoding.ids
    sentence_L: list[int | None] = encoding.sequence_ids
    parts = []
    for sentence in (0, 1):
        count = sentence_L.count(sentence)
        start = sentence_L.index(sentence) if count else 0
        # The tokens of one sentence are contiguous, so start and count describe them.
        parts.append(ids[start : start + count])
    return Tokenized(ids, encoding.type_ids, *parts)


@dataclass(frozen=True)
class Piece:
    """Special tokens of every input, or one of its sentences."""

    sentence: int | None
    ids: list[int]
    type_id: int


def frame_of(tokenizer: Tokenizer, is_pair: bool) -> list[Piece] | None:
    """Returns the pieces of an input, read from an example, or None if it lacks a sentence or any special token.

    Without special tokens around sentences, an empty sentence changes the type of the other one.
    """
    encoding = example(tokenizer, is_pair)
    tokens = zip(encoding.sequence_ids, encoding.type_ids, encoding.ids, strict=True)
    pieces = [
        Piece(sentence, [id_ for *_, id_ in group], type_id)
        for (sentence, type_id), group in itertools.groupby(tokens, key=lambda token: token[:2])
    ]
    sentences = sorted(piece.sentence for piece in pieces if piece.sentence is not None)
    return pieces if sentences == [0, 1][: 1 + is_pair] and len(pieces) > len(sentences) else None


def framed(frame: list[Piece], sentences: tuple[list[int], ...]) -> Tokenized:
    """Returns an input made from the ids of its one or two sentences."""
    ids: list[int] = []
    type_ids: list[int] = []
    for piece in frame:
        part = piece.ids if piece.sentence is None else sentences[piece.sentence]
        ids += part
        type_ids += [piece.type_id] * len(part)
    return Tokenized(ids, type_ids, sentences[0], sentences[1] if len(sentences) == 2 else [])


def require_known(tokenizer: Tokenizer, inputs: Sequence[Tokenized], context: str) -> None:
    """Raises DataError if most tokens of the first rows are the token for unknown words.

    Args:
        tokenizer: the tokenizer of the rows.
        inputs: the rows.
        context: the owner of the tokenizer, for the message.
    """
    require_known_ids(tokenizer, Ragged.of([[*row.ids1, *row.ids2] for row in inputs[:ROWS]]), context)


def require_known_ids(tokenizer: Tokenizer, ids: Ragged, context: str) -> None:
    """Raises DataError like `require_known`, for ids without special tokens. All rows are checked."""
    unknown = unknown_id(tokenizer)
    share = 0.0 if unknown is None else float((ids.flat == unknown).sum()) / max(1, len(ids.flat))
    if share > MOST_UNKNOWN:
        raise DataError(
            f"{context}: its tokenizer lacks {share:.0%} of the tokens of {len(ids):,} checked rows. Check its "
            "language, and that it was saved with its vocabulary file."
        )


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Returns the id of the token for unknown words, or None if there is none, as with byte-level tokenizers."""
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    # Unigram models store the id of the unknown token and the other models its text.
    if model["type"] == "Unigram":
        return None if model["unk_id"] is None else int(model["unk_id"])
    token = model.get("unk_token")
    return None if token is None else tokenizer.token_to_id(token)


def wordpiece(tokens: Iterable[str], strip_accents: bool | None = None, is_cased: bool = False) -> Tokenizer:
    """Returns a WordPiece tokenizer of the given tokens, and before them the special ones that are missing.

    Args:
        tokens: words, and ``##`` pieces of words.
        strip_accents: whether accents are removed. Default: as in BERT, of tokens in lower case.
        is_cased: whether upper case is kept.
    """
    tokens = dict.fromkeys(tokens)
    # Ids are the positions of the tokens. BERT's own vocabulary has the special ones somewhere in it.
    missing = [token for token in SPECIAL_TOKENS if token not in tokens]
    ids = {token: number for number, token in enumerate((*missing, *tokens))}
    tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=strip_accents, lowercase=not is_cased)
    tokenizer.pre_tokenizer = SPLITTER
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def bert_uncased() -> Tokenizer:
    """Returns BERT's uncased tokenizer. The package has vectors for its vocabulary."""
    return wordpiece(BERT_UNCASED.read_text(encoding="utf-8").split())
