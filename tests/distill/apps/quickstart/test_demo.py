"""The demo's rows: none is both in training and in validation, and n-grams cannot see their labels."""

import json

import pytest
from scipy.sparse import hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from distill.apps.quickstart.demo import TASKS, write_demo_data

Rows = list[dict[str, str | int]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Rows]]:
    folder = tmp_path_factory.mktemp("demo")
    write_demo_data(folder, 1500, 500)
    return {
        task: {
            split: [json.loads(line) for line in (folder / "data" / task / f"{split}.jsonl").read_text().splitlines()]
            for split in ("train", "validation")
        }
        for task in TASKS
    }


@pytest.mark.parametrize("task", TASKS)
def test_no_row_is_there_twice(data: dict[str, dict[str, Rows]], task: str) -> None:
    inputs = [(row["sentence1"], row.get("sentence2")) for rows in data[task].values() for row in rows]
    assert len(set(inputs)) == len(inputs) == 2000


@pytest.mark.parametrize("task", TASKS)
def test_n_grams_guess(data: dict[str, dict[str, Rows]], task: str) -> None:
    texts, labels = (
        [[make(row) for row in rows] for rows in data[task].values()]
        for make in (lambda row: f"{row['sentence1']} | {row.get('sentence2', '')}", lambda row: row["label"])
    )
    words, characters = TfidfVectorizer(ngram_range=(1, 2)), TfidfVectorizer(analyzer="char", ngram_range=(2, 5))
    train = hstack([words.fit_transform(texts[0]), characters.fit_transform(texts[0])])
    model = LogisticRegression(max_iter=300).fit(train, labels[0])
    score = model.score(hstack([words.transform(texts[1]), characters.transform(texts[1])]), labels[1])
    assert 0.42 < score < 0.58  # 500 rows: guessing has a standard error of 0.022
