"""What a bag of words with a regression on it reaches on dev splits, without any teacher, in seconds.

``python -m tests.benchmarks.bag_of_words sst2 mrpc …`` with ``DISTILL_DATA`` set. One recipe for all tasks: TF-IDF of
words and pairs of words, logistic or ridge regression; of two sentences u and w: [|u - w| ; u * w ; cosine].
"""

import sys
import time

import numpy as np
import pyarrow as pa
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from pipeline import console
from pipeline.sources import load_source, sentences
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import Target, gold_arrays, make_target
from pipeline.tasks.task import load_task


def features(vectorizer: TfidfVectorizer, rows: pa.Table) -> sparse.csr_matrix:
    """A row of numbers [N, F] for each row of a task."""
    u_NF, *others = [vectorizer.transform(texts) for texts in sentences(rows) if texts is not None]
    if not others:
        return u_NF
    product_NF = u_NF.multiply(others[0])
    return sparse.hstack([abs(u_NF - others[0]), product_NF, product_NF.sum(axis=1)]).tocsr()


def predicted(target: Target, train_NF: sparse.csr_matrix, rows: pa.Table, dev_NF: sparse.csr_matrix) -> np.ndarray:
    """What a regression on the training rows says of others, as logits [N, C]."""
    label_N, score_N = gold_arrays(rows)
    if target.kind == "score":
        return np.asarray(Ridge().fit(train_NF, score_N).predict(dev_NF), np.float32)[:, None]
    model = LogisticRegression(C=10, max_iter=1000).fit(train_NF, label_N)
    return np.asarray(model.predict_log_proba(dev_NF), np.float32)


def main(names: list[str]) -> None:
    """Prints a row for each task."""
    table = []
    for name in names:
        task = load_task(name)
        target, source, start = make_target(task), load_source(task), time.perf_counter()
        train, dev = source.splits["train"], source.splits[next(s for s in source.splits if s.startswith("valid"))]
        texts = [text for part in sentences(train) if part is not None for text in part]
        vectorizer = TfidfVectorizer(ngram_range=(1, 2)).fit(texts)
        logits_NC = predicted(target, features(vectorizer, train), train, features(vectorizer, dev))
        scores = score_logits(task.metrics, target, logits_NC, *gold_arrays(dev))
        seconds = time.perf_counter() - start
        table.append([name, *(f"{metric} {100 * value:.1f}" for metric, value in scores.items()), f"{seconds:.0f} s"])
    width = max(map(len, table))
    console.print_table(["task", *[""] * (width - 1)], [row + [""] * (width - len(row)) for row in table])


main(sys.argv[1:])
