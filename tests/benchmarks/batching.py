"""Length-sorted, token-budgeted batches against batches in the order of the rows, with a small random BERT."""

from collections.abc import Callable

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import BertConfig, BertForSequenceClassification

from pipeline.targets import Target
from pipeline.tokenization import Tokenized
from teacher.batching import token_budget_batches
from teacher.inference import forward, inference_mode, pad
from teacher.models import Teacher

ROWS, VOCABULARY, FIXED_LENGTH = 512, 30522, 128


def alternatives() -> dict[str, Callable[[], object]]:
    """One pass over the same rows: padded to 128, padded to the longest of a batch, sorted, sorted in bf16."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        num_labels=3,
    )
    model = BertForSequenceClassification(config).eval()
    target = Target(kind="classes", names=("a", "b", "c"))
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))  # noqa: S106
    teacher = Teacher("random", None, model, tokenizer, 0, False, target, target.names, (0, 1, 2))
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(17), 0.6, ROWS).astype(int), 3, FIXED_LENGTH)
    rows = [Tokenized(random.integers(1000, VOCABULARY, n).tolist(), [0] * n, [], []) for n in lengths]
    in_order = [list(range(k, min(k + 32, ROWS))) for k in range(0, ROWS, 32)]
    by_length = token_budget_batches([len(row.ids) for row in rows], 2048)

    def run(batches: list[list[int]], precision: str = "fp32") -> None:
        with inference_mode(torch.device("cpu"), precision):
            for batch in batches:
                forward(teacher, [rows[row] for row in batch])

    def run_fixed() -> None:
        with inference_mode(torch.device("cpu"), "fp32"):
            for batch in in_order:
                ids = pad([rows[row].ids for row in batch], 0)
                ids = torch.nn.functional.pad(ids, (0, FIXED_LENGTH - ids.shape[1]))
                model(input_ids=ids, attention_mask=(ids != 0).long())

    return {
        "fp32, all padded to 128": run_fixed,
        "fp32, in order, longest of 32": lambda: run(in_order),
        "fp32, sorted, 2048 tokens": lambda: run(by_length),
        "bf16, sorted, 2048 tokens": lambda: run(by_length, "bf16"),
    }
