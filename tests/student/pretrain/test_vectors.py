"""Pretraining on vectors: losses by hand, what the map reads, and runs that learn, resume and feed other students."""

import itertools
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline import settings as trees
from pipeline.errors import ConfigError, FingerprintMismatchError, IntegrityError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.kinds.sentences import SentenceSet
from pipeline.sets.token_vectors import read_token_vectors
from student.encoders.specs import Cbow, Hybrid
from student.initial_weights.vectors import start_vectors
from student.lessons.pretraining import first_batches
from student.lessons.sentences import evaluate_vectors, gram_divergence, read_vectors, vector_batches, vector_loss
from student.model.architecture import SentenceConfig
from student.model.pretrained import SentenceStudent
from student.pretrain import pretrain
from student.pretrain_settings import PretrainSettings
from student.train import train
from teacher.dumps import dump
from tests.helpers.commands import distill, invoke, kill_when
from tests.helpers.dumps import vectors_config
from tests.helpers.messages import naming
from tests.helpers.sentence_sets import rows_of
from tests.helpers.students import tiny_config, weights

CONFIG = SentenceConfig(
    subject="tiny",
    width=5,
    vector_map="linear",
    vocabulary_size=12,
    pad_id=0,
    tokenizer_sha256="",
    max_seq_length=16,
    encoder=Hybrid(matrix_size=3, vector_size=4, initializer_range=0.3),
)
SAID = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
STORED = torch.tensor([[4.0, 3.0], [0.0, -1.0]])


def config(vector_store: Path, output_dir: Path, **changes: Any) -> PretrainSettings:
    settings: dict[str, Any] = {"set": "int8", "store": vector_store, "output_dir": output_dir, "matrix_size": 4}
    settings |= {"vector_size": 8, "per_device_train_batch_size": 16, "save_steps": 4, "num_train_epochs": 2}
    return PretrainSettings.from_flags(**settings | changes)


def test_losses_by_hand() -> None:
    """Cosines are 24/25 and -1; squared errors 1, 1, 0 and 9."""
    assert float(vector_loss(SAID, STORED, "cosine", 1)) == pytest.approx((0.04 + 2) / 2)
    assert float(vector_loss(SAID, STORED, "mse", 1)) == pytest.approx(11 / 4)
    assert float(vector_loss(SAID, STORED, "cosine-mse", 1)) == pytest.approx(1.02 + 2.75)


def test_the_gram_divergence_by_hand() -> None:
    """Three sentences: each has two others, so a distribution over two."""
    stored = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    said = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    temperature = 0.5

    def divergence(p: list[float], q: list[float]) -> float:
        shares = [[math.exp(x / temperature) for x in xs] for xs in (p, q)]
        p, q = ([x / sum(xs) for x in xs] for xs in shares)
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    rows = [divergence([0, 1], [1, 0]), divergence([0, 0], [1, 0]), divergence([1, 0], [0, 0])]
    expected = temperature**2 * sum(rows) / 3
    assert float(gram_divergence(said, stored, temperature)) == pytest.approx(expected)
    assert float(vector_loss(said, stored, "gram", temperature)) == pytest.approx(expected)


@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 10), temperature=st.floats(0.05, 5))
def test_similarities_alone_count_for_gram(seed: int, scale: float, temperature: float) -> None:
    torch.manual_seed(seed)
    stored = torch.randn(6, 4, dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))
    assert float(gram_divergence(scale * stored @ turn, stored, temperature)) == pytest.approx(0, abs=1e-9)
    assert float(gram_divergence(stored + torch.randn_like(stored), stored, temperature)) > 0


@pytest.mark.parametrize("loss", ["cosine-mse", "cosine", "mse", "gram"])
def test_a_sentence_alone_has_a_finite_loss_and_gradient(loss: Any) -> None:
    said = SAID[:1].clone().requires_grad_()
    vector_loss(said, STORED[:1], loss, 1).backward()  # type: ignore[no-untyped-call]
    assert said.grad is not None
    assert said.grad.isfinite().all()


