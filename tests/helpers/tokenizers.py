"""Tokenizers of every kind over a few tokens, and texts that are hard for them."""

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from pipeline.text.tokenizer import tokenize
from pipeline.text.vocabulary import learned_vocabulary

PIECES = ["a", "b", "A", "é", "É", "the", "there", "ab", "“", "中", "İ", "i", "\u0307", "ß", "д", "]"]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES, *("##" + piece for piece in PIECES), *"[!.#@0-"]


def bert(
    prefix: str = "##", unknown: str = "[UNK]", most: int = 100, more: Sequence[str] = (), **flags: Any
) -> Tokenizer:
    """BERT's kind of tokenizer; token k of TOKENS has the id 2 k, token k of ``more`` 2 k + 1 if it is a new one."""
    vocabulary = {token.replace("##", prefix).replace("[UNK]", unknown): 2 * k for k, token in enumerate(TOKENS)}
    vocabulary = {token: 2 * k + 1 for k, token in enumerate(more)} | vocabulary
    model = WordPiece(vocabulary, unk_token=unknown, continuing_subword_prefix=prefix, max_input_chars_per_word=most)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(**flags)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 4), ("[SEP]", 6)]
    )
    tokenizer.add_special_tokens(["[PAD]", unknown, "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


def with_added(*tokens: AddedToken) -> Tokenizer:
    # The library numbers new tokens by the size of the vocabulary, which is here the id of another one.
    tokenizer = bert(more=[token.content for token in tokens])
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def with_processor(processor: processors.BertProcessing | None) -> Tokenizer:
    tokenizer = bert()
    tokenizer.post_processor = processor
    return tokenizer


VARIANTS: dict[str, Callable[[], Tokenizer]] = {
    "uncased": bert,
    "cased": lambda: bert(lowercase=False),
    "cased without accents": lambda: bert(lowercase=False, strip_accents=True),
    "uncased with accents": lambda: bert(strip_accents=False),
    "not cleaned": lambda: bert(clean_text=False),
    "Chinese in words": lambda: bert(handle_chinese_chars=False),
    "another unknown": lambda: bert(unknown="<unk>"),
    "another prefix": lambda: bert(prefix="a"),
    "no prefix": lambda: bert(prefix=""),
    "short words": lambda: bert(most=2),
    "no words": lambda: bert(most=0),
    "added": lambda: with_added(AddedToken("the a", normalized=False), AddedToken("@", normalized=False, rstrip=True)),
    "added single words": lambda: with_added(AddedToken("ab", normalized=False, single_word=True, lstrip=True)),
    "added normal": lambda: with_added(AddedToken("#THE", normalized=True), AddedToken("É!", normalized=True)),
    "added space": lambda: with_added(AddedToken(" a", normalized=True)),
    "BertProcessing": lambda: with_processor(processors.BertProcessing(("[SEP]", 6), ("[CLS]", 4))),
    "no processor": lambda: with_processor(None),
    "learned": lambda: learned_vocabulary([*PIECES, ODD, "the there abab"] * 2, len(TOKENS)).tokenizer,
}


ODD = "ÅåÉⅧﬁſΣς\u00ad\u037e\u1fef\u200b\u2028\u3000\ufffd\U0001f600"
ascii_text = st.text(st.characters(max_codepoint=127), max_size=12)
texts = st.lists(
    st.one_of(
        st.sampled_from([*TOKENS, *ODD, "\r\n", "ab" * 60, "#the"]),
        ascii_text,
        st.text(st.characters(max_codepoint=0x3100, exclude_categories=["Cs"]), max_size=5),
        st.text(max_size=5),
    ),
    max_size=8,
).map("".join)


def expected(tokenizer: Tokenizer, first: list[str], second: list[str] | None, length: int) -> list[list[list[int]]]:
    rows = tokenize(tokenizer, first, second, length)
    return [[list(row.ids1) for row in rows], [list(row.ids2) for row in rows]][: 1 if second is None else 2]
