import pytest
import torch
from transformers import AutoModel, BertConfig, DistilBertConfig, PreTrainedConfig

from distill.apps.app_settings import TRANSFORMERS
from distill.apps.bench.readers import made_up_tokenizer
from distill.apps.bench.transformer_peers import new_peer, peer_config, peer_reader
from pipeline.arrays import Ragged

SMALL = {"vocab_size": 90}
CONFIGS: list[PreTrainedConfig] = [
    BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, **SMALL),
    DistilBertConfig(dim=32, n_layers=2, n_heads=2, hidden_dim=64, **SMALL),
]


@pytest.mark.parametrize(
    ("name", "published"), [("bert-base", 109_482_240), ("distilbert", 66_362_880), ("tinybert-4", 14_350_248)]
)
def test_parameters_are_as_many_as_published(name: str, published: int) -> None:
    with torch.device("meta"):
        model = AutoModel.from_config(peer_config(name))
    assert model.num_parameters() == published
    assert name in TRANSFORMERS


@pytest.mark.parametrize("config", CONFIGS, ids=["bert", "distilbert"])
def test_sorted_batches_give_what_each_sentence_gives(config: PreTrainedConfig) -> None:
    torch.manual_seed(0)
    model = new_peer(config, "fp32", torch.device("cpu"))
    ids = Ragged.of([[5] * 40, [7, 8, 9], [1], [88, 179, 3, 4]])  # 179 is wrapped to 89
    assert model.config._attn_implementation == "sdpa"
    with torch.inference_mode():
        together = peer_reader("peer", model, "fp32", made_up_tokenizer(90), 128).encoding
        assert together is not None
        rows = [torch.tensor([(ids[row] % 90).tolist()]) for row in range(len(ids))]
        alone = [model(input_ids=row).last_hidden_state[0, 0] for row in rows]
        torch.testing.assert_close(together(ids)(), torch.stack(alone), atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_texts_are_read_with_special_tokens_and_cut() -> None:
    model = new_peer(CONFIGS[0], "fp32", torch.device("cpu"))
    tokenizer = made_up_tokenizer(90)
    reader = peer_reader("peer", model, "fp32", tokenizer, max_seq_length=5)
    found = reader.predict(["baba babe babi babo babu", "babe"], None)
    ids = [tokenizer.encode(text).ids for text in ("baba babe babi", "babe")]
    assert [len(row) for row in ids] == [5, 3]
    assert reader.encoding is not None
    torch.testing.assert_close(found, reader.encoding(Ragged.of(ids))())
    assert reader.num_parameters == model.num_parameters()


def test_bf16_weights_are_bf16() -> None:
    model = new_peer(CONFIGS[0], "bf16", torch.device("cpu"))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
