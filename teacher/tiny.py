"""Creates a tiny BERT with random weights, for fine-tuning where no pretrained model is available."""

from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast
from transformers.utils import logging as transformers_logging

from pipeline.text.tokenizer import SPLITTER, wordpiece


def create_tiny_bert(
    folder: Path, sentences: Iterable[str], hidden_size: int = 64, num_layers: int = 2, seed: int = 0
) -> None:
    """Writes an untrained BERT encoder and a tokenizer with every word of the sentences.

    The hidden size is a multiple of 32.
    """
    transformers_logging.disable_progress_bar()
    words = {word for text in sentences for word, _ in SPLITTER.pre_tokenize_str(text.lower())}
    tokenizer = wordpiece(sorted(words))
    BertTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(folder)
