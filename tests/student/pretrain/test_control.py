"""Frequencies of masked words, a head that starts at them, and losses without the context: by hand where possible."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from pipeline.sets.kinds.masked_words import MaskedWordSet
from student.lessons.masked_words import (
    control,
    evaluate_mlm,
    log_frequencies,
    others,
    read_pool,
    start_without_context,
)
from student.lessons.pretraining import new_student
from student.model.pretrained import MaskedWordStudent, build_masked_word_config
from student.pretrain_settings import PretrainSettings


@pytest.fixture
def token_set(token_store: Path) -> MaskedWordSet:
    return MaskedWordSet.open(token_store / "sampled")


def a_student(token_set: MaskedWordSet) -> MaskedWordStudent:
    flags = PretrainSettings.from_flags(set="sampled", matrix_size=3, vector_size=5, initializer_range=0.3)
    return new_student(MaskedWordStudent, build_masked_word_config(flags.encoder, token_set.record), flags.seed)


def masked_words(token_set: MaskedWordSet, split: str) -> list[int]:
    groups = [group for group, _ in token_set.groups(split)]
    words: list[int] = read_pool(token_set, 0, groups).rows.targets.flat.tolist()
    return words


def test_frequencies_are_counts_plus_one(token_set: MaskedWordSet) -> None:
    words, size = masked_words(token_set, "train"), token_set.record.codec.vocabulary_size
    count = Counter(words)
    expected = [np.log((count[token] + 1) / (len(words) + size)) for token in range(size)]
    assert log_frequencies(token_set).tolist() == pytest.approx(expected, rel=1e-6)
    assert float(log_frequencies(token_set).exp().sum()) == pytest.approx(1)


def test_a_student_starts_as_the_unigram_table(token_set: MaskedWordSet) -> None:
    log_frequency_V, words = log_frequencies(token_set), masked_words(token_set, "validation")
    student = a_student(token_set)
    start_without_context(student.head, log_frequency_V)
    by_hand = -float(np.mean([float(log_frequency_V[word]) for word in words]))
    losses = control(student, token_set, log_frequency_V)
    assert evaluate_mlm(student, token_set, "validation")["gold_loss"] == pytest.approx(by_hand)
    assert losses == pytest.approx(
        {"unigram_loss": by_hand, "mean_features_loss": by_hand, "other_features_loss": by_hand, "context_gain": 0},
        abs=1e-6,
    )


def test_constant_features_are_their_own_control(token_set: MaskedWordSet) -> None:
    student = a_student(token_set)
    student.encoder.neutralise(torch.ones(student.config.num_tokens, dtype=torch.bool))
    losses = control(student, token_set, log_frequencies(token_set))
    own = evaluate_mlm(student, token_set, "validation")["gold_loss"]
    assert losses["mean_features_loss"] == pytest.approx(own, rel=1e-5)
    assert losses["other_features_loss"] == pytest.approx(own, rel=1e-5)
    assert losses["context_gain"] == pytest.approx(losses["unigram_loss"] - own)


def test_the_control_by_plain_torch(token_set: MaskedWordSet) -> None:
    """All held-out positions at once, with the mean, and with the features of every other position in turn."""
    student = a_student(token_set)
    with torch.no_grad():
        student.head.weight.normal_()
    losses = control(student, token_set, log_frequencies(token_set))
    groups = [group for group, _ in token_set.groups("validation")]
    pool = read_pool(token_set, student.config.pad_id, groups)
    batch = pool.batch(list(range(len(pool.rows))))
    with torch.no_grad():
        features_PF = student(batch.ids_BL, batch.row_P, batch.place_P)
        mean_PF = features_PF.mean(dim=0, keepdim=True).expand_as(features_PF)
        mean = float(functional.cross_entropy(student.head(mean_PF), batch.target_P))
        shifted = [
            float(functional.cross_entropy(student.head(features_PF.roll(k, 0)), batch.target_P))
            for k in range(1, len(features_PF))
        ]
    assert losses["mean_features_loss"] == pytest.approx(mean, rel=1e-2)  # bf16 on some processors
    assert losses["other_features_loss"] == pytest.approx(np.mean(shifted), abs=5 * float(np.std(shifted)))
    assert abs(losses["other_features_loss"] - mean) > 5 * np.std(shifted)


@pytest.mark.parametrize("number", [2, 3, 50])
def test_others_are_others_each_once(number: int) -> None:
    other_P = others(number, np.random.default_rng(1))
    assert (other_P != np.arange(number)).all()
    assert sorted(other_P) == list(range(number))
