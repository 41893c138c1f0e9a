"""Trains only the rows of the tables that the data use.

A row that no text uses never receives a gradient, and Adam without weight decay leaves it exactly where it is. A small
student with only the used rows is therefore trained to the same weights as the whole one, several times faster on a
small task. Afterwards its rows are copied back.

The initial noise of an unused row would change the products of new texts, so such rows become neutral. Vectors that
start from the teacher or a file stay, because they have the token's meaning.

Shapes: K pairs, P pairs of neighbouring tokens of all rows, T tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from pipeline.arrays import Ints, Ragged
from pipeline.sets.token_vectors import VocabularyVectors
from student.data import Examples, Rows
from student.encoders.encoder import Encoder
from student.encoders.specs import Sums
from student.initial_weights.vectors import start_from_vectors
from student.model.architecture import EncoderConfig
from student.model.student import TaskStudent, default_device, share_hidden
from student.model.weights import save_sharing

C = TypeVar("C", bound=EncoderConfig)
H = TypeVar("H", bound=TaskStudent)
# A pair that occurs in one row only would memorise that row.
FEWEST_ROWS = 2
# Two ids of 32 bits fit one int64, which numpy sorts much faster than pairs.
BITS = 32


def active_ids(examples: Iterable[Rows], pad_id: int) -> Ints:
    """The ids that occur, sorted, with the padding among them."""
    # The padding is always included, because the small student's tables need a neutral row.
    parts = [part.flat for e in examples for part in e.sequences]
    return np.unique(np.concatenate([*parts, np.array([pad_id])]))


def neutralise_untrained(student: TaskStudent, *examples: Rows) -> None:
    """Makes rows neutral that these training rows do not use and that were never trained."""
    if not student.encoder.has_neutral_rows:
        return
    is_untrained_V = torch.ones(student.config.num_tokens, dtype=torch.bool)
    is_untrained_V[torch.from_numpy(active_ids(examples, student.config.pad_id))] = False
    student.encoder.neutralise(is_untrained_V)


@torch.no_grad()
def neutralise_unmoved(encoder: Encoder, start: Encoder, vectors: VocabularyVectors | None = None) -> None:
    """Makes rows neutral that did not change since the start, because no training row used them.

    Args:
        encoder: the trained encoder.
        start: the same encoder before training.
        vectors: the teacher's vectors from which it started. They stay if no training row used them.
    """
    is_unmoved_V = torch.ones(len(start.tables()[0].weight), dtype=torch.bool)
    for table, start_table in zip(encoder.tables(), start.tables(), strict=True):
        # A token is untrained only if all of its tables are unchanged: frozen tables never move.
        is_unmoved_V &= (table.weight.cpu() == start_table.weight).all(dim=1)
    # Neutral first, teacher's vectors second: matrices of unused tokens become the identity, vectors keep a meaning.
    encoder.neutralise(is_unmoved_V)
    if vectors is not None:
        start_from_vectors(encoder, vectors, is_unmoved_V)


def with_used_rows(config: C, encoder: Encoder) -> C:
    """Returns a student's configuration with the number of rows that are not neutral, if rows can be neutral."""
    if not encoder.has_neutral_rows:
        return config
    return config.model_copy(update={"used_rows": len(encoder.used_ids())})


def prune(student: H, active: Ints, encoder: Encoder | None = None) -> H:
    """Returns a student with only the active rows: its token k is the whole student's token ``active[k]``.

    Args:
        student: the whole one.
        active: the tokens that it keeps.
        encoder: the small encoder, if it exists for another student with the same encoder.
    """
    config, special_ids = student.config, getattr(student.config, "special_ids", None)
    # Sorted ids let `searchsorted` translate old into new numbers without a table of the whole vocabulary.
    changed: dict[str, Any] = {"vocabulary_size": len(active), "pad_id": int(np.searchsorted(active, config.pad_id))}
    if special_ids is not None:
        changed["special_ids"] = tuple(tuple(np.searchsorted(active, ids).tolist()) for ids in special_ids)
    small = type(student)(config.model_copy(update=changed), encoder)
    # A shared encoder has its rows already. Copying again would be wasted work.
    if encoder is None:
        small.encoder.copy_rows(student.encoder, torch.from_numpy(active), slice(None))
    small.head.load_state_dict(student.head.state_dict())
    return small


def renumber(rows: Examples, active: Ints) -> Examples:
    """Returns the same rows in the small student's ids."""
    ids2 = None if rows.ids2 is None else renumbered(rows.ids2, active)
    return replace(rows, ids1=renumbered(rows.ids1, active), ids2=ids2)


