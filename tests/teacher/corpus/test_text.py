import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError, DataError
from teacher.corpus.sequences import MaskingPlan
from teacher.corpus.text import SPLITS, Text, in_split, masking_plan
from teacher.models.masked_lm import MlmTokenizer, load_mlm_tokenizer
from teacher.settings import Masking
from teacher.tiny import create_tiny_bert
from tests.helpers.dumps import corpus_config, text_for
from tests.helpers.messages import naming

VALIDATION_EVERY = 5  # of corpus_config


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> MlmTokenizer:
    """Knows a few words."""
    folder = tmp_path_factory.mktemp("words")
    create_tiny_bert(folder, ["often seldom once never held ."], hidden_size=32, num_layers=1)
    return load_mlm_tokenizer(str(folder), None, 32)


def text_of(folder: Path, documents: list[str], **changes: Any) -> Text:
    path = folder / "text.txt"
    path.write_text("".join(f"{document}\n" for document in documents))
    config = corpus_config(folder, folder / "store", data=path, **{"min_seq_length": 3} | changes)
    return text_for(config)


def pieces(text: Text, tokens: MlmTokenizer, split: str, start: int, stop: int) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    for part in text.sequences(tokens, split, start, stop):
        texts = [tokens.tokenizer.decode(part.ids[k].tolist()) for k in range(len(part))]
        found += zip(part.source_row_N.tolist(), part.piece_N.tolist(), texts, strict=True)
    return found


def weight(plan: MaskingPlan, tokens: MlmTokenizer, word: str) -> float:
    return float(plan.weight_V[tokens.tokenizer.token_to_id(word)])


@pytest.mark.parametrize("every", [2, 5, 200])
def test_every_so_many_documents_one_is_held_out(every: int) -> None:
    assert [row for row in range(1000) if in_split(row, "validation", every)] == list(range(0, 1000, every))
    for row in range(1000):
        assert in_split(row, "train", every) != in_split(row, "validation", every)


@pytest.mark.parametrize(("start", "stop"), [(0, 23), (1, 5), (5, 6), (6, 21), (3, 3)])
def test_documents_of_a_split_are_counted(tmp_path: Path, start: int, stop: int) -> None:
    text = text_of(tmp_path, ["Often."] * 23)
    for split in SPLITS:
        members = [row for row in range(start, stop) if in_split(row, split, VALIDATION_EVERY)]
        assert text.count(split, start, stop) == len(members)


def test_splits_share_out_the_sentences(tmp_path: Path, tokens: MlmTokenizer) -> None:
    text = text_of(tmp_path, [f"Often {'seldom ' * k}. Once." for k in range(23)])
    found = {split: pieces(text, tokens, split, 0, 23) for split in SPLITS}
    assert {row for row, _, _ in found["validation"]} == {0, 5, 10, 15, 20}
    together = sorted(found["validation"] + found["train"])
    assert [row for row, piece, _ in together if piece == 0] == list(range(23))
    assert [sum(words.count("seldom") for row, _, words in together if row == k) for k in range(23)] == list(range(23))


@pytest.mark.parametrize("split", SPLITS)
def test_sentences_of_ranges_make_up_those_of_the_whole(
    work: Path, corpus_file: Path, tokens: MlmTokenizer, split: str
) -> None:
    text = text_for(corpus_config(work, work / "unused", data=corpus_file))
    ends = [0, 17, 18, 40, 60]
    found = [pieces(text, tokens, split, low, high) for low, high in itertools.pairwise(ends)]
    assert [*itertools.chain(*found)] == pieces(text, tokens, split, 0, 60) != []


def test_blocks_hold_no_text_of_the_other_split(tmp_path: Path, tokens: MlmTokenizer) -> None:
    documents = ["held" if k % VALIDATION_EVERY == 0 else "often seldom" for k in range(40)]
    text = text_of(tmp_path, documents, packing="blocks", max_seq_length=12)
    words = {split: Counter(" ".join(p[2] for p in pieces(text, tokens, split, 0, 40)).split()) for split in SPLITS}
    assert words == {"validation": {"held": 8}, "train": {"often": 32, "seldom": 32}}


def test_lengths_count_special_tokens(tmp_path: Path, tokens: MlmTokenizer) -> None:
    documents = ["held", "often", "often once", "often once never held", "often once never held seldom"]
    text = text_of(tmp_path, documents, min_seq_length=4, max_seq_length=6)
    assert tokens.num_special == 2
    assert pieces(text, tokens, "train", 0, 5) == [
        (2, 0, "often once"),
        (3, 0, "often once never held"),
        (4, 0, "often once never held"),
    ]


def test_frequencies_are_those_of_the_training_documents(tmp_path: Path, tokens: MlmTokenizer) -> None:
    rows = ["held held held"] + ["often often seldom often"] * 4  # every 5th is held out
    text = text_of(tmp_path, rows * 8 + ["never", "once"])
    plan = masking_plan(text, tokens, Masking(masking="frequency", seed=7, mlm_probability=0.3), 3)
    counts = {"often": 96, "seldom": 32, "once": 1, "never": 0, "held": 0, ".": 0}
    for word, count in counts.items():
        assert weight(plan, tokens, word) == pytest.approx(max(count, 1) ** -0.7)
    for special in tokens.special_ids:
        assert plan.weight_V[special] == 0
    assert len(tokens.special_ids) == 5
    assert (plan.seed, plan.num_copies, plan.probability) == (7, 3, 0.3)
    assert plan.mask_id == tokens.tokenizer.token_to_id("[MASK]")


def test_uniform_plan_weighs_all_but_special_tokens_alike(tmp_path: Path, tokens: MlmTokenizer) -> None:
    plan = masking_plan(text_of(tmp_path, ["often", "once"]), tokens, Masking())
    assert np.flatnonzero(plan.weight_V == 0).tolist() == sorted(tokens.special_ids)
    assert np.all(plan.weight_V[plan.weight_V > 0] == 1)


def test_at_most_50000_documents_are_counted_evenly(tmp_path: Path, tokens: MlmTokenizer) -> None:
    text = text_of(tmp_path, ["often"] * 30_000 + ["seldom"] * 30_000, validation_every=200)
    plan = masking_plan(text, tokens, Masking(masking="frequency"))
    # 50 blocks of 1000 documents, 25 in each half, without the 5 of each that are held out
    for word in ("often", "seldom"):
        assert weight(plan, tokens, word) == pytest.approx((25 * 995) ** -0.7)


def test_documents_beyond_the_maximum_are_not_counted(tmp_path: Path, tokens: MlmTokenizer) -> None:
    text = text_of(tmp_path, ["held", "often", "often", "seldom", "once"] * 2, max_documents=3)
    plan = masking_plan(text, tokens, Masking(masking="frequency"))
    assert weight(plan, tokens, "often") == pytest.approx(2**-0.7)
    assert weight(plan, tokens, "seldom") == 1
    assert text.documents.num_documents == 3


def test_teacher_is_the_one_named_or_the_corpus_own(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    def name(**changes: Any) -> tuple[str, str | None]:
        config = corpus_config(work, tmp_path, data=corpus_file, **changes)
        return config.run.teacher.teacher_for(text_for(config).corpus)

    assert name(model_name_or_path="me/mine", model_revision="v2") == ("me/mine", "v2")
    assert name(corpus="wikitext", model_name_or_path=None) == ("bert-base-uncased", None)
    assert name(corpus="wikitext", model_name_or_path=None, model_revision="v2") == ("bert-base-uncased", "v2")
    with pytest.raises(ConfigError, match=naming("--model-name-or-path: ", "'tiny'")):
        name(model_name_or_path=None)


def test_text_that_cannot_be_opened(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    for changes, error, named in (
        ({"min_seq_length": 33}, ConfigError, ("--min-seq-length: 33", "--max-seq-length 32")),
        ({"corpus": "wiki", "data": None}, ConfigError, ("--corpus: ", "'wiki'", "'wikitext'")),
        ({"data": tmp_path / "gone"}, DataError, ("gone: ",)),
    ):
        with pytest.raises(error, match=naming(*named)):
            text_for(corpus_config(work, tmp_path, **{"data": corpus_file} | changes))