@pytest.mark.parametrize("loss", ["cosine-mse", "mse", "gram"])
def test_gradients_are_those_of_finite_differences(loss: Any) -> None:
    torch.manual_seed(0)
    said, stored = torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.randn(4, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: vector_loss(x, stored, loss, 0.5), [said])


@given(sentences=st.lists(st.lists(st.integers(1, 11), max_size=6), min_size=1, max_size=4))
def test_the_map_reads_means_and_products(sentences: list[list[int]]) -> None:
    torch.manual_seed(0)
    student = SentenceStudent(CONFIG)
    ids_T = torch.tensor([token for sentence in sentences for token in sentence], dtype=torch.int64)
    starts_S = torch.tensor([0, *itertools.accumulate(map(len, sentences))])
    encoder = student.encoder
    vectors, forward, backward = (table.weight for table in encoder.tables())
    for said_H, sentence in zip(student(ids_T, starts_S), sentences, strict=True):
        mean_E = vectors[sentence].mean(dim=0) if sentence else torch.zeros(4)
        ahead, back = torch.eye(3), torch.eye(3)
        for token in sentence:
            ahead, back = ahead @ forward[token].view(3, 3), backward[token].view(3, 3) @ back
        features_F = torch.cat([mean_E, ahead.flatten(), back.flatten()])
        torch.testing.assert_close(said_H, student.map(features_F), rtol=1e-4, atol=1e-4)


def test_without_a_map_the_mean_is_the_vector() -> None:
    shape = {"encoder": Cbow(vector_size=5), "vector_map": "none"}
    student = SentenceStudent(CONFIG.model_copy(update=shape))
    (said_H,) = student(torch.tensor([3, 4, 4]), torch.tensor([0, 3]))
    torch.testing.assert_close(said_H, student.encoder.tables()[0].weight[[3, 4, 4]].mean(dim=0))
    assert {name.split(".")[0] for name in student.state_dict()} == {"encoder"}


def test_a_batch_has_the_vectors_of_its_own_sentences(vector_store: Path) -> None:
    sentence_set = SentenceSet.open(vector_store / "int8")
    rows = rows_of(sentence_set.root, "train")
    stored = {
        tuple(ids): vector
        for ids, vector in zip(rows.column("ids").to_pylist(), sentence_set.decode(rows), strict=True)
    }
    stream = vector_batches(sentence_set, 7, 3)
    seen = 0
    for step in range(stream.num_steps(1)):
        batch = stream.at(step)
        starts = batch.starts_S.tolist()
        for vector_H, (start, stop) in zip(batch.vectors_BH, itertools.pairwise(starts), strict=True):
            expected = torch.from_numpy(stored[tuple(batch.ids_T[start:stop].tolist())])
            torch.testing.assert_close(vector_H, expected)
            seen += 1
    assert seen == rows.num_rows


@pytest.mark.parametrize("codec", ["float16", "int8", "pca"])
def test_a_student_learns_from_every_codec(vector_store: Path, tmp_path: Path, codec: str) -> None:
    settings = {"learning_rate": 2e-2, "num_train_epochs": 12, "save_steps": 10}
    record = pretrain(config(vector_store, tmp_path, set=codec, **settings), "x")
    first, *_, last = [entry["metrics"]["validation"] for entry in record["result"]["history"]]
    assert last["cosine"] > max(first["cosine"], last["cosine_of_mean_vector"])
    assert last["similarity_correlation"] > 0.3
    text = (tmp_path / "README.md").read_text()
    assert "{{" not in text
    assert f"{last['cosine']:.4f}" in text


@pytest.mark.parametrize("loss", ["cosine", "mse", "gram"])
def test_every_loss_is_learnt(vector_store: Path, tmp_path: Path, loss: str) -> None:
    settings = {"learning_rate": 2e-2, "num_train_epochs": 8, "vector_loss": loss}
    temperature = {"temperature": 0.1} if loss == "gram" else {}
    record = pretrain(config(vector_store, tmp_path, **settings, **temperature), "x")
    first, *_, last = record["result"]["history"]
    assert last["loss"] < first["loss"]
    assert ("temperature" in record["settings"]) == (loss == "gram")


def test_scores_by_hand(vector_store: Path, tmp_path: Path) -> None:
    """A student that predicts the mean gets the baseline's cosine and explains no variance."""
    sentence_set = SentenceSet.open(vector_store / "int8")
    pretrain(config(vector_store, tmp_path, max_steps=1), "x")
    student = SentenceStudent.load(tmp_path)
    batches = first_batches(sentence_set, "validation", partial(read_vectors, sentence_set))
    stored_NH = torch.cat([batch.vectors_BH for batch in batches])
    with torch.no_grad():
        linear = student.map
        assert isinstance(linear, torch.nn.Linear)
        linear.weight.zero_()
        linear.bias.copy_(stored_NH.mean(dim=0))
    scores = evaluate_vectors(student, sentence_set, "validation")
    assert scores["cosine"] == pytest.approx(scores["cosine_of_mean_vector"], abs=1e-5)
    assert scores["explained_variance"] == pytest.approx(0, abs=1e-4)
    assert scores["similarity_correlation"] == pytest.approx(0, abs=1e-6)
    assert scores["cosine"] == pytest.approx(
        float(torch.cosine_similarity(stored_NH, stored_NH.mean(dim=0, keepdim=True)).mean()), abs=1e-5
    )


def test_a_stopped_run_ends_where_an_undisturbed_one_does(vector_store: Path, tmp_path: Path) -> None:
    whole = pretrain(config(vector_store, tmp_path / "whole", num_train_epochs=20), "x")
    settings = config(vector_store, tmp_path / "killed", num_train_epochs=20)
    named = ((f"--{name.replace('_', '-')}", value) for name, value in trees.given(settings).items())
    process = distill("pretrain-student", *itertools.chain(*named))
    kill_when(process, lambda: (tmp_path / "killed" / "checkpoint.safetensors").exists())
    again = pretrain(settings, "x")
    assert again["result"]["history"] == whole["result"]["history"]
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path / "killed")[name], tensor)
    assert not (tmp_path / "killed" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    "shape",
    [{"matrix_size": 4}, {"matrix_size": 4, "pooling": "sum+max"}, {"embedding": "recurrent", "matrix_size": None}],
)
def test_it_feeds_a_student_of_a_task(
    shape: dict[str, Any], vector_store: Path, opinion_set: ExampleSet, tmp_path: Path
) -> None:
    shape = shape | {"vector_size": 8}
    pretrain(config(vector_store, tmp_path / "vectors", **shape), "x")
    run = tiny_config(opinion_set.root, tmp_path / "run", init=tmp_path / "vectors", learning_rate=1e-30, **shape)
    train(run, "x")
    pretrained, trained = weights(tmp_path / "vectors"), weights(tmp_path / "run")
    weights_of_encoder = [name for name in pretrained if name.startswith("encoder.")]
    assert len(weights_of_encoder) == (7 if "embedding" in shape else 3)
    tag = "recurrent" if "embedding" in shape else "matrix-embeddings"
    assert f"- {tag}\n" in (tmp_path / "vectors" / "README.md").read_text()
    assert all(torch.equal(pretrained[name], trained[name]) for name in weights_of_encoder)


def test_tokens_of_no_training_row_end_neutral(vector_store: Path, tmp_path: Path) -> None:
    record = pretrain(config(vector_store, tmp_path, per_device_train_batch_size=2, max_steps=1), "x")
    stream = vector_batches(SentenceSet.open(vector_store / "int8"), 2, record["settings"]["seed"])
    student = SentenceStudent.load(tmp_path)
    used = student.encoder.used_ids().tolist()
    assert used == sorted({*stream.at(0).ids_T.tolist(), student.config.pad_id})
    assert student.config.used_rows == len(used)


