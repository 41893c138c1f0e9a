"""What is recorded of layers in each family that is known, against transformers' eager attention; logits stay."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, DistilBertConfig, ElectraConfig, RobertaConfig

from pipeline.errors import TeacherError
from teacher.models.layer_outputs import FAMILIES, recorded_attention, require_known_family
from tests.helpers.messages import naming

SHAPE = {"vocab_size": 50, "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 32}
CONFIGS = {
    "bert": BertConfig(**SHAPE),
    "distilbert": DistilBertConfig(vocab_size=50, dim=24, n_heads=3, n_layers=2, hidden_dim=32),
    "electra": ElectraConfig(**SHAPE, embedding_size=16),
    "roberta": RobertaConfig(**SHAPE, max_position_embeddings=40),
}


def model_of(family: str) -> Any:
    torch.manual_seed(3)
    model = AutoModelForSequenceClassification.from_config(CONFIGS[family]).eval()
    for weight in model.parameters():
        weight.data *= 4 if weight.ndim == 2 else 1  # so that attention differs from token to token
    return model


@pytest.mark.parametrize("family", CONFIGS)
def test_scores_and_values_are_those_of_the_model_and_logits_stay(family: str) -> None:
    model = model_of(family)
    ids_BL = torch.randint(5, 50, (2, 9))
    mask_BL = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    with torch.no_grad():
        alone = model(input_ids=ids_BL, attention_mask=mask_BL).logits
        with recorded_attention(model, {"attention": (1, 2), "values": (2,)}) as recorded:
            recorded.clear()
            logits = model(input_ids=ids_BL, attention_mask=mask_BL).logits
        assert torch.equal(logits, alone)
        assert torch.equal(model(input_ids=ids_BL, attention_mask=mask_BL).logits, alone)
        model.set_attn_implementation("eager")
        expected = model(input_ids=ids_BL, attention_mask=mask_BL, output_attentions=True).attentions
    assert set(recorded.products) == {("attention", 1), ("attention", 2), ("values", 2)}
    for layer in (1, 2):
        scores = recorded.products["attention", layer].masked_fill(mask_BL[:, None, None] == 0, -torch.inf)
        np.testing.assert_allclose(scores.softmax(dim=-1), expected[layer - 1], atol=1e-5)
    assert expected[1].std() > 0.03
    values = recorded.products["values", 2]
    np.testing.assert_allclose(values, values.transpose(2, 3), atol=1e-5)


def test_values_are_products_of_the_value_layer() -> None:
    model, hidden = model_of("bert"), []
    layer = model.bert.encoder.layer[0].attention.self.value
    layer.register_forward_hook(lambda module, inputs, output: hidden.append(output))
    with torch.no_grad(), recorded_attention(model, {"values": (1,)}) as recorded:
        recorded.clear()
        model(input_ids=torch.arange(5, 12)[None])
    value_ALD = hidden[0][0].view(7, 3, 8).transpose(0, 1)
    np.testing.assert_allclose(
        recorded.products["values", 1][0], value_ALD @ value_ALD.transpose(1, 2) / 8**0.5, atol=1e-5
    )


def test_other_families_are_refused_by_name() -> None:
    assert set(CONFIGS) == set(FAMILIES)
    for family in FAMILIES:
        require_known_family("x", family)
    with pytest.raises(
        TeacherError,
        match=naming("deberta-base: ", "'deberta-v2'", "bert, distilbert", "states, cls, attention", "--keep"),
    ):
        require_known_family("deberta-base", "deberta-v2")
