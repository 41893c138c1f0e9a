"""Candidates from a masked LM with known predictions, and the nearest words in files of vectors, by hand."""

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece

from pipeline.errors import DataError, TeacherError
from teacher.augment import candidates
from teacher.augment.candidates import WordVectors, propose, read_vectors, whole_words
from teacher.augment.editors import Site
from teacher.models.masked_lm import MaskedLm, MlmTokenizer
from tests.helpers.messages import naming

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, _, CLS, SEP, MASK = range(5)
WORDS = ["the", "dog", "cat", "un", "##happy", "bird", ",", "##s", "and", "fox", "not"]
VOCABULARY = [*SPECIAL, *WORDS]
ID = {word: number for number, word in enumerate(VOCABULARY)}
EXTRA = 2  # outputs that no token has, as models padded to a round number have


class Ramp(torch.nn.Module):
    """Gives token v the logit v everywhere, 100 more if it is in the second part. Records its inputs."""

    def __init__(self, logit: float | None = None) -> None:
        super().__init__()
        size = len(VOCABULARY) + EXTRA
        self.decoder = torch.nn.Linear(size, size, bias=False)
        self.decoder.weight.data = torch.eye(size)
        self.ramp = torch.arange(size, dtype=torch.float32)
        if logit is not None:
            self.ramp[7] = logit
        self.asked: list[tuple[list[int], list[int]]] = []

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.decoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> Any:
        assert input_ids.shape == attention_mask.shape == token_type_ids.shape
        assert torch.equal(attention_mask.bool(), input_ids != PAD)
        assert not token_type_ids[input_ids == PAD].any()
        scores_BLV = self.ramp.repeat(*input_ids.shape, 1)
        for row, (ids, types) in enumerate(zip(input_ids, token_type_ids, strict=True)):
            self.asked.append((ids[ids != PAD].tolist(), types[ids != PAD].tolist()))
            scores_BLV[row, :, ids[types == 1]] += 100
        return SimpleNamespace(logits=self.decoder(scores_BLV))


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(WordPiece(ID, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    return tokenizer


def ramp_lm(model: Ramp | None = None, tokenizer: Tokenizer | None = None) -> MaskedLm:
    tokens = MlmTokenizer(tokenizer or make_tokenizer(), PAD, MASK, True, tuple(range(5)), ([CLS], [SEP]))
    return MaskedLm("ramp", None, model or Ramp(), tokens)


def ask_ramp(
    *sentences: str, k: int = 4, longest: int = 64, vectors: WordVectors | None = None
) -> tuple[list[list[Site]], list[tuple[list[int], list[int]]]]:
    """The sites of sentences, and the inputs of the model, in the order of the pieces."""
    lm = ramp_lm()
    with torch.no_grad():
        sites = propose(lm, whole_words(lm), vectors, sentences, k, longest)
    return sites, sorted(lm.model.asked, key=lambda asked: asked[0].index(MASK))


def test_no_piece_of_a_word_and_no_special_token_is_a_word() -> None:
    pieces = {*SPECIAL, "##happy", "##s"}
    assert whole_words(ramp_lm()) == [None if word in pieces else word for word in VOCABULARY] + [None] * EXTRA


def test_a_tokenizer_without_word_pieces_is_refused() -> None:
    with pytest.raises(TeacherError, match=naming("--masked-lm ramp: ", "BPE", "WordPiece")):
        whole_words(ramp_lm(tokenizer=Tokenizer(BPE())))


def test_the_masked_sentence_precedes_the_original() -> None:
    _, asked = ask_ramp("The dog , and the CAT")
    sentence = [ID[word] for word in ("the", "dog", ",", "and", "the", "cat")]
    first = [CLS, sentence[0], MASK, *sentence[2:], SEP, *sentence, SEP]  # only "dog" and "CAT" may be replaced
    second = [CLS, *sentence[:5], MASK, SEP, *sentence, SEP]
    types = [0] * 8 + [1] * 7
    assert asked == [(first, types), (second, types)]


def test_the_best_k_hold_no_pieces_but_the_word_itself() -> None:
    # by falling score: dog and [SEP] of the second part; two outputs without a token; not, fox, and, ##s, ","
    for k, expected in [(1, ["dog"]), (4, ["dog"]), (5, ["dog", "not"]), (7, ["and", "dog", "fox", "not"])]:
        assert ask_ramp("dog", k=k)[0] == [[Site((0, 3), expected)]]
    assert ask_ramp("dog", k=8)[0] == ask_ramp("dog", k=7)[0]  # the eighth is "##s"
    assert ask_ramp("dog", k=9)[0] == [[Site((0, 3), [",", "and", "dog", "fox", "not"])]]  # punctuation stays
    whole = sorted({*WORDS} - {"##s", "##happy"})
    assert ask_ramp("dog", k=1000)[0] == [[Site((0, 3), whole)]]


def test_a_word_with_nothing_but_pieces_to_choose_from_is_kept() -> None:
    lm = ramp_lm()
    with torch.no_grad():
        assert propose(lm, [None] * lm.vocabulary_size, None, ["dog"], 5, 64) == [[]]


def test_spans_are_those_of_the_text_as_it_is_written() -> None:
    text = '  The "DOG"\tdon\'t bird,the  Fox'
    (sites,), _ = ask_ramp(text)
    assert [text[slice(*site.span)] for site in sites] == ["DOG", "bird", "Fox"]


def test_no_question_for_sentences_without_words_to_replace() -> None:
    sites, asked = ask_ramp("the not 's", "", "un 42 !", k=6)
    assert sites == [[], [], [Site((0, 2), ["not", "un"])]]  # 42 is one piece, but not of letters
    assert len(asked) == 1


def test_words_of_several_pieces_are_for_the_word_vectors() -> None:
    vectors_WD = np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [0, 1]], dtype=np.float32)
    vectors = WordVectors(["unhappy", "sad", "low", "dog"], vectors_WD)
    (sites,), asked = ask_ramp("Unhappy dog and dogs", k=2, vectors=vectors)
    # "dogs" has no vector; "dog" is one piece, and so asked about in the presence of all pieces of the others
    assert sites[0] == Site((0, 7), ["low", "sad"])
    assert [site.span for site in sites] == [(0, 7), (8, 11)]
    sentence = [ID[piece] for piece in ("un", "##happy", "dog", "and", "dog", "##s")]
    assert [ids for ids, _ in asked] == [[CLS, *sentence[:2], MASK, *sentence[3:], SEP, *sentence, SEP]]
    assert [site.span for site in ask_ramp("Unhappy dog and dogs")[0][0]] == [(8, 11)]  # without vectors kept


