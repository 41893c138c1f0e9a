"""Students whose vectors start from the teacher's: the table by hand, and what becomes of it in a run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from pipeline.errors import ConfigError, DataError, FingerprintMismatchError, IntegrityError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.signals.side_files import VOCABULARY_FILE
from pipeline.sets.token_vectors import VocabularyVectors, read_token_vectors
from pipeline.settings import given
from student.data import load_examples
from student.encoders.encoder import Encoder
from student.export.export import with_small_tables
from student.initial_weights.vectors import (
    principal_components,
    sif_weights,
    start_from_vectors,
    start_from_words,
    start_vectors,
)
from student.model.build_config import build_config
from student.model.student import Student
from student.record import reproduce
from student.settings import SweepSettings, TrainSettings
from student.sweep.sweep import sweep
from student.train import train
from student.vocabulary_pruning import active_ids
from tests.helpers.messages import naming
from tests.helpers.shipped_tasks import facts
from tests.helpers.students import tiny_config, weights
from tests.helpers.toy_students import lstm_student, student

TABLE = "encoder.vectors.table.weight"
STILL = 1e-30  # a learning rate that moves nothing


def vectors_of(logit_set: ExampleSet) -> VocabularyVectors:
    stored = read_token_vectors(logit_set.root, logit_set.record)
    assert stored is not None
    return stored


def some_vectors(tokens: int = 12, width: int = 6) -> VocabularyVectors:
    random = np.random.default_rng(3)
    return VocabularyVectors(
        (random.normal(size=(tokens, width)) * np.arange(1, width + 1)).astype(np.float16),
        random.integers(0, 50, tokens),
    )


def test_components_of_points_on_two_axes_are_known() -> None:
    points = np.array([[0, 5, 1], [0, -5, 1], [2, 0, 1], [-2, 0, 1]], dtype=np.float64) + 7
    expected = [[5, 0], [-5, 0], [0, 2], [0, -2]]
    assert_allclose(principal_components(points, 2), expected, atol=1e-12)
    assert_allclose(principal_components(points, 1), np.array(expected)[:, :1], atol=1e-12)


def test_components_keep_distances_and_have_no_covariance() -> None:
    points = np.random.default_rng(1).normal(size=(40, 5)) * [5, 4, 3, 2, 1]
    components = principal_components(points, 9)
    assert components.shape == (40, 5)
    assert_allclose(components @ components.T, (points - points.mean(0)) @ (points - points.mean(0)).T, atol=1e-9)
    covariance = components.T @ components
    assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-9)
    assert (np.diff(np.diag(covariance)) < 0).all()


def test_components_do_not_depend_on_the_signs_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    points, eigh = np.random.default_rng(1).normal(size=(40, 5)), np.linalg.eigh
    expected = principal_components(points, 3)

    def other(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, axes = eigh(matrix)
        return values, axes * [-1, 1, -1, -1, 1]

    monkeypatch.setattr(np.linalg, "eigh", other)
    np.testing.assert_array_equal(principal_components(points, 3), expected)


def test_frequent_tokens_weigh_less() -> None:
    counts = np.array([0, 9, 88])  # p is 0.01, 0.1 and 0.89, each counted once more
    assert_allclose(sif_weights(counts), [1e-3 / 0.011, 1e-3 / 0.101, 1e-3 / 0.891])


@pytest.mark.parametrize("pad_id", [0, 7, 12])
def test_the_table_is_components_by_weights_to_scale(pad_id: int) -> None:
    vectors = some_vectors()
    table = start_vectors(vectors, 4, pad_id)
    plain = principal_components(vectors.vector_VW.astype(np.float64), 4) * sif_weights(vectors.count_V)[:, None]
    others = [token for token in range(12) if token != pad_id]
    scale = table[others[0], 0] / plain[others[0], 0]
    assert_allclose(table[others], scale * plain[others], rtol=1e-5)
    assert table.std() == pytest.approx(Encoder.start_deviation, rel=1e-5)
    assert scale > 0
    assert table.dtype == np.float32
    if pad_id < 12:
        assert (table[pad_id] == 0).all()


def test_an_lstm_starts_from_components_without_weights() -> None:
    lstm = student(embedding="lstm", vector_size=4, lstm_size=4)
    vectors = some_vectors(lstm.config.vocabulary_size, 6)
    start_from_vectors(lstm.encoder, vectors)
    plain = principal_components(vectors.vector_VW.astype(np.float64), 4)
    plain[lstm.config.pad_id : lstm.config.pad_id + 1] = 0
    table = lstm.encoder.tables()[0].weight.detach().numpy()[: len(plain)]
    assert_allclose(table, plain * (table.std() / plain.std()), rtol=1e-4, atol=1e-7)


def test_vectors_that_are_all_the_same_start_at_zero() -> None:
    same = VocabularyVectors(np.ones((5, 3), dtype=np.float16), np.zeros(5, dtype=np.int64))
    assert (start_vectors(same, 2, 0) == 0).all()


def test_columns_beyond_the_teachers_width_stay_noise() -> None:
    torch.manual_seed(1)
    wide = student(vector_size=9)
    before = [table.weight.clone() for table in wide.encoder.tables()]
    vectors = some_vectors(wide.config.vocabulary_size, 6)
    start_from_vectors(wide.encoder, vectors)
    after = [table.weight for table in wide.encoder.tables()]
    assert_allclose(after[0][:, :6].detach(), start_vectors(vectors, 9, wide.config.pad_id))
    assert torch.equal(after[0][:, 6:], before[0][:, 6:])
    assert torch.equal(after[1], before[1])
    assert torch.equal(after[2], before[2])


def test_a_run_starts_from_the_set_unless_told_otherwise(
    store: Path, opinion_vectors: ExampleSet, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    expected = start_vectors(vectors_of(opinion_vectors), 5, opinion_vectors.record.tokenizer.pad_id)
    for name, init in (("default", None), ("told", "teacher")):
        record = train(tiny_config(opinion_vectors.root, tmp_path / name, init=init, learning_rate=STILL), "")
        assert_allclose(weights(tmp_path / name)[TABLE], expected, atol=1e-7)
        assert record["settings"]["token_vectors_sha256"] == vectors_of(opinion_vectors).sha256
        assert str(opinion_vectors.root) in capsys.readouterr().err
    for name, logit_set, init in (("noise", opinion_vectors.root, "noise"), ("without", store / "opinion", None)):
        record = train(tiny_config(logit_set, tmp_path / name, init=init, learning_rate=STILL), "")
        assert record["settings"]["token_vectors_sha256"] is None
        assert "noise" in capsys.readouterr().err
    noise, without = (weights(tmp_path / name) for name in ("noise", "without"))
    assert all(torch.equal(noise[name], without[name]) for name in without)
    started = weights(tmp_path / "default")
    used = active_ids([load_examples(opinion_vectors, "train")], opinion_vectors.record.tokenizer.pad_id)
    for name in started.keys() - {TABLE}:  # matrices and head are the seed's all the same
        rows = slice(None) if name.startswith("head.") else used
        assert_allclose(started[name][rows], noise[name][rows], atol=1e-12)


def test_tokens_that_training_does_not_use_keep_their_vectors(opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    train(tiny_config(opinion_vectors.root, tmp_path, where="source_row < 3", vector_size=40), "")
    trained, pad_id = Student.load(tmp_path), opinion_vectors.record.tokenizer.pad_id
    used = active_ids([load_examples(opinion_vectors, "train", "source_row < 3")], pad_id)
    unseen = np.setdiff1d(np.arange(trained.config.num_tokens), used)
    start = torch.from_numpy(start_vectors(vectors_of(opinion_vectors), 40, pad_id))
    assert len(unseen) > 5
    vectors, forward, backward = (table.weight.detach() for table in trained.encoder.tables())
    assert torch.equal(vectors[unseen, :32], start[unseen])
    assert (vectors[unseen].abs().sum(dim=1) > 0).all()
    assert (vectors[unseen, 32:] == 0).all()  # noise has no information
    for matrices in (forward, backward):
        assert torch.equal(matrices[unseen], torch.eye(3).flatten().expand(len(unseen), 9))
    assert (vectors[used] != torch.nn.functional.pad(start, (0, 8))[used]).any(dim=1).sum() == len(used) - 1
    assert (vectors[pad_id] == 0).all()
    assert trained.config.used_rows == trained.config.num_tokens
    small = with_small_tables(trained, "int8")
    ids = torch.tensor([[int(unseen[0]), int(used[-1])]])
    torch.testing.assert_close(small(ids), trained(ids), rtol=0, atol=0.02)


def test_the_first_of_several_sets_gives_them(
    vectors_store: Path, store: Path, opinion_vectors: ExampleSet, tmp_path: Path
) -> None:
    shutil.copytree(store / "opinion", tmp_path / "plain")
    both = [str(vectors_store / "opinion"), str(tmp_path / "plain")]
    first = train(tiny_config(vectors_store, tmp_path / "1", set=tuple(both)), "")
    second = train(tiny_config(vectors_store, tmp_path / "2", set=tuple(both[::-1])), "")
    hashes = [record["settings"]["token_vectors_sha256"] for record in (first, second)]
    assert hashes == [vectors_of(opinion_vectors).sha256, None]


def test_flags_that_do_not_fit_are_refused(store: Path, opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    changes = {"init": "teacher", "embedding": "cmow", "vector_size": None}
    with pytest.raises(ConfigError, match=naming("--init teacher: ", "cmow")):
        train(tiny_config(opinion_vectors.root, tmp_path / "run", **changes), "")
    with pytest.raises(ConfigError, match=naming("--init teacher: ", "store/opinion", "--init noise")):
        train(tiny_config(store / "opinion", tmp_path / "run", init="teacher"), "")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("changes", [{"embedding": "cmow", "vector_size": None}, {"init": "run"}])
def test_without_vectors_or_from_a_run_the_default_is_not_the_teacher(
    changes: dict[str, object], opinion_vectors: ExampleSet, opinion_run: Path, tmp_path: Path
) -> None:
    changes = {name: opinion_run if value == "run" else value for name, value in changes.items()}
    record = train(tiny_config(opinion_vectors.root, tmp_path, **changes), "")
    assert record["settings"]["token_vectors_sha256"] is None


def test_a_run_is_not_gone_on_with_from_another_start(store: Path, opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    record = train(tiny_config(opinion_vectors.root, tmp_path / "run"), "")
    assert train(tiny_config(opinion_vectors.root, tmp_path / "run"), "") == record
    with pytest.raises(FingerprintMismatchError, match="token_vectors_sha256: "):
        train(tiny_config(opinion_vectors.root, tmp_path / "run", init="noise"), "")
    with pytest.raises(FingerprintMismatchError, match="token_vectors_sha256: "):
        train(tiny_config(store / "opinion", tmp_path / "run"), "")


def test_damaged_vectors_are_refused_where_they_are_used(opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    root = shutil.copytree(opinion_vectors.root, tmp_path / "opinion")
    content = bytearray((root / VOCABULARY_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (root / VOCABULARY_FILE).write_bytes(content)
    with pytest.raises(IntegrityError, match=naming("vocabulary/token_vectors.parquet: ", "SHA-256")):
        train(tiny_config(root, tmp_path / "run"), "")
    train(tiny_config(root, tmp_path / "noise", init="noise"), "")


def test_reproduce_looks_at_the_vectors(opinion_vectors: ExampleSet, opinion_set: ExampleSet, tmp_path: Path) -> None:
    root = shutil.copytree(opinion_vectors.root, tmp_path / "opinion")
    train(tiny_config(root, tmp_path / "run"), "")
    compared = reproduce(tmp_path / "run", None, False)["token_vectors_sha256"]
    assert compared == {"then": vectors_of(opinion_vectors).sha256, "now": vectors_of(opinion_vectors).sha256}
    shutil.rmtree(root)
    shutil.copytree(opinion_set.root, root)
    assert reproduce(tmp_path / "run", None, False)["token_vectors_sha256"]["now"] == "none"


def test_a_sweep_tries_both_starts(store: Path, opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    flags = tiny_config(opinion_vectors.root, tmp_path / "sweep", num_train_epochs=1)
    values = given(flags)
    sweep(SweepSettings.from_flags(**values, grid=("init=teacher,noise",)), "")
    records = [json.loads(path.read_text()) for path in sorted((tmp_path / "sweep").glob("*/run.json"))]
    hashes = {record["settings"]["token_vectors_sha256"] for record in records}
    assert hashes == {None, vectors_of(opinion_vectors).sha256}
    assert ExampleSet.open(store / "opinion").record.signals.token_vectors is None
    plain = values | {"set": (str(store / "opinion"),), "output_dir": tmp_path / "none"}
    with pytest.raises(ConfigError, match=naming("--grid: ", "--init teacher: ", "store/opinion")):
        sweep(SweepSettings.from_flags(**plain, grid=("init=teacher,noise",)), "")
    assert not (tmp_path / "none").exists()


PIECES = ["[PAD]", "[MASK]", "cat", "##s", "dog", "a", "the", "unused", "Cat", "b"]
TOKENIZER = Tokenizer(WordPiece({piece: token for token, piece in enumerate(PIECES)}, unk_token=PIECES[1])).to_str()
# a word twice, one that is no token, one that is 0, and the padding's name
FILE = "5 2\ncat 3 0\nnobody 9 9\nthe 0 -1\nb 1 1\ncat 7 7\ndog 0 0\n[PAD] 4 4\n"
FOUND = {2: (3, 0), 6: (0, -1), 9: (1, 1)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.txt"
    path.write_text(FILE)
    return path


def rows_of(encoder: Encoder) -> torch.Tensor:
    table = encoder.vector_table()
    assert table is not None
    return table.weight.detach().clone()


@pytest.mark.parametrize("embedding", ["hybrid", "lstm", "biattentive"])
def test_tokens_that_are_words_start_from_them_and_others_stay(
    file: Path, embedding: str, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = (student() if embedding == "hybrid" else lstm_student(embedding)).encoder
    before_VE = rows_of(encoder)
    start_from_words(encoder, file, TOKENIZER)
    after_VE = rows_of(encoder)
    given_ND = torch.tensor([*FOUND.values()], dtype=torch.float32)
    deviation = 0.1 if embedding == "hybrid" else 0.5 / 12**0.5  # of numbers that are drawn from -0.25 to 0.25
    expected_ND = given_ND * deviation / given_ND.std(correction=0)
    torch.testing.assert_close(after_VE[[*FOUND], :2], expected_ND)
    torch.testing.assert_close(after_VE[:, 2:], before_VE[:, 2:])
    others = [token for token in range(len(PIECES)) if token not in FOUND]
    assert torch.equal(after_VE[others], before_VE[others])
    assert "3 of 9 tokens" in " ".join(capsys.readouterr().err.split())


def test_both_channels_start_from_the_file(file: Path) -> None:
    encoder = lstm_student(channels=2).encoder
    start_from_words(encoder, file, TOKENIZER)
    frozen, trained = encoder.tables()
    assert torch.equal(frozen.weight, trained.weight)


def test_wider_vectors_are_reduced_to_their_principal_components(tmp_path: Path) -> None:
    plane = np.array([[2.0, 0], [-2, 0], [0, 1], [0, -1]])  # in a space of 7
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(7, 2)))[0].T
    lines = [
        f"{PIECES[token]} {' '.join(map(str, row))}" for token, row in zip((2, 4, 5, 6), plane @ axes, strict=True)
    ]
    (tmp_path / "wide.txt").write_text("\n".join(lines))
    encoder = lstm_student(vector_size=2).encoder
    start_from_words(encoder, tmp_path / "wide.txt", TOKENIZER)
    rows_N2 = rows_of(encoder)[[2, 4, 5, 6]].double().numpy()
    np.testing.assert_allclose(rows_N2.std(), 0.5 / 12**0.5, rtol=1e-5)
    np.testing.assert_allclose(np.abs(rows_N2 / rows_N2.std()), np.abs(plane / plane.std()), atol=1e-5)


def test_a_file_without_any_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("nobody 1 2\n")
    with pytest.raises(DataError, match=naming("--init", "v.txt: ")):
        start_from_words(student().encoder, tmp_path / "v.txt", TOKENIZER)


def test_the_file_is_a_setting_of_the_run_and_beats_the_teachers_vectors(
    opinion_vectors: ExampleSet, tmp_path: Path
) -> None:
    vocabulary = Tokenizer.from_str(opinion_vectors.tokenizer_json()).get_vocab()
    word, unused = next(piece for piece in sorted(vocabulary) if piece.isalpha()), "[MASK]"
    (tmp_path / "v.txt").write_text(f"{word} 1 2 3 4 5\n{unused} 5 4 3 2 1\n")
    changes = {"num_train_epochs": 1, "learning_rate": 1e-9, "init": tmp_path / "v.txt"}
    settings = train(tiny_config(opinion_vectors.root, tmp_path / "run", **changes), "")["settings"]
    assert len(settings["init_vectors_sha256"]) == 64
    assert settings["token_vectors_sha256"] is None
    assert "init" not in settings
    table_VE = weights(tmp_path / "run")["encoder.vectors.table.weight"]
    rows_25 = table_VE[[vocabulary[word], vocabulary[unused]]]
    expected_25 = torch.tensor([[1.0, 2, 3, 4, 5], [5, 4, 3, 2, 1]]) * 0.1 / 2**0.5
    torch.testing.assert_close(rows_25, expected_25)  # also of a token that no training row has


def test_an_encoder_without_vectors_of_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("good 1 2\n")
    with pytest.raises(ConfigError, match=naming("--init ", "v.txt: ", "--embedding cmow")):
        build_config(TrainSettings.from_flags(init=tmp_path / "v.txt", embedding="cmow"), facts("sst2"))


@pytest.mark.parametrize(("value", "advice"), [("none.txt", "noise"), ("pretraned", "Did you mean 'pretrained'?")])
def test_an_unknown_start_is_noticed_before_rows_are_read(value: str, advice: str, store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming(f"--init {value}: ", advice)):
        train(tiny_config(store / "opinion", tmp_path, init=value), "")
