"""The tokens that a student of an imported teacher reads, which nobody but the user can know.

Without a tokenizer of the user's own, one is made of the training texts: the same for the same texts, offline, in any
language that puts spaces between words, or is written in Chinese characters.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer

from pipeline.errors import ConfigError
from pipeline.files import read_small_file
from pipeline.sets.record import TOKENIZER_FILE
from pipeline.text.tokenizer import MAX_TOKENIZER_BYTES, SPLITTER, load_tokenizer, tokenizer_sha256, wordpiece

MAX_WORDS, LEAST_COUNT = 30_000, 2


def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer of the user's choice, checked as those of sets are.

    Args:
        path: a ``tokenizer.json``, or a folder with one.

    Raises:
        ConfigError: if there is none.
        IntegrityError: if it cannot be read, or would fill the memory.
    """
    file = path / TOKENIZER_FILE if path.is_dir() else path
    try:
        sha256 = tokenizer_sha256(read_small_file(file, MAX_TOKENIZER_BYTES).decode("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"--tokenizer {path}: there is no {TOKENIZER_FILE}") from error
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"--tokenizer {path}: not a readable {TOKENIZER_FILE}: {error}") from error
    return load_tokenizer(file, sha256)


def tokenizer_of_texts(texts: Iterable[str]) -> Tokenizer:
    """A WordPiece of the words that the texts hold twice, lower case, and of letters for all other words.

    Not what `tokenizers` would train: that differs from run to run.
    """
    normalizer = wordpiece((), strip_accents=False).normalizer
    counts = Counter(word for text in texts for word, _ in SPLITTER.pre_tokenize_str(normalizer.normalize_str(text)))
    letters = sorted(set(chain.from_iterable(counts)))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    words = [word for word in ranked if counts[word] >= LEAST_COUNT][:MAX_WORDS]
    return wordpiece([*letters, *(f"##{letter}" for letter in letters), *words], strip_accents=False)