def test_long_sentences_are_seen_around_each_word() -> None:
    words = ["dog", "cat", "bird", "fox", "and", "dog", "cat"]
    (sites,), asked = ask_ramp(" ".join(words), longest=10)  # 10 = 3 special tokens + 2 windows of 3, and one to spare
    assert [site.span for site in sites] == [(0, 3), (4, 7), (8, 12), (13, 16), (21, 24), (25, 28)]
    ids = [ID[word] for word in words]
    windows = {0: 0, 1: 0, 2: 1, 3: 2, 5: 4, 6: 4}  # where the window of each word starts
    expected = []
    for place, start in windows.items():
        window = ids[start : start + 3]
        masked = [MASK if start + n == place else piece for n, piece in enumerate(window)]
        expected.append(([CLS, *masked, SEP, *window, SEP], [0] * 5 + [1] * 4))
    assert sorted(asked) == sorted(expected)


@pytest.mark.parametrize("longest", [8, 9, 16, 17, 128])
def test_no_input_is_longer_than_the_limit(longest: int) -> None:
    (sites,), asked = ask_ramp(" ".join(["dog"] * 40), longest=longest)
    assert len(sites) == len(asked) == 40
    assert longest - 1 <= max(len(ids) for ids, _ in asked) <= longest or longest == 128


def test_other_sentences_have_no_say_in_the_candidates() -> None:
    sentences = ["dog and fox", "the bird , cat", "dog dog dog dog dog dog dog dog dog dog", "fox"]
    together = ask_ramp(*sentences)[0]
    assert together == [ask_ramp(sentence)[0][0] for sentence in sentences]
    assert [len(sites) for sites in together] == [2, 2, 10, 1]


@pytest.mark.parametrize("logit", [float("nan"), float("inf")])
def test_a_model_that_says_nan_is_stopped(logit: float) -> None:
    lm = ramp_lm(Ramp(logit))
    with torch.no_grad(), pytest.raises(TeacherError, match=naming("--masked-lm ramp: ", "NaN", "--precision")):
        propose(lm, whole_words(lm), None, ["dog"], 3, 64)


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
