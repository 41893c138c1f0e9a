"""Students whose vectors start from pretrained ones: the file, who starts from it, and what becomes of it in a run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from pipeline.errors import ConfigError, DataError, FingerprintMismatchError, IntegrityError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import write_text
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.open import LogitSet
from pipeline.settings import given
from student.encoders.encoder import Encoder
from student.initial_weights import vectors as vectors
from student.initial_weights.vectors import (
    pretrained_vocabulary,
    read_pretrained,
    start_vectors,
    vocabulary_sha256,
    write_pretrained,
)
from student.model.architecture import SentenceConfig
from student.model.pretrained import SentenceStudent
from student.record import reproduce
from student.settings import SweepSettings, TrainSettings
from student.sweep.sweep import sweep
from student.train import train
from tests.helpers.commands import invoke
from tests.helpers.entities import LABELS
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config, weights
from tests.helpers.toy_students import encoder_of
from tests.helpers.words import dump_entities, write_random_teacher

TABLE = "encoder.vectors.table.weight"
STILL = 1e-30  # a learning rate that moves nothing
WIDTH = 6
# Of the 30,522 entries of bert-base-uncased, with which all uncased BERTs of English were trained.
BERT_UNCASED = "d9a30f8db2290f3be5d5dca6f4f8ae419d1d31dbddfd6d181d83a75328c0e1bf"


def sentence_run(folder: Path, logit_set: LogitSet, **sizes: object) -> torch.Tensor:
    """Writes a student with random vectors for the tokenizer of a set. Returns the vectors."""
    shape = {"embedding": "cbow", "matrix_size": 0, "vector_size": WIDTH} | sizes
    tokenizer = logit_set.record.tokenizer
    config = SentenceConfig(
        subject="tiny",
        width=4,
        vector_map="linear",
        vocabulary_size=tokenizer.vocabulary_size,
        pad_id=tokenizer.pad_id,
        tokenizer_sha256=tokenizer.sha256,
        max_seq_length=16,
        encoder=encoder_of(bidirectional=False, **shape),
    )
    student = SentenceStudent(config)
    folder.mkdir()
    write_text(folder / TOKENIZER_FILE, logit_set.tokenizer_json())
    table = student.encoder.vector_table()
    if table is None:
        student.save(folder)
        return torch.zeros(0)
    torch.manual_seed(4)
    with torch.no_grad():
        table.weight.copy_(torch.randn(table.weight.shape) * torch.arange(1, WIDTH + 1))
        table.weight[tokenizer.pad_id] = 0
    student.save(folder)
    return table.weight.detach()


@pytest.fixture
def trained_VE(opinion_vectors: ExampleSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """The vectors that the package has, made for the vocabulary of the tiny teachers."""
    trained_VE = sentence_run(tmp_path / "sentences", opinion_vectors)
    write_pretrained(tmp_path / "sentences", tmp_path / "tiny.safetensors")
    monkeypatch.setattr(vectors, "FILE", tmp_path / "tiny.safetensors")
    return trained_VE


def test_the_file_of_the_package_is_for_the_vocabulary_of_bert() -> None:
    pretrained = read_pretrained()
    assert pretrained_vocabulary() == BERT_UNCASED
    assert pretrained.vector_VW.shape == (30522, 400)
    assert pretrained.vector_VW.isfinite().all()
    assert vectors.FILE.stat().st_size < 12e6


def test_the_file_has_the_vectors_but_for_their_rounding(trained_VE: torch.Tensor) -> None:
    # Steps are at most an eighth of a row's deviation.
    error_V = (read_pretrained().vector_VW - trained_VE).abs().amax(dim=1)
    assert (error_V <= trained_VE.square().mean(dim=1).sqrt() / 16 + 1e-9).all()


def test_narrower_vectors_are_the_first_principal_components(trained_VE: torch.Tensor) -> None:
    pretrained = read_pretrained()
    start_VK = start_vectors(pretrained, 4, pad_id=3)
    assert start_VK.shape == (len(trained_VE), 4)
    assert start_VK.std() == pytest.approx(Encoder.start_deviation)
    lengths, axes = torch.linalg.svd(pretrained.vector_VW.double(), full_matrices=False)[1:]
    assert (lengths.diff() < 0).all()
    expected_VK = pretrained.vector_VW.double() @ axes[:4].T
    expected_VK[3] = 0
    # Axes may point either way, which products of rows do not see.
    products_VV, expected_VV = start_VK @ start_VK.T, (expected_VK @ expected_VK.T).numpy()
    assert_allclose(products_VV, expected_VV * (products_VV.trace() / expected_VV.trace()), atol=1e-6)


def test_vectors_start_as_they_were_trained(trained_VE: torch.Tensor) -> None:
    pretrained = read_pretrained()
    for size in (WIDTH, 9):
        start_VK = start_vectors(pretrained, size, pad_id=3)
        expected = pretrained.vector_VW.numpy().copy()
        expected[3] = 0
        assert start_VK.shape == (len(trained_VE), WIDTH)
        assert_allclose(start_VK, expected * (Encoder.start_deviation / expected.std()), rtol=1e-5)
    # Frequent tokens were made short by their training, so they are not made shorter again.
    assert np.array_equal(start_vectors(pretrained, 4, 3), start_vectors(pretrained, 4, 3, counts_less=False))


@pytest.mark.usefixtures("trained_VE")
def test_sums_of_that_vocabulary_start_from_them_unless_told_otherwise(
    opinion_vectors: ExampleSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = start_vectors(read_pretrained(), 5, opinion_vectors.record.tokenizer.pad_id)
    for name, init in (("default", None), ("told", "pretrained")):
        record = train(tiny_config(opinion_vectors.root, tmp_path / name, init=init, learning_rate=STILL), "")
        assert_allclose(weights(tmp_path / name)[TABLE], expected, atol=1e-7)
        assert record["settings"]["pretrained_vectors_sha256"] == read_pretrained().sha256
        assert record["settings"]["token_vectors_sha256"] is None
        assert "come with distill" in capsys.readouterr().err
    for init in ("teacher", "noise"):
        record = train(tiny_config(opinion_vectors.root, tmp_path / init, init=init), "")
        assert record["settings"]["pretrained_vectors_sha256"] is None
        assert (record["settings"]["token_vectors_sha256"] is None) == (init == "noise")
    with pytest.raises(FingerprintMismatchError, match="pretrained_vectors_sha256: "):
        train(tiny_config(opinion_vectors.root, tmp_path / "default", init="noise", learning_rate=STILL), "")


@pytest.mark.usefixtures("trained_VE")
def test_aligned_pairs_start_from_the_teacher_if_they_can_and_lstms_always(
    store: Path, roles_vectors: ExampleSet, tmp_path: Path
) -> None:
    def starts(embedding: str, logit_set: Path, **sizes: object) -> list[bool]:
        flags = {"embedding": embedding, "matrix_size": None, "num_train_epochs": 1, **sizes}
        settings = train(tiny_config(logit_set, tmp_path / f"{embedding}-{logit_set.parent.name}", **flags), "")[
            "settings"
        ]
        return [settings[name] is not None for name in ("token_vectors_sha256", "pretrained_vectors_sha256")]

    assert starts("aligned", roles_vectors.root) == [True, False]
    assert starts("aligned", store / "roles") == [False, True]
    assert starts("recurrent", roles_vectors.root) == [False, True]
    assert starts("lstm", roles_vectors.root, lstm_size=4) == [True, False]
    assert starts("lstm", store / "roles", lstm_size=4) == [False, False]


def test_labelled_words_start_from_the_teacher_if_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_random_teacher(tmp_path, 40)
    for name, has_vectors, expected in (("with", True, [True, False]), ("without", False, [False, True])):
        store = tmp_path / name
        entities = dump_entities(tmp_path, store=store, token_vectors=has_vectors, teacher_labels=",".join(LABELS))
        sentence_run(store / "sentences", entities)
        write_pretrained(store / "sentences", store / "vectors.safetensors")
        monkeypatch.setattr(vectors, "FILE", store / "vectors.safetensors")
        settings = train(tiny_config(entities.root, store / "run", num_train_epochs=1), "")["settings"]
        assert [settings[key] is not None for key in ("token_vectors_sha256", "pretrained_vectors_sha256")] == expected


def test_another_vocabulary_starts_from_the_teacher(opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    record = train(tiny_config(opinion_vectors.root, tmp_path / "default"), "")
    assert record["settings"]["pretrained_vectors_sha256"] is None
    assert record["settings"]["token_vectors_sha256"] is not None
    with pytest.raises(ConfigError, match=naming("--init pretrained: ", str(opinion_vectors.root))):
        train(tiny_config(opinion_vectors.root, tmp_path / "told", init="pretrained"), "")
    assert not (tmp_path / "told").exists()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"embedding": "cmow", "vector_size": None}, ("--init pretrained: ", "cmow")),
        (
            {"embedding": "bert", "matrix_size": None, "vector_size": None, "hidden_size": None},
            ("--init pretrained: ",),
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    flags: dict[str, object], named: tuple[str, ...], opinion_vectors: ExampleSet, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=naming(*named)):
        train(tiny_config(opinion_vectors.root, tmp_path / "run", init="pretrained", **flags), "")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("trained_VE")
def test_every_task_of_a_joint_training_records_them(store: Path, vectors_store: Path, tmp_path: Path) -> None:
    sets = f"{store / 'opinion'},{vectors_store / 'roles'}"
    flags = given(tiny_config(store / "opinion", tmp_path / "run", num_train_epochs=1))
    del flags["set"]
    train(TrainSettings.from_flags(**flags, tasks=sets), "")
    for name in ("opinion", "roles"):
        settings = json.loads((tmp_path / "run" / name / "run.json").read_text())["settings"]
        assert settings["pretrained_vectors_sha256"] == read_pretrained().sha256
        assert settings["token_vectors_sha256"] is None


def test_other_vectors_are_noticed_by_reproduce_and_by_a_sweep(
    trained_VE: torch.Tensor, opinion_vectors: ExampleSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_pretrained().sha256
    flags = tiny_config(opinion_vectors.root, tmp_path / "run", num_train_epochs=1)
    train(flags, "")
    values = given(flags) | {"output_dir": tmp_path / "sweep", "grid": ("initializer_range=0.1",)}
    sweep(SweepSettings.from_flags(**values), "")
    sentence_run(tmp_path / "others", opinion_vectors)
    with torch.no_grad():
        others = SentenceStudent.load(tmp_path / "others")
        others.encoder.tables()[0].weight.fill_(1)
        others.save(tmp_path / "others")
    write_pretrained(tmp_path / "others", tmp_path / "others.safetensors")
    monkeypatch.setattr(vectors, "FILE", tmp_path / "others.safetensors")
    compared = reproduce(tmp_path / "run", None, False)["pretrained_vectors_sha256"]
    assert compared == {"then": before, "now": read_pretrained().sha256}
    assert compared["then"] != compared["now"]
    with pytest.raises(FingerprintMismatchError, match="pretrained_vectors_sha256"):
        sweep(SweepSettings.from_flags(**values), "")


def test_pretraining_does_not_start_from_them(vector_store: Path, tmp_path: Path) -> None:
    result = invoke("pretrain-student", "--set", vector_store / "int8", "--init", "pretrained")
    assert result.exit_code == 2
    assert "--init" in result.stderr


@pytest.mark.parametrize("damage", ["missing", "changed", "another"])
def test_a_damaged_file_is_refused(
    damage: str, trained_VE: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opinion_run: Path
) -> None:
    path = tmp_path / "damaged.safetensors"
    if damage == "changed":
        content = bytearray(vectors.FILE.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
    if damage == "another":
        path.write_bytes((opinion_run / "model.safetensors").read_bytes())
    monkeypatch.setattr(vectors, "FILE", path)
    with pytest.raises(IntegrityError, match=naming(str(path))):
        read_pretrained()


def test_a_student_without_vectors_gives_none(opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    sentence_run(tmp_path / "cmow", opinion_vectors, embedding="cmow", matrix_size=3, vector_size=0)
    with pytest.raises(DataError, match=naming(str(tmp_path / "cmow"))):
        write_pretrained(tmp_path / "cmow", tmp_path / "file.safetensors")
    assert not (tmp_path / "file.safetensors").exists()


def test_the_hash_of_a_vocabulary_does_not_depend_on_its_spelling(opinion_vectors: ExampleSet) -> None:
    text = opinion_vectors.tokenizer_json()
    assert vocabulary_sha256(text) == vocabulary_sha256(text.replace(" ", "").replace("\n", ""))
