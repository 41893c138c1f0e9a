"""Parts of speech, by whatever tagger fits ``Tagger``."""

from collections.abc import Callable, Sequence
from importlib.metadata import version

from pipeline.errors import MissingDependencyError

Tagger = Callable[[Sequence[str]], list[str]]
"""The words of a sentence to their tags, one each."""

STRAIGHT_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")


def pattern_tagger() -> tuple[str, Tagger]:
    """TextBlob's PatternTagger (Penn Treebank tags), which needs no downloads, and its name and version.

    Raises:
        MissingDependencyError: if it is not installed.
    """
    try:
        from textblob.en.taggers import PatternTagger
    except ImportError as error:
        message = "parts of speech need textblob: pip install 'distill-offline[teacher]'; or use --pos-probability 0"
        raise MissingDependencyError(message) from error
    tagger = PatternTagger()

    def tags(words: Sequence[str]) -> list[str]:
        if not words:
            return []
        # text and not words, as its own splitting needs data that must be downloaded
        text = " ".join(words).translate(STRAIGHT_QUOTES)
        word_tags = [tag for _, tag in tagger.tag(text, tokenize=False)]
        assert len(word_tags) == len(words), f"{len(word_tags)} tags for the {len(words)} words of {text!r}"
        return word_tags

    return f"textblob {version('textblob')} PatternTagger", tags