def test_vectors_start_from_what_the_encoder_says_of_the_vocabulary(
    work: Path, corpus_file: Path, tmp_path: Path
) -> None:
    """Tokens of no training row keep that, and have no product."""
    dump(vectors_config(work, tmp_path, name="int8", token_vectors=True), "teacher-dump")
    sentences = SentenceSet.open(tmp_path / "int8")
    stored = read_token_vectors(sentences.root, sentences.record)
    assert stored is not None
    pad_id = sentences.record.tokenizer.pad_id
    settings = {"vector_size": 40, "per_device_train_batch_size": 2, "max_steps": 1, "learning_rate": 1e-4}
    record = pretrain(config(tmp_path, tmp_path / "run", **settings), "x")
    used = vector_batches(sentences, 2, record["settings"]["seed"]).at(0).ids_T
    vectors, forward, _ = (table.weight for table in SentenceStudent.load(tmp_path / "run").encoder.tables())
    start_VK = torch.from_numpy(start_vectors(stored, 40, pad_id))
    is_used_V = torch.zeros(len(vectors), dtype=torch.bool)
    is_used_V[used] = True
    assert torch.equal(vectors[~is_used_V, :32], start_VK[~is_used_V])
    torch.testing.assert_close(vectors[is_used_V, :32], start_VK[is_used_V], rtol=0, atol=2e-4)
    assert not torch.equal(vectors[is_used_V, :32], start_VK[is_used_V])
    assert not vectors[~is_used_V, 32:].any()
    assert vectors[is_used_V, 32:].any()
    assert torch.equal(forward[~is_used_V], forward[pad_id].expand(int((~is_used_V).sum()), -1))
    assert record["settings"]["token_vectors_sha256"] == stored.sha256
    noise = pretrain(config(tmp_path, tmp_path / "noise", init="noise", **settings), "x")
    assert "token_vectors_sha256" not in noise["settings"]
    assert not torch.equal(SentenceStudent.load(tmp_path / "noise").encoder.tables()[0].weight[used], vectors[used])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init": "teacher"}, naming("--init teacher: ", "vectors/", "--init noise")),
        ({"init": "teacher", "embedding": "cmow", "vector_size": None}, naming("--init teacher: ", "--embedding cmow")),
        ({"alpha": 0.3}, "--alpha: "),
        ({"temperature": 2.0}, naming("--temperature: ", "--vector-loss gram")),
        ({"vector_map": "none"}, naming("--vector-map none: ", "--embedding cbow --vector-size 32")),
    ],
)
def test_wrong_flags(vector_store: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pretrain(config(vector_store, tmp_path, **changes), "x")
    assert not list(tmp_path.iterdir())


def test_flags_of_vectors_are_not_for_tokens(token_store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--vector-loss: "):
        pretrain(config(token_store, tmp_path, set="sampled", vector_loss="mse"), "x")


def test_the_commands(vector_store: Path, opinion_run: Path, tmp_path: Path) -> None:
    flags = ["--set", "pca", "--store", vector_store, "--output-dir", tmp_path, "--matrix-size", 3]
    result = invoke("pretrain-student", *flags, "--vector-size", 5, "--max-steps", 3, "--json")
    assert result.exit_code == 0, result.stderr
    own = json.loads(result.stdout)["result"]["history"][-1]["metrics"]["validation"]
    again = json.loads(invoke("evaluate", tmp_path, "--store", vector_store, "--json").stdout)["validation"]
    assert again == pytest.approx(own, rel=1e-5)
    other = invoke("evaluate", tmp_path, "--store", vector_store, "--set", "float16", "--json")
    assert json.loads(other.stdout)["validation"]["cosine"] != own["cosine"]
    assert str(tmp_path) in invoke("predict", tmp_path, "some text").stderr
    page = invoke("report", tmp_path, "--store", vector_store, "--output", tmp_path / "page.html")
    assert page.exit_code == 0, page.stderr
    with pytest.raises(IntegrityError, match=naming(opinion_run)):
        SentenceStudent.load(opinion_run)


def test_another_setting_is_another_run(vector_store: Path, tmp_path: Path) -> None:
    done = pretrain(config(vector_store, tmp_path, max_steps=2), "x")
    assert pretrain(config(vector_store, tmp_path, max_steps=2), "y") == done
    with pytest.raises(FingerprintMismatchError, match=naming("vector_loss: cosine-mse", "mse")):
        pretrain(config(vector_store, tmp_path, max_steps=2, vector_loss="mse"), "x")
