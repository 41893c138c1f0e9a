"""Students with random weights, which are as fast as trained ones."""

from itertools import chain, islice, product
from pathlib import Path

from tokenizers import Tokenizer

from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import write_text
from pipeline.tasks.target import Target
from pipeline.text.tokenizer import SPECIAL_TOKENS, pad_id, tokenizer_sha256, wordpiece
from student.model.build_config import build_config
from student.model.student import Student
from student.settings import TrainSettings
from student.train import write_student_file

SYLLABLES = tuple(f"{consonant}{vowel}" for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou")


def made_up_tokenizer(size: int) -> Tokenizer:
    """A WordPiece tokenizer with this many tokens. Its words have two syllables or three."""
    words = chain(product(SYLLABLES, repeat=2), product(SYLLABLES, repeat=3))
    return wordpiece(islice(chain(".", ("".join(word) for word in words)), size - len(SPECIAL_TOKENS)))


def random_student(
    flags: TrainSettings,
    vocabulary_size: int,
    labels: tuple[str, ...] = ("yes", "no"),
    padding_idx: int = 0,
    tokenizer_json: str = "{}",
    max_seq_length: int = 128,
    is_pair: bool = False,
) -> Student:
    """The student described by the flags, with random weights, for a task with these labels."""
    facts = {
        "task": "bench",
        "target": Target(kind="classes", names=labels),
        "metrics": ("accuracy",),
        "is_pair": is_pair,
        "vocabulary_size": vocabulary_size,
        "pad_id": padding_idx,
        "tokenizer_sha256": tokenizer_sha256(tokenizer_json),
        "max_seq_length": max_seq_length,
    }
    return Student(build_config(flags, facts))


def write_random_student(
    run: Path,
    tokenizer: Tokenizer,
    flags: TrainSettings | None = None,
    labels: tuple[str, ...] = ("yes", "no"),
    max_seq_length: int = 128,
) -> None:
    """Writes the folder of a run with a random student, by default one of the default size."""
    text = tokenizer.to_str()
    write_text(run / TOKENIZER_FILE, text)
    sizes = tokenizer.get_vocab_size(), labels, pad_id(tokenizer), text, max_seq_length
    student = random_student(flags or TrainSettings(), *sizes)
    student.save(run)
    write_student_file(run, {run: student})
