"""A tokenizer with made-up words, for students that have none: of BERT's kind, and as large as its."""

from itertools import chain, islice, product

from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SYLLABLES = tuple(f"{consonant}{vowel}" for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou")


def made_up_tokenizer(size: int) -> Tokenizer:
    """A WordPiece tokenizer that knows so many tokens; its words have two syllables or three."""
    words = chain(product(SYLLABLES, repeat=2), product(SYLLABLES, repeat=3))
    tokens = chain(SPECIAL_TOKENS, ".", ("".join(word) for word in words))
    ids = {token: number for number, token in enumerate(islice(tokens, size))}
    tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer
