"""The vocabulary of a student: its teacher's, BERT's uncased one, or one learned from the training texts.

Sets contain texts, so a student may read them in another vocabulary than its teacher, and the engine reads only
WordPiece.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pipeline import console
from pipeline.errors import ConfigError
from pipeline.file_names import CONFIG_FILE, TOKENIZER_FILE
from pipeline.sets.open import LogitSet
from pipeline.text.tokenizer import bert_uncased, load_tokenizer
from pipeline.text.vocabulary import Vocabulary, learned_vocabulary, usual_vocabulary
from pipeline.text.wordpiece.compiled_wordpiece import is_compatible
from student.model.config_file import read_encoder_config
from student.source_settings import SHIPPED, TEACHER

L = TypeVar("L", bound=LogitSet)
# Students of a sweep often share a vocabulary, which takes as long as a small training to learn.
_learned: dict[tuple[Any, ...], Vocabulary] = {}


def in_vocabulary(
    sets: Sequence[L], asked: str | None, start: Path | None = None, needs_teachers: str | None = None
) -> list[L]:
    """Returns sets whose rows are read in the vocabulary of a student, or of several that share an encoder.

    Args:
        sets: the sets.
        asked: the value of ``--vocabulary``.
        start: the folder of ``--init``, whose vocabulary is the default.
        needs_teachers: a flag that needs the teacher's vocabulary, if one is given.

    Raises:
        ConfigError: if a flag needs the teacher's vocabulary, but the user chose another one.
    """
    if needs_teachers is not None and asked not in (None, TEACHER):
        raise ConfigError(
            f"--vocabulary {asked}: {needs_teachers} belongs to the tokens of the teacher. Use --vocabulary {TEACHER}."
        )
    if asked == TEACHER or needs_teachers is not None:
        return list(sets)
    if asked is None and start is not None and (start / CONFIG_FILE).is_file():
        config = read_encoder_config(start / CONFIG_FILE)
        return [as_run_reads(one, start, config) for one in sets]
    hashes = {one.record.tokenizer.sha256 for one in sets}
    if asked is None and len(hashes) == 1 and is_compatible(json.loads(sets[0].tokenizer_json())):
        return list(sets)
    key = (asked, *(one.record.fingerprint for one in sets))
    if key not in _learned:
        _learned[key] = _made(sets, asked)
    return [_read_in(one, _learned[key]) for one in sets]


def _made(sets: Sequence[LogitSet], asked: str | None) -> Vocabulary:
    if asked == SHIPPED:
        return Vocabulary(bert_uncased(), "BERT's uncased vocabulary")
    texts = [text for one in sets for text in one.training_texts()]
    # The case of letters marks names, which students of words look for.
    is_cased = any(one.record.kind == "token_labels" for one in sets)
    if asked is None:
        return usual_vocabulary(texts, is_cased)
    return learned_vocabulary(texts, int(asked), is_cased)


def note_vocabulary(logit_set: LogitSet) -> None:
    """Prints which vocabulary a student reads, unless it is that of the set."""
    if logit_set.vocabulary is not None:
        console.note(f"vocabulary: {logit_set.vocabulary.words}. --vocabulary chooses another")


def as_run_reads(logit_set: L, run: Path, config: Any) -> L:
    """Returns a set whose rows are read in the vocabulary of a run's student.

    Raises:
        IntegrityError: if the file of the run's tokenizer was changed.
    """
    if logit_set.tokenizer.sha256 == config.tokenizer_sha256:
        return logit_set
    tokenizer = load_tokenizer(run / TOKENIZER_FILE, config.tokenizer_sha256)
    return _read_in(logit_set, Vocabulary(tokenizer, f"that of {run}"))


def _read_in(logit_set: L, vocabulary: Vocabulary) -> L:
    own = replace(logit_set, vocabulary=vocabulary)
    # Stored ids are read faster than texts.
    return logit_set if own.tokenizer.sha256 == logit_set.record.tokenizer.sha256 else own
