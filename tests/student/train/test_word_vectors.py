"""Vectors that start from a file of words: which tokens get which numbers, worked out by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from pipeline.errors import ConfigError, DataError
from pipeline.sets.kinds.examples import ExampleSet
from student.encoders.encoder import Encoder
from student.initial_weights.words import start_from_words
from student.model.build_config import build_config
from student.settings import TrainSettings
from student.train import train
from tests.helpers.messages import naming
from tests.helpers.shipped_tasks import facts
from tests.helpers.students import tiny_config, weights
from tests.helpers.toy_students import lstm_student, student

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
