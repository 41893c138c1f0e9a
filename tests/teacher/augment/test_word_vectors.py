"""Files of word vectors, and the nearest words, computed by hand."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import DataError
from teacher.augment import candidates
from teacher.augment.candidates import read_vectors
from tests.helpers.messages import naming

# directions in degrees, and lengths that a cosine must not care about; GloVe has words with spaces, too
PLACES = {"north": (90, 3), "east": (0, 1), "so so": (12, 5), "The": (75, 0.5), "the": (50, 2), "west": (160, 9)}
LINES = [
    f"{word} {length * np.cos(np.radians(angle)):.6f} {length * np.sin(np.radians(angle)):.6f}"
    for word, (angle, length) in PLACES.items()
]
SEVEN = "\n".join([*LINES, "nowhere 0 0", ""])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.txt"
    path.write_text(SEVEN)
    return path


def test_vectors_have_length_one_and_zeros_are_left_out(file: Path) -> None:
    found = read_vectors(file)
    assert found.words == [*PLACES]
    assert found.vectors_WD.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found.vectors_WD, axis=1), 1, atol=1e-6)
    angles = np.degrees(np.arctan2(found.vectors_WD[:, 1], found.vectors_WD[:, 0]))
    np.testing.assert_allclose(angles, [90, 0, 12, 75, 50, 160], atol=1e-3)


def test_nearest_words_by_cosine_without_the_word_itself(file: Path) -> None:
    found = read_vectors(file).neighbours(["east", "north", "the", "so so", "east"], 3)
    assert found == {
        "east": ["so so", "the", "The"],  # 12, 50 and 75 degrees away
        "north": ["The", "the", "west"],  # 15, 40, 70
        "the": ["The", "so so", "north"],  # 25, 38, 40
        "so so": ["east", "the", "The"],  # 12, 38, 63
    }


def test_a_word_is_looked_up_as_written_then_in_small_letters(file: Path) -> None:
    found = read_vectors(file).neighbours(["The", "EAST", "unknown"], 2)
    assert found == {"The": ["north", "the"], "EAST": ["so so", "the"]}


def test_no_more_neighbours_than_there_are_other_words(file: Path) -> None:
    found = read_vectors(file).neighbours(["east"], 50)["east"]
    assert sorted(found) == sorted({*PLACES} - {"east"})


def test_a_word_without_a_direction_has_no_neighbours(file: Path) -> None:
    assert read_vectors(file).neighbours(["nowhere"], 2) == {}
    file.write_text("nowhere 0 0\n")
    with pytest.raises(DataError, match=naming("--word-vectors", "vectors.txt: ")):
        read_vectors(file)


def test_large_numbers_keep_their_direction(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("\ufeffbig 3e38 3e38\nsmall 1e-30 1e-30\nup 0 1\n", encoding="utf-8")
    found = read_vectors(tmp_path / "v.txt")
    assert found.words == ["big", "small", "up"]  # without the byte order mark
    np.testing.assert_allclose(found.vectors_WD[:2], [[0.5**0.5] * 2] * 2, rtol=1e-6)


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_many_words_at_once_are_as_one_by_one(file: Path, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "QUERIES_AT_ONCE", at_once)
    known, words = read_vectors(file), ["east", "north", "no word", "The", "so so"]
    assert known.neighbours(words, 3) == {w: n for word in words for w, n in known.neighbours([word], 3).items()}
    assert known.neighbours([], 3) == {}


def test_gzipped_and_word2vec_files_read_the_same(file: Path, tmp_path: Path) -> None:
    plain = read_vectors(file)
    (tmp_path / "word2vec.txt").write_text("7 2\n" + SEVEN.replace("\n", " \n"))  # its lines end with a space
    with gzip.open(tmp_path / "vectors.txt.gz", "wt") as stream:
        stream.write(SEVEN)
    for name in ("word2vec.txt", "vectors.txt.gz"):
        other = read_vectors(tmp_path / name)
        assert other.words == plain.words
        np.testing.assert_array_equal(other.vectors_WD, plain.vectors_WD)


def test_of_a_word_twice_the_first_counts(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("up 0 1\nup 1 0\nhigh 0.1 1\nright 1 0.1\n")
    assert read_vectors(tmp_path / "v.txt").neighbours(["up"], 1) == {"up": ["high"]}


def test_only_the_commonest_words_are_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert candidates.MAX_WORDS == 100_000  # as TinyBERT's code
    monkeypatch.setattr(candidates, "MAX_WORDS", 3)
    file.write_text(SEVEN + "this line would be wrong\n")
    assert read_vectors(file).words == ["north", "east", "so so"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("up 0 1\nleft -1\n", "line 2: "),
        ("up 0 1\n-1 0\n", "line 2: "),
        ("up 0 1\nleft -1 x\n", "line 2: "),
        ("up 0 1\nleft nan 0\n", "line 2: "),
        ("up 0 1\nleft 1e300 0\n", "line 2: "),
        ("2 2\nup 0 1\nleft inf 0\n", "line 3: "),
        ("up 0 1\n\nleft 1 0\n", "line 2: "),
        ("up\n", "line 1: "),
        ("", ""),
        ("5 2\n", ""),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "bad.txt").write_text(text)
    with pytest.raises(DataError, match=naming("--word-vectors", f"bad.txt: {place}")):
        read_vectors(tmp_path / "bad.txt")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 1 2\n")
    (tmp_path / "plain.gz").write_text(SEVEN)
    (tmp_path / "torn.gz").write_bytes(gzip.compress(SEVEN.encode())[:-20])
    (tmp_path / "damaged.gz").write_bytes(gzip.compress(SEVEN.encode())[:10] + b"\xff" * 50)
    for name in ("latin.txt", "plain.gz", "torn.gz", "nowhere.txt", ".", "damaged.gz"):
        with pytest.raises(DataError, match=naming(f"--word-vectors {tmp_path / name}: ")):
            read_vectors(tmp_path / name)
