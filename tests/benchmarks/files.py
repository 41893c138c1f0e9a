"""Answers from Parquet to Parquet beside model2vec and fastText: ``python -m tests.benchmarks.files``.

The same 100,000 lines, by turns, each by one thread and by the time it has of the processor: they are read, answered
by one of two labels, and written with it and its probability. Numbers are random: a Hybrid student with a linear
head, and one of sums; model2vec's vectors of its usual size with another; fastText has learned to tell which lines
end with a full stop. What is not installed is left out (``pip install model2vec fasttext-numpy2``). Only ``predict
--file`` looks at all rows first, can go on where it was stopped, and writes its file whole or not at all.

Shapes: N lines, F features, C labels.
"""

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from distill.apps.timing import interleaved
from pipeline import console
from pipeline.arrays import Floats
from pipeline.file_names import TOKENIZER_FILE
from pipeline.tasks.target import softmax
from student.predict.predictor import Predictor
from tests.benchmarks.answers import file_to_file, write_student_and_lines
from tests.benchmarks.ratios import ratios
from tests.benchmarks.tokenization import with_threads

NAMES = ("yes", "no")
FEATURES = 256


def model2vec_answers(folder: Path) -> Callable[[list[str]], tuple[list[str], Floats]]:
    """The mean of a line's vectors, and a linear layer on it."""
    from model2vec import StaticModel

    tokenizer, random = Tokenizer.from_file(str(folder / TOKENIZER_FILE)), np.random.default_rng(0)
    vectors = random.normal(size=(tokenizer.get_vocab_size(), FEATURES)).astype(np.float32)
    static, weight_FC = StaticModel(vectors, tokenizer), random.normal(size=(FEATURES, len(NAMES))).astype(np.float32)

    def answer(lines: list[str]) -> tuple[list[str], Floats]:
        probabilities_NC = softmax(static.encode(lines, use_multiprocessing=False) @ weight_FC)
        return [NAMES[k] for k in probabilities_NC.argmax(axis=1).tolist()], probabilities_NC.max(axis=1)

    return answer


def fasttext_answers(folder: Path, lines: list[str]) -> Callable[[list[str]], tuple[list[str], Floats]]:
    """FastText as it comes, after one pass over the lines."""
    import fasttext

    taught = folder / "taught.txt"
    taught.write_text("".join(f"__label__{NAMES[not line.endswith('.')]} {line}\n" for line in lines))
    model = fasttext.train_supervised(str(taught), epoch=1, thread=10, verbose=0)  # fewer set fewer vectors

    def answer(lines: list[str]) -> tuple[list[str], Floats]:
        labels, probabilities = model.predict(lines)
        return [label.removeprefix("__label__") for (label,) in labels], np.concatenate(probabilities)

    return answer


def main() -> None:
    """Measures, and prints a table."""
    with TemporaryDirectory(prefix="distill-bench-") as temporary:
        folder = Path(temporary)
        lines = write_student_and_lines(folder)

        def file_by(answer: Callable[[list[str]], tuple[list[str], Floats]]) -> Callable[[], None]:
            def to_file() -> None:
                read = pq.read_table(folder / "lines.parquet").column("sentence1").to_pylist()
                label, probability = answer(read)
                pq.write_table(pa.table({"label": label, "probability": probability}), folder / "other.parquet")

            return to_file

        sums = folder / "sums"
        write_student_and_lines(sums, embedding="cbow", pooling="sum", num_bigrams=0)
        ways: dict[str, Callable[[], object]] = {
            "predict --file": file_to_file(folder, Predictor(folder)),
            "predict --file, sums": file_to_file(sums, Predictor(sums)),
        }
        if importlib.util.find_spec("model2vec"):
            ways["model2vec and a linear layer"] = file_by(model2vec_answers(folder))
        if importlib.util.find_spec("fasttext"):
            ways["fastText"] = file_by(fasttext_answers(folder, lines))
        seconds = interleaved(
            {name: with_threads(1, way) for name, way in ways.items()}, rounds=3, clock=time.process_time
        )
    console.print_table(["from Parquet to Parquet", "median CPU ms", "x first"], ratios(seconds))


if __name__ == "__main__":
    main()
