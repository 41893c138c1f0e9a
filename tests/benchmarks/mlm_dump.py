"""Dumping a masked LM against its bare forward pass on the same batches, with a small random BERT."""

from collections.abc import Callable

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import BertConfig, BertForMaskedLM

from pipeline.arrays import Ragged
from pipeline.sets.codecs import Codec
from pipeline.sets.codecs.dense import DenseCodec
from pipeline.sets.codecs.hidden import HiddenCodec
from pipeline.sets.codecs.sampled import SampledCodec
from pipeline.sets.codecs.topk import TopKCodec
from pipeline.sets.kinds.masked_words import MaskedRows, no_statistics, tokens_table
from teacher.corpus.masking import MaskingPlan, mask, uniform_weights
from teacher.corpus.sequences import Sequences
from teacher.kinds.masked_words import encoded_predictions
from teacher.models.batches import token_budget_batches
from teacher.models.loaded import inference_mode
from teacher.models.masked_lm import MaskedLm, MlmTokenizer, predict_masked

ROWS, VOCABULARY, HIDDEN, MAX_TOKENS = 512, 30522, 384, 2048
CODECS = (
    SampledCodec(vocabulary_size=VOCABULARY, num_samples=50, temperature=1.0),
    TopKCodec(vocabulary_size=VOCABULARY, top_k=50),
    HiddenCodec(vocabulary_size=VOCABULARY, hidden_size=HIDDEN),
    DenseCodec(vocabulary_size=VOCABULARY),
)


def alternatives() -> dict[str, Callable[[], object]]:
    """The same masked rows in bf16: the plain model, the model decoding masked positions alone, and each codec."""
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))  # noqa: S106
    tokens = MlmTokenizer(tokenizer, 0, 103, True, (0,), ([101], [102]))
    lm = MaskedLm("random", None, BertForMaskedLM(config).eval(), tokens)
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(26), 0.5, ROWS).astype(int), 10, 126)
    ids = Ragged.of([random.integers(1000, VOCABULARY, n).tolist() for n in lengths])
    plan = MaskingPlan(42, 0.15, 1, 103, uniform_weights(VOCABULARY, [0]))
    masked = mask(Sequences(np.arange(ROWS), np.zeros(ROWS, dtype=np.int64), ids), plan)
    rows = MaskedRows(masked.sequence_R, 0 * masked.copy_R, masked.copy_R, masked.ids, masked.positions, masked.targets)
    batches = token_budget_batches((masked.ids.lengths + 2).tolist(), MAX_TOKENS)

    def plain() -> None:
        with inference_mode(torch.device("cpu"), "bf16"):
            for batch in batches:
                framed = Ragged.of([[101, *masked.ids[row].tolist(), 102] for row in batch])
                ids_BL = torch.from_numpy(framed.padded(range(len(batch)), 0))
                lm.model(input_ids=ids_BL, attention_mask=(ids_BL != 0).long())

    def chosen_only() -> None:
        with inference_mode(torch.device("cpu"), "bf16"):
            for batch in batches:
                predict_masked(lm, masked.ids, masked.positions, batch)

    def dump(codec: Codec) -> None:
        with inference_mode(torch.device("cpu"), "bf16"):
            tokens_table(codec, "train", rows, encoded_predictions(lm, codec, rows, 42, MAX_TOKENS, no_statistics()))

    return {
        "plain forward, every position decoded": plain,
        "forward, masked positions decoded": chosen_only,
        **{f"dump, {codec}": lambda codec=codec: dump(codec) for codec in CODECS},  # type: ignore[misc]
    }
