"""The transformers that students are compared with: the same shapes as the real models, with random weights.

Shapes: N sentences, B batch, L tokens, H hidden size.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from tokenizers import Tokenizer
from transformers import AutoModel, BertConfig, DistilBertConfig, PreTrainedConfig, PreTrainedModel

from distill.apps.bench.readers import Reader, wait_for
from pipeline.arrays import Ragged
from pipeline.devices import has_fast_bf16
from pipeline.text.text_to_ids import TextReader
from teacher.models.batches import token_budget_batches, tokens_per_batch
from teacher.models.loaded import DTYPES

MAX_POSITIONS = 512


def peer_readers(
    peers: Mapping[str, str], tokenizer: Tokenizer, max_seq_length: int, device: torch.device
) -> list[Reader]:
    """Returns every peer in every precision in which this machine is fast.

    Args:
        peers: the names of `peer_config`, and their names for people.
        tokenizer: the student's.
        max_seq_length: the maximum number of tokens per input.
        device: the device that they run on.
    """
    readers = []
    for peer, name in peers.items():
        for precision in ("fp32", "bf16") if has_fast_bf16() else ("fp32",):
            model = new_peer(peer_config(peer), precision, device)
            readers.append(peer_reader(name, model, precision, tokenizer, max_seq_length))
    return readers


def peer_config(name: str) -> PreTrainedConfig:
    """The architecture of BERT-base, DistilBERT-base (Sanh et al. 2019) or TinyBERT-4-312 (Jiao et al. 2020)."""
    if name == "distilbert":
        return DistilBertConfig()
    if name == "tinybert-4":
        return BertConfig(hidden_size=312, num_hidden_layers=4, num_attention_heads=12, intermediate_size=1200)
    return BertConfig()


def new_peer(config: PreTrainedConfig, precision: str, device: torch.device) -> PreTrainedModel:
    """Returns an encoder with random weights in ``precision`` and with its fastest implementation of attention."""
    model = AutoModel.from_config(config, attn_implementation="sdpa")
    return model.eval().to(device, DTYPES[precision])


def peer_reader(name: str, model: PreTrainedModel, precision: str, tokenizer: Tokenizer, max_seq_length: int) -> Reader:
    """A transformer that reads batches of similar lengths, as a dump does.

    The head, one small product per sentence, is left out, which favours the transformer. Ids beyond its vocabulary wrap
    around, because every row of a random table is equally fast to read.

    Args:
        name: for people.
        model: the encoder, on its device.
        precision: of its weights.
        tokenizer: the student's.
        max_seq_length: the maximum number of tokens per input.
    """
    device, text_reader = model.device, TextReader.of(tokenizer)

    def encoding(ids: Ragged) -> Callable[[], torch.Tensor]:
        # The student's vocabulary may be larger than this table.
        wrapped = Ragged(ids.flat % model.config.vocab_size, ids.offsets)
        groups = token_budget_batches(ids.lengths.tolist(), tokens_per_batch(device))
        batches = [(rows, _batch(wrapped, rows, device)) for rows in groups]
        vectors_NH = torch.empty(len(ids), model.config.hidden_size, device=device)

        def encode() -> torch.Tensor:
            for rows, batch in batches:
                vectors_NH[rows] = model(**batch).last_hidden_state[:, 0].float()
            wait_for(device)
            return vectors_NH

        return encode

    def predict(texts1: Sequence[str], texts2: Sequence[str] | None) -> torch.Tensor:
        inputs = text_reader.tokenize(texts1, texts2, min(max_seq_length, MAX_POSITIONS))
        return encoding(Ragged.of([row.ids for row in inputs]))().cpu()

    return Reader(name, precision, model.num_parameters(), encoding, predict, min(max_seq_length, MAX_POSITIONS))


def _batch(ids: Ragged, rows: list[int], device: torch.device) -> dict[str, torch.Tensor]:
    ids_BL = torch.from_numpy(ids.padded(rows, 0))
    mask_BL = torch.arange(ids_BL.shape[1]) < torch.from_numpy(ids.lengths[rows])[:, None]
    return {"input_ids": ids_BL.to(device), "attention_mask": mask_BL.long().to(device)}
