"""Dumping a masked LM against its bare forward pass on the same batches, with a small random BERT."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import BertConfig, BertForMaskedLM

from pipeline.arrays import Ragged
from pipeline.sets.codecs import Codec
from pipeline.sets.codecs.distributions import DenseCodec, HiddenCodec, SampledCodec, TopKCodec
from pipeline.sets.kinds.masked_words import MaskedRows, no_statistics, tokens_table
from teacher.corpus.sequences import MaskingPlan, Sequences, mask, uniform_weights
from teacher.dumps.masked_words import encoded_predictions
from teacher.models.batches import token_budget_batches, tokens_per_batch
from teacher.models.loaded import inference_mode
from teacher.models.masked_lm import MaskedLm, MlmTokenizer, predict_masked

ROWS, VOCABULARY, HIDDEN, MAX_TOKENS = 512, 30522, 384, 2048
MINILM = BertConfig(hidden_size=HIDDEN, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
CPU = torch.device("cpu")


def alternatives(
    device: torch.device = CPU, shape: BertConfig = MINILM, num_rows: int | None = None
) -> dict[str, Callable[[], object]]:
    """The same masked rows in bf16: the plain model, the model decoding masked positions alone, and each codec."""
    lm, rows = _masked_lm(device, shape), masked_rows(num_rows or ROWS)
    batches = token_budget_batches((rows.ids.lengths + 2).tolist(), _max_tokens(device))

    def plain() -> None:
        with inference_mode(device, "bf16"):
            for batch in batches:
                framed = Ragged.of([[101, *rows.ids[row].tolist(), 102] for row in batch])
                ids_BL = torch.from_numpy(framed.padded(range(len(batch)), 0)).to(device)
                lm.model(input_ids=ids_BL, attention_mask=(ids_BL != 0).long())

    def chosen_only() -> None:
        with inference_mode(device, "bf16"):
            for batch in batches:
                predict_masked(lm, rows.ids, rows.positions, batch)

    return {
        "plain forward, every position decoded": plain,
        "forward, masked positions decoded": chosen_only,
        **{f"dump, {codec.name}": partial(_table, lm, codec, rows) for codec in codecs(shape.hidden_size)},
    }


def dense_table(device: torch.device, shape: BertConfig, num_rows: int) -> pa.Table:
    """The rows of a dump with whole distributions."""
    *_, dense = codecs(shape.hidden_size)
    return _table(_masked_lm(device, shape), dense, masked_rows(num_rows))


def num_positions(num_rows: int) -> int:
    """The number of masked positions."""
    return len(masked_rows(num_rows).positions.flat)


def codecs(hidden_size: int) -> tuple[Codec, ...]:
    """Every codec, for a teacher of this width."""
    return (
        SampledCodec(vocabulary_size=VOCABULARY, num_samples=50, temperature=1.0),
        TopKCodec(vocabulary_size=VOCABULARY, top_k=50),
        HiddenCodec(vocabulary_size=VOCABULARY, hidden_size=hidden_size),
        DenseCodec(vocabulary_size=VOCABULARY),
    )


def masked_rows(num_rows: int) -> MaskedRows:
    """Sentences of random words, 26 in the median."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(26), 0.5, num_rows).astype(int), 10, 126)
    ids = Ragged.of([random.integers(1000, VOCABULARY, n).tolist() for n in lengths])
    plan = MaskingPlan(42, 0.15, 1, 103, uniform_weights(VOCABULARY, [0]))
    masked = mask(Sequences(np.arange(num_rows), np.zeros(num_rows, dtype=np.int64), ids), plan)
    return MaskedRows(masked.sequence_R, 0 * masked.copy_R, masked.copy_R, masked.ids, masked.positions, masked.targets)


def _table(lm: MaskedLm, codec: Codec, rows: MaskedRows) -> pa.Table:
    max_tokens = _max_tokens(lm.model.device)
    with inference_mode(lm.model.device, "bf16"):
        return tokens_table(codec, "train", rows, encoded_predictions(lm, codec, rows, 42, max_tokens, no_statistics()))


def _masked_lm(device: torch.device, shape: BertConfig) -> MaskedLm:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))  # noqa: S106
    tokens = MlmTokenizer(tokenizer, 0, 103, True, (0,), ([101], [102]))
    return MaskedLm("random", None, BertForMaskedLM(shape).eval().to(device), tokens)


def _max_tokens(device: torch.device) -> int:
    return tokens_per_batch(device, MAX_TOKENS if device.type == "cpu" else None)
