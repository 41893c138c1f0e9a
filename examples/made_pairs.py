"""Pairs made of a task's own sentences: text for ``distill teacher-dump --unlabelled``.

``python made_pairs.py TASK.parquet OUTPUT.parquet`` reads the columns ``sentence1`` and ``sentence2``, and writes four
pairs for each row, the kinds one after another: its sentences swapped; with an edited second sentence; with the second
sentence of the row whose first one is most similar; and with that of any row. Needs PyArrow and scikit-learn.
"""

import random
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.random_projection import SparseRandomProjection

Pair = tuple[str, str]
NEGATIONS = {"not", "no", "never"}
AUXILIARIES = {"is", "are", "was", "were", "do", "does", "did", "has", "have", "had"}
AUXILIARIES |= {"can", "could", "will", "would", "should"}
DELETE, NEGATE, FROM_FIRST = 0.25, 0.45, 0.75  # cumulative shares of edits; the rest takes a word of any row
BATCH, NEAREST = 2000, 8
FREQUENT, FEWEST = 0.02, 10  # words in more texts, as a share and as a number, do not count


def edited(first: str, second: str, words: list[str], chance: random.Random) -> Pair:
    """Returns the pair after one or two edits of its second sentence."""
    found = second.split()
    for _ in range(chance.choice((1, 1, 2))):
        kind, place = chance.random(), chance.randrange(len(found)) if found else 0
        if kind < DELETE:
            if len(found) > 2:
                del found[place]
        elif kind < NEGATE:
            negate(found)
        elif found:
            found[place] = chance.choice((first.split() or found) if kind < FROM_FIRST else words)
    return first, " ".join(found)


def negate(words: list[str]) -> None:
    """Removes the first negation, or inserts one after the first auxiliary."""
    negations = [k for k, word in enumerate(words) if word.lower() in NEGATIONS]
    auxiliaries = [k for k, word in enumerate(words) if word.lower() in AUXILIARIES]
    if negations:
        del words[negations[0]]
    elif auxiliaries:
        words.insert(auxiliaries[0] + 1, "not")


def most_similar(texts: list[str]) -> list[int]:
    """For each text the number of another one with the most similar words: random projections of TF-IDF."""
    frequent = max(FREQUENT * len(texts), FEWEST)
    x_NF = TfidfVectorizer(sublinear_tf=True, min_df=2, max_df=int(frequent)).fit_transform(texts).astype(np.float32)
    x_NF = SparseRandomProjection(192, random_state=0, dense_output=True).fit_transform(x_NF).astype(np.float32)
    x_NF /= np.linalg.norm(x_NF, axis=1, keepdims=True) + 1e-9
    found = []
    for start in range(0, len(texts), BATCH):
        for row, scores_N in enumerate(x_NF[start : start + BATCH] @ x_NF.T, start):
            top = np.argpartition(-scores_N, NEAREST)[:NEAREST] if len(texts) > NEAREST else np.arange(len(texts))
            others = [int(k) for k in top[np.argsort(-scores_N[top])] if texts[k] != texts[row]]
            found.append(others[0] if others else (row + 1) % len(texts))
    return found


def main(task: str, output: str) -> None:
    """Writes the pairs of a task to a file."""
    firsts, seconds = (pq.read_table(task).column(name).to_pylist() for name in ("sentence1", "sentence2"))
    chance = random.Random(0)  # noqa: S311
    words = [word for second in seconds for word in second.split()]
    edits = [edited(first, second, words, chance) for first, second in zip(firsts, seconds, strict=True)]
    shuffled = list(range(len(firsts)))
    chance.shuffle(shuffled)
    others = [*most_similar(firsts), *shuffled]
    pairs = [*zip(seconds, firsts, strict=True), *edits]
    pairs += [(first, seconds[k]) for first, k in zip([*firsts, *firsts], others, strict=True)]
    pq.write_table(pa.table(dict(zip(("sentence1", "sentence2"), zip(*pairs, strict=True), strict=True))), output)
    print(f"{output}: {len(pairs):,} pairs of {len(firsts):,} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
