from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from teacher.tiny import create_tiny_bert


def test_loads_with_transformers_and_knows_every_word(tmp_path: Path) -> None:
    create_tiny_bert(tmp_path, ["The cat, the dog.", "a bird"], hidden_size=32, num_layers=1)
    tokenizer, model = AutoTokenizer.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)
    inputs = tokenizer("the CAT,", "a bird", return_tensors="pt")
    words = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    assert words == ["[CLS]", "the", "cat", ",", "[SEP]", "a", "bird", "[SEP]"]
    assert inputs["token_type_ids"][0].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert model(**inputs).last_hidden_state.shape == (1, 8, 32)
    assert (model.config.vocab_size, model.config.num_hidden_layers) == (len(tokenizer), 1)
    assert tokenizer.unk_token_id in tokenizer("zebra")["input_ids"]
    assert tokenizer.pad_token_id == 0


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        create_tiny_bert(tmp_path / name, ["one two"], hidden_size=32, num_layers=1, seed=seed)
    a, b, c = (AutoModel.from_pretrained(tmp_path / name).embeddings.word_embeddings.weight for name in "abc")
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
