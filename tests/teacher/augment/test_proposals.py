"""Candidates from a masked LM with known predictions: its inputs, and what is used of its outputs."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece

from pipeline.errors import TeacherError
from teacher.augment.candidates import WordVectors, propose, whole_words
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
