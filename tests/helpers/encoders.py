"""Tiny random encoders of every family in docs/teacher.md, with the tokenizers of their kinds."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram
from tokenizers.trainers import BpeTrainer, UnigramTrainer

from pipeline.text.tokenizer import SPLITTER, wordpiece

POSITIONS = 64
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
BERTS, ROBERTAS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ALBERTS = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
DEBERTA_V3 = {
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 8,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "pooler_hidden_size": SHAPE["hidden_size"],
}
Texts = Sequence[str]


class Family(NamedTuple):
    """How the models of a family are made.

    Attributes:
        config: its class in transformers.
        tokenizer: makes its transformers tokenizer, whose vocabulary covers some texts.
        settings: what its models have besides `SHAPE`.
        offset: positions that its models number but never read.
    """

    config: Any
    tokenizer: Callable[[Texts], Any]
    settings: dict[str, Any] = {}  # noqa: RUF012
    offset: int = 0


def _word_pieces(texts: Texts) -> dict[str, int]:
    words = sorted({word for text in texts for word, _ in SPLITTER.pre_tokenize_str(text.lower())})
    letters = [piece for letter in "abcdefghijklmnopqrstuvwxyz" for piece in (letter, f"##{letter}")]
    vocabulary: dict[str, int] = wordpiece([*letters, *words]).get_vocab()
    return vocabulary


def _byte_pairs(texts: Texts, special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _sentence_pieces(texts: Texts, special: list[str]) -> list[tuple[str, float]]:
    """The pieces of a unigram model, as SentencePiece makes it, and their scores."""
    tokenizer = Tokenizer(Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    unknown = next(token for token in special if "unk" in token.lower())
    trainer = UnigramTrainer(vocab_size=150, special_tokens=special, unk_token=unknown, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def _bert(texts: Texts) -> Any:
    return transformers.BertTokenizer(vocab=_word_pieces(texts))


def _distilbert(texts: Texts) -> Any:
    return transformers.DistilBertTokenizer(vocab=_word_pieces(texts))


def _roberta(texts: Texts) -> Any:
    model = json.loads(_byte_pairs(texts, ROBERTAS).to_str())["model"]
    return transformers.RobertaTokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])


def _xlm_r(texts: Texts) -> Any:
    return transformers.XLMRobertaTokenizer(vocab=_sentence_pieces(texts, ROBERTAS))


def _albert(texts: Texts) -> Any:
    return transformers.AlbertTokenizer(vocab=_sentence_pieces(texts, ALBERTS))


def _deberta(texts: Texts) -> Any:
    return transformers.DebertaV2Tokenizer(vocab=_sentence_pieces(texts, BERTS))


def _modernbert(texts: Texts) -> Any:
    tokenizer = _byte_pairs(texts, BERTS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **dict(zip(names, BERTS, strict=True)),
        model_input_names=["input_ids", "attention_mask"],
    )


FAMILIES = {
    "BERT": Family(transformers.BertConfig, _bert),
    "MiniLM": Family(transformers.BertConfig, _bert, {"num_hidden_layers": 1, "num_attention_heads": 4}),
    "DistilBERT": Family(transformers.DistilBertConfig, _distilbert),
    "ELECTRA": Family(transformers.ElectraConfig, _bert, {"embedding_size": 8}),
    "RoBERTa": Family(transformers.RobertaConfig, _roberta, {"type_vocab_size": 1}, offset=2),
    "XLM-R": Family(transformers.XLMRobertaConfig, _xlm_r, {"type_vocab_size": 1}, offset=2),
    "ALBERT": Family(transformers.AlbertConfig, _albert, {"embedding_size": 8}),
    "DeBERTa-v3": Family(transformers.DebertaV2Config, _deberta, DEBERTA_V3),
    "ModernBERT": Family(transformers.ModernBertConfig, _modernbert),
}


def write_encoder(name: str, auto_model: Any, texts: Texts, folder: Path, **settings: Any) -> Any:
    """Writes a random model of a family with its tokenizer; returns the model.

    Args:
        name: of the family.
        auto_model: the transformers class that makes it, such as ``AutoModelForSequenceClassification``.
        texts: what the tokenizer's vocabulary is made from.
        folder: where to.
        settings: other values of its config.
    """
    family = FAMILIES[name]
    tokenizer = family.tokenizer(texts)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": POSITIONS}
    model = auto_model.from_config(family.config(**SHAPE | shape | family.settings | settings))
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 8 if weight.ndim == 2 else 1  # so that answers differ from text to text
    model.save_pretrained(folder)
    return model.eval()
