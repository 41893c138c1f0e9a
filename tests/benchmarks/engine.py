"""Text to logits on one core: the engine against torch with compiled kernels, for default sizes and random weights.

``python -m tests.benchmarks.engine``: sentences, pairs, labelled words, and one sentence alone.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer

from distill.apps.timing import interleaved
from pipeline import console
from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import write_text
from pipeline.tasks.target import Target
from pipeline.text.text_to_ids import TextReader
from pipeline.text.tokenizer import pad_id, tokenizer_sha256
from student.encoders.specs import EmbeddingKind
from student.engine.python import distill_student
from student.export.engine_file import write_engine_file
from student.model.build_config import build_token_label_config
from student.model.heads import is_as_large, share_hidden_layers
from student.model.student import Student, TaskStudent, TokenLabelStudent
from student.predict.torch_backend import logits_of_words
from student.predict.word_answers import WORD
from student.run_settings import FileTableDtype, HeadDtype
from student.settings import TrainSettings
from tests.benchmarks.random_student import random_student
from tests.benchmarks.ratios import ratios
from tests.benchmarks.tokenization import lines_of_documentation, taught_tokenizer, with_threads
from tests.helpers.engine import folder_by_torch, torch_predictor

# Tables without a dtype are int8, because the weights were rounded for the disk.
DTYPES: tuple[tuple[FileTableDtype | None, HeadDtype], ...] = (
    (None, "float32"),
    ("float32", "float32"),
    (None, "int8"),
)
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-MISC", "I-MISC")  # as CoNLL's
TASKS = 6  # that share an encoder
ALONE = 200  # calls, so that the clock does not matter
Read = Callable[..., object]


def readers(folder: Path, lines: Sequence[str], is_pair: bool, embedding: EmbeddingKind = "hybrid") -> dict[str, Read]:
    """What makes logits of texts: torch, and the engine with files of several dtypes."""
    tokenizer = taught_tokenizer(list(lines))
    text = tokenizer.to_str()
    write_text(folder / TOKENIZER_FILE, text)
    flags = TrainSettings.from_flags(embedding=embedding)
    one = random_student(flags, tokenizer.get_vocab_size(), ("a", "b"), pad_id(tokenizer), text)
    # Saved and loaded, since rounding on disk changes the weights.
    Student(one.config.model_copy(update={"is_pair": is_pair})).save(folder)
    student = Student.load(folder)
    return {"torch": partial(folder_by_torch, torch_predictor(folder))} | by_engine(student, tokenizer, folder)


def word_readers(folder: Path, lines: Sequence[str]) -> dict[str, Read]:
    """What makes logits of the words of texts, see `readers`."""
    tokenizer = taught_tokenizer(list(lines))
    flags = TrainSettings.from_flags(task="random")
    facts = {
        "task": "random",
        "target": Target(kind="classes", names=LABELS),
        "metrics": ("span_f1",),
        "vocabulary_size": tokenizer.get_vocab_size(),
        "pad_id": pad_id(tokenizer),
        "tokenizer_sha256": tokenizer_sha256(tokenizer.to_str()),
        "max_seq_length": 128,
    }
    TokenLabelStudent(build_token_label_config(flags, facts)).save(folder)
    student = TokenLabelStudent.load(folder)
    student.encoder.lay_out()
    return {"torch": partial(logits_of_words, student, TextReader.of(tokenizer))} | by_engine(
        student, tokenizer, folder
    )


def by_engine(student: TaskStudent, tokenizer: Tokenizer, folder: Path) -> dict[str, Read]:
    """The engine with files of several dtypes, by one thread."""
    found: dict[str, Read] = {}
    for tables, head in DTYPES:
        path = folder / f"{tables or 'default'}-{head}.distill"
        write_engine_file({"random": (student, folder)}, tokenizer, path, tables, head)
        found[f"engine, tables {tables or 'default'}, head {head}"] = distill_student.Predictor(path, threads=1).logits
    return found


def alternatives(is_pair: bool, size: int, embedding: EmbeddingKind = "hybrid") -> dict[str, Callable[[], object]]:
    """The ways to logits of so many lines, or of as many pairs of lines, by one thread."""
    temporary = TemporaryDirectory(prefix="distill-bench-")
    lines = lines_of_documentation()[: max(size, 2_000)]
    inputs = (lines[:size], lines[size - 1 :: -1]) if is_pair else (lines[:size],)
    found = readers(Path(temporary.name), lines, is_pair, embedding)
    ways = {name: partial(read, *inputs) for name, read in found.items()}
    return {name: with_threads(1, lambda way=way: (temporary, way())) for name, way in ways.items()}  # type: ignore[misc]


def of_words(size: int) -> dict[str, Callable[[], object]]:
    """The ways to logits of the words of so many lines, by one thread."""
    temporary = TemporaryDirectory(prefix="distill-bench-")
    lines = lines_of_documentation()[: max(size, 2_000)]
    sentences = [WORD.findall(line) for line in lines[:size]]
    ways = {name: partial(read, sentences) for name, read in word_readers(Path(temporary.name), lines).items()}
    return {name: with_threads(1, lambda way=way: (temporary, way())) for name, way in ways.items()}  # type: ignore[misc]


def alone(text: str, repeats: int = ALONE) -> dict[str, Callable[[], object]]:
    """A call per sentence."""
    temporary = TemporaryDirectory(prefix="distill-bench-")

    def calls(read: Read) -> None:
        assert temporary
        for _ in range(repeats):
            read([text])

    found = readers(Path(temporary.name), lines_of_documentation(), is_pair=False)
    return {name: with_threads(1, partial(calls, read)) for name, read in found.items()}


def of_tasks(folder: Path, head: str, is_pair: bool, size: int) -> dict[str, Callable[[], object]]:
    """The logits of one task, and of six that share an encoder, for so many lines."""
    lines = lines_of_documentation()[: max(size, 2_000)]
    tokenizer = taught_tokenizer(lines)
    text = tokenizer.to_str()
    config = TrainSettings.from_flags(head=head)
    one = random_student(config, tokenizer.get_vocab_size(), ("a", "b"), pad_id(tokenizer), text)
    inputs = (lines[:size], lines[size - 1 :: -1]) if is_pair else (lines[:size],)
    ways: dict[str, Callable[[], object]] = {}
    for count in (1, TASKS):
        students = [Student(one.config.model_copy(update={"is_pair": is_pair}), one.encoder) for _ in range(count)]
        share_hidden_layers([student.head for student in students], is_as_large)  # as in training
        path = folder / f"{head}-{'pairs' if is_pair else 'texts'}-{count}.distill"
        write_engine_file({str(k): (student, folder) for k, student in enumerate(students)}, tokenizer, path)
        predictor = distill_student.MultiTaskPredictor(path, threads=1)
        ways[f"{head}, {count} tasks"] = with_threads(1, partial(predictor.logits, *inputs))
    return ways


def main(size: int = 20_000) -> None:
    """Prints the tables."""
    level = distill_student._library.distill_level().decode()
    tables = {
        f"{size:,} sentences": (alternatives(False, size), size),
        f"{size:,} sentences, recurrent": (alternatives(False, size, "recurrent"), size),
        f"{size:,} pairs": (alternatives(True, size), size),
        f"{size:,} pairs, aligned": (alternatives(True, size, "aligned"), size),
        f"{size // 10:,} sentences of labelled words": (of_words(size // 10), size // 10),
        f"one sentence alone, {ALONE} times": (alone("A film of great charm and very little else."), ALONE),
    }
    temporary = TemporaryDirectory(prefix="distill-bench-")
    for head, is_pair in product(("mlp", "linear"), (False, True)):
        title = f"{size:,} {'pairs' if is_pair else 'sentences'}, {head} heads"
        tables[title] = of_tasks(Path(temporary.name), head, is_pair, size), size
    for title, (ways, count) in tables.items():
        seconds = interleaved(ways)
        rows = [[*row, 1e6 * value / count] for row, value in zip(ratios(seconds), seconds.values(), strict=True)]
        console.print_table(["variant", "median ms", "x first", "µs each"], rows, title=f"{title}, {level}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
