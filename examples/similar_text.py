"""The sentences of a corpus that read most like those of a task: text for ``distill teacher-dump --unlabelled``.

``python similar_text.py TASK.parquet OUTPUT.parquet NUMBER CORPUS.parquet …`` takes the task's texts from the column
``sentence`` or ``sentence1``, the corpora's from ``text``, and writes the NUMBER sentences that a regression on their
words finds the likest, the likest first. Needs PyArrow and scikit-learn.
"""

import re
import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import SGDClassifier

END = re.compile(r"(?<=[.!?])\s+|\n+")
LENGTHS = range(6, 41)  # of a sentence, in words
WORD = "[a-z]{3,}"
CONTRAST = 120_000  # sentences of the corpora that the task's are told from
BATCH = 50_000


def texts_of(path: str, *names: str) -> list[str]:
    """The texts of a file, from the first of the columns that it has."""
    column = next(name for name in names if name in pq.read_schema(path).names)
    texts: list[str] = pq.read_table(path, columns=[column]).column(column).drop_null().to_pylist()
    return texts


def sentences(paths: list[str]) -> Iterator[str]:
    """The sentences of all documents, as the end of one is seen, each once."""
    parts = (part for path in paths for text in texts_of(path, "text") for part in END.split(text))
    yield from dict.fromkeys(part for part in parts if len(part.split()) in LENGTHS)


def likest(task: list[str], corpus: list[str], number: int) -> list[str]:
    """Those of the corpus that are the likest to the task's, by logistic regression on which words they have."""
    words = HashingVectorizer(alternate_sign=False, token_pattern=WORD)
    chosen = np.random.default_rng(0).permutation(len(corpus))[:CONTRAST]
    contrast = [corpus[i] for i in chosen]
    is_task = np.arange(len(task) + len(contrast)) < len(task)
    model = SGDClassifier(loss="log_loss", alpha=1e-6, max_iter=8, tol=None, random_state=0)
    model.fit(words.transform([*task, *contrast]), is_task)
    batches = (corpus[start : start + BATCH] for start in range(0, len(corpus), BATCH))
    score = np.concatenate([model.decision_function(words.transform(batch)) for batch in batches])
    return [corpus[i] for i in np.argsort(-score, kind="stable")[:number]]


def main(task: str, output: str, number: str, *corpora: str) -> None:
    """Writes them."""
    chosen = likest(texts_of(task, "sentence", "sentence1"), list(sentences(list(corpora))), int(number))
    pq.write_table(pa.table({"text": chosen}), output)
    print(f"{output}: {len(chosen):,} sentences, from {chosen[0]!r} to {chosen[-1]!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
