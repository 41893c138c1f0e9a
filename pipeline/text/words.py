"""Tokenizers of BERT's kind with a vocabulary of one's own."""

from collections.abc import Iterable

from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPLITTER = pre_tokenizers.BertPreTokenizer()


def wordpiece(tokens: Iterable[str], strip_accents: bool | None = None) -> Tokenizer:
    """A WordPiece that knows the special tokens and these, in lower case.

    Args:
        tokens: words, and ``##`` pieces of words.
        strip_accents: whether accents are left out, as BERT's are by default.
    """
    ids = {token: number for number, token in enumerate(dict.fromkeys((*SPECIAL_TOKENS, *tokens)))}
    tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=strip_accents)
    tokenizer.pre_tokenizer = SPLITTER
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer
