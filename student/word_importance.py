"""``distill masked-words``: do students find the words important that their teacher does?

A set of `mask-each` has the teacher's answers to rows with each word masked. Students predict the same rows without
each word. A word's importance is the entropy without it less the entropy of the whole row, or for a score the absolute
change. Shapes: N rows, W words of a row, S shuffles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from pipeline.arrays import Floats, Floats64
from pipeline.errors import ConfigError, DataError, IntegrityError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.open import find_set
from pipeline.sets.record_parts import Setting
from pipeline.tasks.intervals import mean_interval, percentile_interval
from pipeline.tasks.metrics import spearmanr
from pipeline.tasks.target import Target, predicted_scores
from pipeline.tasks.task import MASK
from student.lessons.examples import check_readable
from student.predict.predictor import Predictor
from student.run_settings import MaskedWordsSettings
from student.word_effects import Word, entropies, without_each_word

METHOD = "mask-each"
COLUMNS = ("source_row", "variant", "sentence1", "sentence2", "logits")
# A rank correlation needs two words, and a row with one word agrees by definition.
FEWEST_WORDS = 2
# A fixed seed gives everyone the same baseline for the same set.
SHUFFLES, SEED = 100, 0
RESULT_COLUMNS = ("run", "rank correlation (95 %)", "same word", "shuffled (95 %)", "same word")


@dataclass(frozen=True)
class MaskedRow:
    """A row of the set.

    Attributes:
        source_row: its number.
        texts: its one or two sentences.
        words: the masked words.
        importance_W: the importance of each word for the teacher.
    """

    source_row: int
    texts: tuple[str, ...]
    words: tuple[Word, ...]
    importance_W: Floats64


@dataclass(frozen=True)
class MaskedWords:
    """The result of a comparison of word importance.

    Attributes:
        set_name: name of the set.
        rows: the rows with at least two words.
        students: the importance_W of each row's words, for each run.
        results: for each run ``rank_correlation`` (Spearman's, the mean over rows) and its bootstrap ``interval`` (None
            if all rows have the same correlation), and ``same_word`` (the share of rows with the same most important
            word as the teacher). ``shuffled`` has the same numbers with the teacher's words of each row in random
            order: the mean over shuffles, and for the correlation the ``interval`` of 95 % of them.
    """

    set_name: str
    rows: list[MaskedRow]
    students: dict[str, list[Floats64]]
    results: dict[str, dict[str, Any]]

    @property
    def amount(self) -> str:
        """The number of compared words and rows."""
        return f"{sum(len(row.words) for row in self.rows):,} words of {len(self.rows):,} rows"


def result_rows(compared: MaskedWords) -> list[tuple[Any, ...]]:
    """The results for people, by `RESULT_COLUMNS`."""
    return [(run, *_cells(of), *_cells(of["shuffled"])) for run, of in compared.results.items()]


def _cells(result: dict[str, Any]) -> tuple[str, float]:
    ends = " [{:.2f}, {:.2f}]".format(*result["interval"]) if result["interval"] else ""
    return f"{result['rank_correlation']:.3f}{ends}", round(result["same_word"], 3)


def masked_words(config: MaskedWordsSettings) -> MaskedWords:
    """Compares runs with the teacher of a set.

    Raises:
        ConfigError: if the set is not one of `mask-each`.
        DataError: if it lacks variants, or has no row with two words.
        FingerprintMismatchError: if a student's answers have another meaning than the set's.
    """
    logit_set = ExampleSet.open(find_set(config.set, config.store), config.allow_unverified)
    rows = [row for row in read_masked(logit_set) if len(row.words) >= FEWEST_WORDS]
    if not rows:
        raise DataError(f"{logit_set.root}: no row has {FEWEST_WORDS} words, so no row can be compared")
    students = {run: _importance_to(run, logit_set, rows) for run in config.runs}
    teacher = [row.importance_W for row in rows]
    return MaskedWords(logit_set.name, rows, students, {run: compared(teacher, of) for run, of in students.items()})


def read_masked(logit_set: ExampleSet) -> list[MaskedRow]:
    """Returns the rows of a set of `mask-each` with the teacher's importance of each word.

    Raises:
        ConfigError: if it is another set.
        IntegrityError: if its record lacks the numbering of its variants.
        DataError: if a row lacks variants.
    """
    augmentation = logit_set.record.augmentation
    if augmentation is None or augmentation.method != METHOD:
        advice = f"`distill teacher-dump --augment {METHOD}` writes one that has"
        raise ConfigError(f"--set {logit_set.root}: has no variants with each word masked. {advice}")
    if not isinstance(augmentation.settings.get("num_variants"), int):
        raise IntegrityError(f"{logit_set.root}: its record lacks the number of masked words per sentence")
    # Rows are sorted by source row and variant, which `groupby` relies on.
    rows = logit_set.read(augmentation.split, COLUMNS).to_pylist()
    by_source_row = groupby(rows, key=lambda row: row["source_row"])
    return [masked_row(logit_set, augmentation.settings, list(group)) for _, group in by_source_row]


def masked_row(logit_set: ExampleSet, settings: dict[str, Setting], group: list[dict[str, Any]]) -> MaskedRow:
    """Returns a row with its variants, joined by their numbers."""
    variants, most = {row["variant"]: row for row in group}, int(settings["num_variants"])
    whole = variants[0]
    texts = tuple(whole[name] for name in ("sentence1", "sentence2") if whole[name] is not None)
    words, masked = [], []
    for side, text in enumerate(texts):
        for place, word in enumerate(text.split()[:most]):
            # The number of a variant encodes sentence and place, because a set stores no positions of masked words.
            number = side * most + place + 1
            # A word that is the mask token itself has no variant, since masking it would change nothing.
            if number not in variants and word != settings.get("mask_token", MASK):
                row = whole["source_row"]
                raise DataError(f"{logit_set.root}: source row {row} has no variant {number}, without {word!r}")
            words.append(Word(0, side, place, word))
            masked.append(variants.get(number, whole)["logits"])
    logits_1C, logits_WC = np.array([whole["logits"]], np.float32), np.array(masked, np.float32)
    if not words:
        return MaskedRow(whole["source_row"], texts, (), np.empty(0))
    importance_W = importance(logit_set.record.target, logits_1C, logits_WC)
    return MaskedRow(whole["source_row"], texts, tuple(words), importance_W)


def importance(target: Target, whole_WC: Floats, without_WC: Floats) -> Floats64:
    """Returns the importance of words [W] from the logits of their inputs with and without them."""
    # A score has no entropy, so its importance is how far it moves.
    if target.has_labels:
        return entropies(target, without_WC) - entropies(target, whole_WC)
    moved_W = predicted_scores(target, without_WC) - predicted_scores(target, whole_WC)
    return np.abs(moved_W.astype(np.float64))


def _importance_to(run: str, logit_set: ExampleSet, rows: list[MaskedRow]) -> list[Floats64]:
    """Returns the importance_W of the words of each row for a student."""
    predictor = Predictor(run)
    check_readable(predictor.student.config, logit_set)
    first = [row.texts[0] for row in rows]
    second = [row.texts[1] for row in rows] if logit_set.record.is_pair else None
    # The student leaves words out while the teacher saw `[MASK]`: most students never trained on that token.
    words, without_WC = without_each_word(predictor.logits, first, second)
    whole_WC = predictor.logits(first, second)[[word.row for word in words]]
    values = importance(logit_set.record.target, whole_WC, without_WC).tolist()
    by_word = dict(zip(words, values, strict=True))
    return [np.array([by_word[word._replace(row=n)] for word in row.words]) for n, row in enumerate(rows)]


def compared(teacher: Sequence[Floats64], student: Sequence[Floats64]) -> dict[str, Any]:
    """Compares the importance of words row by row. See `MaskedWords.results`."""
    random = np.random.default_rng(SEED)
    correlation_N = np.array([spearmanr(np.stack([a, b])[:, None])[0] for a, b in zip(teacher, student, strict=True)])
    # The most important word is what people look at, so its agreement is reported beside the correlation.
    is_same_N = np.array([a.argmax() == b.argmax() for a, b in zip(teacher, student, strict=True)])
    correlation_NS, is_same_NS = [], []
    for a_W, b_W in zip(teacher, student, strict=True):
        # Shuffling words within a row keeps the row's length and values, so only the order is tested.
        a_SW = random.permuted(np.tile(a_W, (SHUFFLES, 1)), axis=1)
        correlation_NS.append(spearmanr(np.stack([a_SW, np.tile(b_W, (SHUFFLES, 1))])))
        is_same_NS.append(a_SW.argmax(axis=1) == b_W.argmax())
    shuffled_S = np.mean(correlation_NS, axis=0)
    return {
        "rank_correlation": float(correlation_N.mean()),
        "interval": mean_interval(correlation_N),
        "same_word": float(is_same_N.mean()),
        "shuffled": {
            "rank_correlation": float(shuffled_S.mean()),
            "interval": percentile_interval(shuffled_S),
            "same_word": float(np.mean(is_same_NS)),
        },
    }
