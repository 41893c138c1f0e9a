"""Candidates of TinyBERT's augmentation: one word at a time, as published, against batches; a small random BERT."""

from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

from pipeline.arrays import Ragged
from teacher.augment.candidates import propose, whole_words
from teacher.models.loaded import inference_mode
from teacher.models.masked_lm import load_masked_lm, predict_masked
from teacher.tiny import create_tiny_bert

SENTENCES, VOCABULARY, LONGEST = 64, 30522, 128


def alternatives() -> dict[str, Callable[[], object]]:
    """The same queries of the same sentences in bf16, one a forward pass and in batches."""
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("bcdfghjklmnp"), 6)) for _ in range(VOCABULARY - 5)]
    folder = Path(mkdtemp())
    create_tiny_bert(folder, [" ".join(words)], hidden_size=32, num_layers=1)
    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    BertForMaskedLM(config).save_pretrained(folder)
    lm = load_masked_lm(str(folder), None, LONGEST)
    known = whole_words(lm)
    lengths = np.clip(random.lognormal(np.log(16), 0.5, SENTENCES).astype(int), 3, 60)
    sentences = [" ".join(random.choice(words, n)) for n in lengths]

    def batched() -> object:
        with inference_mode(torch.device("cpu"), "bf16"):
            return propose(lm, known, None, sentences, 15, LONGEST)

    def one_by_one() -> None:
        with inference_mode(torch.device("cpu"), "bf16"):
            for encoding in lm.tokens.tokenizer.encode_batch(sentences, add_special_tokens=False):
                for place in range(len(encoding.ids)):
                    masked = [*encoding.ids[:place], lm.tokens.mask_id, *encoding.ids[place + 1 :]]
                    row = Ragged.of([[*masked, 3, *encoding.ids]])
                    second = np.array([len(masked) + 1])
                    predict_masked(lm, row, Ragged.of([[place]]), [0], second_starts=second)[1].topk(15)

    return {"one word a forward pass": one_by_one, "batches of words and sentences": batched}