def renumbered(ids: Ragged, active: Ints) -> Ragged:
    """Returns sequences in the small student's ids."""
    return Ragged(np.searchsorted(active, ids.flat), ids.offsets)


def restore(student: TaskStudent, small: TaskStudent, active: Ints) -> None:
    """Copies the weights of the small student to the whole one."""
    student.encoder.copy_rows(small.encoder, slice(None), torch.from_numpy(active))
    student.head.load_state_dict(small.head.state_dict())


@dataclass(frozen=True)
class PrunedStudents:
    """Students, and for each a small one with only the used rows of the tables, which is trained instead.

    Attributes:
        students: the students with the whole vocabulary, which are saved.
        small: the small students in the same order. They share the first one's encoder.
        active: the token ids of the small tables' rows.
    """

    students: list[TaskStudent]
    small: list[TaskStudent]
    active: Ints

    @classmethod
    def of_rows(cls, students: list[TaskStudent], splits: Sequence[Mapping[str, Any]]) -> "PrunedStudents":
        """Returns the students together with small ones for the rows of all splits of each training."""
        # Dev rows count, too, because the small student must be able to read them during training.
        active = active_ids((rows for part in splits for rows in part.values()), students[0].config.pad_id)
        small: list[TaskStudent] = []
        for student in students:
            # The first student's small encoder is passed on, so that all tasks train the same tables.
            small.append(prune(student, active, small[0].encoder if small else None).to(default_device()))
        share_hidden(small)
        return cls(students, small, active)

    def restored(self, number: int) -> TaskStudent:
        """Returns a student with the weights of its small one."""
        student = self.students[number]
        restore(student, self.small[number], self.active)
        student.config = with_used_rows(student.config, student.encoder)
        return student

    def write(self, number: int, folder: Path) -> None:
        """Saves one student."""
        self.restored(number).save(folder)

    def write_all(self, folders: Sequence[Path]) -> None:
        """Saves every student, in the order of the folders."""
        whole = {folder: self.restored(number) for number, folder in enumerate(folders)}
        # transformers cannot read a shared encoder file, so each BERT's folder holds all of its weights.
        if self.students[0].config.is_hugging_face:
            for folder, student in whole.items():
                student.save(folder)
        else:
            is_rounded = self.students[0].config.weights == "rounded"
            save_sharing({folder: (student.config_json, student) for folder, student in whole.items()}, is_rounded)


def frequent_pairs(examples: Iterable[Rows], most: int) -> Ints:
    """Returns the pairs of neighbouring tokens that occur in the most training rows, at least in two.

    Args:
        examples: training rows, of several tasks if they share the pairs. Rows of weight 0 do not count.
        most: the maximum number of pairs.

    Returns: Ids, int64 [K, 2], ascending.
    """
    if not most:
        return np.zeros((0, 2), np.int64)
    pair_K, count_K = np.unique(np.concatenate([_pairs_of_rows(rows) for rows in examples]), return_counts=True)
    # Ties are broken by the pair's number, so that the same rows give the same pairs everywhere.
    kept = np.argsort(-count_K, kind="stable")[:most]
    pair_K = np.sort(pair_K[kept[count_K[kept] >= FEWEST_ROWS]])
    return np.stack([pair_K >> BITS, pair_K & (2**BITS - 1)], axis=1)


def with_bigrams(config: C, count: int) -> C:
    """Returns a student's configuration with the number of found pairs."""
    if not isinstance(config.encoder, Sums):
        return config
    return config.model_copy(update={"encoder": config.encoder.model_copy(update={"num_bigrams": count})})


def _pairs_of_rows(examples: Rows) -> Ints:
    """Each row's pairs, each once, as one number, int64 [P]."""
    # A row of weight 0 trains nothing, so its pairs would keep vectors of 0.
    counted = np.flatnonzero(examples.weight_N)
    pairs = []
    for ids in (part.take(counted) for part in examples.sequences):
        row_T = np.repeat(np.arange(len(ids.lengths)), ids.lengths)
        first_P = np.flatnonzero(row_T[1:] == row_T[:-1])
        pairs.append(np.stack([row_T[first_P], ids.flat[first_P] << BITS | ids.flat[first_P + 1]], axis=1))
    # Counting rows instead of occurrences keeps one long, repetitive text from deciding.
    return np.unique(np.concatenate(pairs), axis=0)[:, 1]
