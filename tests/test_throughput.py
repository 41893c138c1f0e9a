"""What `make bench` compares students with computes what it should, and everyone has a throughput."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, BertConfig, DistilBertConfig, PreTrainedConfig

from pipeline.arrays import Ragged
from student.predict.predictor import Predictor
from tests.benchmarks import throughput
from tests.benchmarks.random_student import made_up_tokenizer
from tests.benchmarks.readers import (
    LABELS,
    TRANSFORMERS,
    Reader,
    Texts,
    fasttext_reader,
    nanotoken_reader,
    new_transformer,
    static_reader,
    student_reader,
    transformer_reader,
)

CPU = torch.device("cpu")
TOKENIZER = made_up_tokenizer(500)
DOCUMENTS = [" ".join(f"{a}{b}" for b in ("ba", "be", "bibo")) * 200 + "." for a in ("ba", "fe", "du")]
CONFIGS: list[PreTrainedConfig] = [
    BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=90),
    DistilBertConfig(dim=32, n_layers=2, n_heads=2, hidden_dim=64, vocab_size=90),
]


@pytest.mark.slow
@pytest.mark.parametrize("run", ["opinion_run", "roles_run"])
def test_every_reader_has_a_speed_for_every_input_and_place(
    run: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SECONDS": 0.2, "ROWS": 16, "DOCUMENT_LINES": 1}.items():
        monkeypatch.setattr(throughput, name, value)
    monkeypatch.setattr(throughput, "lines_of_documentation", lambda: DOCUMENTS * 16)
    folder = str(request.getfixturevalue(run))
    found = throughput.throughput(folder, "tinybert-4", "model2vec", "fasttext")
    on_cpu = [rows for title, rows in found.items() if title.endswith("cpu")]
    peers = [
        {row["name"] for row in rows} - {f"tinybert-4, {precision}" for precision in ("fp32", "bf16")}
        for rows in on_cpu
    ]
    assert peers == [{folder}] * 2 + [{folder, "model2vec", "fasttext"}] * 2
    for rows in on_cpu:
        assert all(value > 0 for row in rows for value in row.values() if isinstance(value, float))
        assert rows[0]["x slower than the first"] == 1


@torch.inference_mode()
def test_a_student_reads_ids_by_its_encoder_and_texts_by_its_predictor(opinion_run: Path) -> None:
    predictor = Predictor(opinion_run)
    reader = student_reader(predictor, CPU)
    rows = [[5, 6, 7, 8], [9], [6, 5]]
    assert reader.encoding is not None
    alone = torch.cat([predictor.student.encoder(torch.tensor([row])) for row in rows])
    torch.testing.assert_close(reader.encoding(Ragged.of(rows))(), alone)
    texts = ["the cat sees the dog"]
    assert reader.predict(texts, None) == predictor.columns(texts)


@pytest.mark.parametrize("pad_id", [0, 2, 4])
def test_every_id_but_the_padding_occurs(pad_id: int) -> None:
    ids = throughput._random_ids(np.full(256, 64), 5, pad_id)
    assert ids.lengths.tolist() == [64] * 256
    assert set(ids.flat.tolist()) == set(range(5)) - {pad_id}


@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize("peer", ["model2vec", "nanotoken", "fasttext"])
def test_every_text_gets_a_label(peer: str, is_pair: bool) -> None:
    pytest.importorskip(peer)
    texts: Texts = DOCUMENTS, DOCUMENTS[::-1] if is_pair else None
    makers: dict[str, Callable[[], Reader]] = {
        "model2vec": lambda: static_reader(TOKENIZER, is_pair),
        "nanotoken": lambda: nanotoken_reader(TOKENIZER, is_pair),
        "fasttext": lambda: fasttext_reader([texts]),
    }
    reader = makers[peer]()
    labels = reader.predict(*texts)
    assert len(labels) == len(DOCUMENTS)  # type: ignore[arg-type]
    assert set(labels) <= set(LABELS)  # type: ignore[call-overload]
    assert reader.encoding is None
    assert reader.num_parameters > 0


@torch.inference_mode()
def test_both_tokenizers_of_model2vec_give_the_same_labels() -> None:
    pytest.importorskip("model2vec")
    pytest.importorskip("nanotoken")
    own, other = (
        make(TOKENIZER, True).predict(DOCUMENTS, DOCUMENTS[::-1]) for make in (static_reader, nanotoken_reader)
    )
    assert own == other


@pytest.mark.parametrize(
    ("name", "published"), [("bert-base", 109_482_240), ("distilbert", 66_362_880), ("tinybert-4", 14_350_248)]
)
def test_parameters_are_as_many_as_published(name: str, published: int) -> None:
    with torch.device("meta"):
        assert AutoModel.from_config(TRANSFORMERS[name]).num_parameters() == published


@torch.inference_mode()
@pytest.mark.parametrize("config", CONFIGS, ids=["bert", "distilbert"])
def test_sorted_batches_give_what_each_sentence_gives(config: PreTrainedConfig) -> None:
    torch.manual_seed(0)
    model = new_transformer(config, "fp32", CPU)
    ids = Ragged.of([[5] * 40, [7, 8, 9], [1], [88, 179, 3, 4]])  # 179 is wrapped to 89
    assert model.config._attn_implementation == "sdpa"
    together = transformer_reader(model, made_up_tokenizer(90), 128).encoding
    assert together is not None
    rows = [torch.tensor([(ids[row] % 90).tolist()]) for row in range(len(ids))]
    alone = [model(input_ids=row).last_hidden_state[0, 0] for row in rows]
    torch.testing.assert_close(together(ids)(), torch.stack(alone), atol=1e-5, rtol=1e-4)


@torch.inference_mode()
def test_transformers_read_texts_with_special_tokens_and_cut() -> None:
    model, tokenizer = new_transformer(CONFIGS[0], "fp32", CPU), made_up_tokenizer(90)
    reader = transformer_reader(model, tokenizer, max_seq_length=5)
    found = reader.predict(["baba babe babi babo babu", "babe"], None)
    ids = [tokenizer.encode(text).ids for text in ("baba babe babi", "babe")]
    assert [len(row) for row in ids] == [5, 3]
    assert reader.encoding is not None
    torch.testing.assert_close(found, reader.encoding(Ragged.of(ids))())
    bf16 = new_transformer(CONFIGS[0], "bf16", CPU)
    assert {parameter.dtype for parameter in bf16.parameters()} == {torch.bfloat16}
