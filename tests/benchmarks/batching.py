"""How a teacher's rows are packed into batches, and in which arithmetic; with ``--model`` also how far bf16 is off.

``make bench`` runs it with a random model of MiniLM-L6's shape; ids are random, lengths those of ordinary sentences.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

from distill.apps.timing import interleaved
from pipeline import console
from pipeline.arrays import Floats
from pipeline.tasks.target import Target
from pipeline.text.tokenizer import Tokenized
from teacher.models.batches import CPU_TOKENS_PER_BATCH, collate, token_budget_batches
from teacher.models.classifier import Teacher, forward
from teacher.models.loaded import LoadedTokenizer, inference_mode, keep_head_in_float32
from tests.benchmarks.ratios import ratios

ROWS, VOCABULARY, FIXED_LENGTH, FIXED_ROWS, CLASSES = 768, 30522, 128, 32, 3
DEVIATION = 2.5  # of the logits whose divergence is printed
Batches = list[list[int]]


def alternatives() -> dict[str, Callable[[], object]]:
    """One pass of a random model over the same rows."""
    return dict(runs(_random_model()))


def runs(model: Any) -> dict[str, Callable[[], Floats]]:
    """One pass over the same rows: padded to 128, sorted and cut greedily, packed; logits in fp32 and bf16."""
    teacher, rows = _teacher(model), _rows()
    lengths = [len(row.ids) for row in rows]
    in_order = [list(range(k, min(k + FIXED_ROWS, ROWS))) for k in range(0, ROWS, FIXED_ROWS)]
    packed = token_budget_batches(lengths, CPU_TOKENS_PER_BATCH)

    def fixed(batch: list[int]) -> torch.Tensor:
        inputs = collate(teacher, [rows[row] for row in batch]).items()
        logits: torch.Tensor = teacher.model(
            **{name: functional.pad(ids, (0, FIXED_LENGTH - ids.shape[1])) for name, ids in inputs}
        ).logits
        return logits

    def own(batch: list[int]) -> torch.Tensor:
        return forward(teacher, [rows[row] for row in batch])

    def over(batches: Batches, ask: Callable[[list[int]], torch.Tensor], precision: str) -> Callable[[], Floats]:
        def run() -> Floats:
            logits_NC = np.empty((ROWS, CLASSES), dtype=np.float32)
            with inference_mode(torch.device("cpu"), precision):
                for batch in batches:
                    logits_NC[batch] = ask(batch).numpy()
            return logits_NC

        return run

    return {
        f"fp32, padded to {FIXED_LENGTH}": over(in_order, fixed, "fp32"),
        f"fp32, longest of {FIXED_ROWS}": over(in_order, own, "fp32"),
        "fp32, sorted, cut greedily": over(_greedy(lengths), own, "fp32"),
        "fp32, packed": over(packed, own, "fp32"),
        "bf16, packed": over(packed, own, "bf16"),
    }


def divergence(p_NC: Floats, q_NC: Floats) -> float:
    """Mean KL divergence of the rows' distributions, nats."""
    p, q = (torch.log_softmax(torch.from_numpy(logits).double(), dim=1) for logits in (p_NC, q_NC))
    return float(functional.kl_div(q, p, reduction="batchmean", log_target=True))


def _rows() -> list[Tokenized]:
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(17), 0.6, ROWS).astype(int), 3, FIXED_LENGTH)
    return [Tokenized(random.integers(1000, VOCABULARY, n).tolist(), [0] * n, [], []) for n in lengths]


def _greedy(lengths: list[int]) -> Batches:
    batches: Batches = []
    for row in np.argsort([-length for length in lengths], kind="stable").tolist():
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > CPU_TOKENS_PER_BATCH:
            batches.append([])
        batches[-1].append(row)
    return batches


def _random_model() -> Any:
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    return BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, num_labels=CLASSES, **shape))


def _teacher(model: Any) -> Teacher:
    keep_head_in_float32(model.eval())
    target = Target(kind="classes", names=tuple("abc"))
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))  # noqa: S106
    loaded = LoadedTokenizer(tokenizer, 0, None, False, (), ([], []))
    return Teacher("benchmark", None, model, loaded, target, target.names, (0, 1, 2))


def main() -> None:
    """Times a real model with a random head, and returns the divergence from its first alternative."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="hub id or folder of an encoder")
    model = AutoModelForSequenceClassification.from_pretrained(parser.parse_args().model, num_labels=CLASSES)
    variants = runs(model)
    first = next(iter(variants.values()))
    with torch.no_grad():
        model.classifier.weight *= DEVIATION / first().std(axis=0).mean()
        model.classifier.bias -= torch.from_numpy(first().mean(axis=0))
    exact = first()
    timed = ratios(interleaved(dict(variants)))
    rows = [[*row, divergence(exact, run())] for row, run in zip(timed, variants.values(), strict=True)]
    console.print_table(["variant", "median ms", "x first", "KL"], rows, title=f"{ROWS} rows")


if __name__ == "__main__":
    main()
