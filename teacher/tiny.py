"""A tiny BERT with random weights, to be fine-tuned on the spot where no pretrained one is at hand."""

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers import BertConfig, BertModel, BertTokenizerFast
from transformers.utils import logging as transformers_logging

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def create_tiny_bert(
    folder: Path, sentences: Iterable[str], hidden_size: int = 64, num_layers: int = 2, seed: int = 0
) -> None:
    """Writes an untrained BERT encoder and a tokenizer that knows every word of the sentences.

    Args:
        folder: where to; loads with ``AutoModel`` and ``AutoTokenizer``.
        sentences: text with every word to know.
        hidden_size: width, a multiple of 32.
        num_layers: number of layers.
        seed: seed of the weights.
    """
    transformers_logging.disable_progress_bar()
    splitter = pre_tokenizers.BertPreTokenizer()
    words = {word for text in sentences for word, _ in splitter.pre_tokenize_str(text.lower())}
    vocabulary = {token: number for number, token in enumerate((*SPECIAL_TOKENS, *sorted(words)))}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    BertTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(folder)
