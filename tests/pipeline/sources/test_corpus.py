import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.sources import Documents, load_documents
from pipeline.sources.corpus import DOCUMENTS_PER_BATCH
from pipeline.tasks.task import Corpus, Hub
from tests.helpers.messages import naming
from tests.helpers.row_formats import write_rows

MINE = Corpus(name="mine")
SIZES = {"a.jsonl": 1030, "b.parquet": 2500, "c.txt": 2100, "d.parquet": 3, "e.txt": 0, "f.jsonl": 1}
ENDS = [sum(list(SIZES.values())[:k]) for k in range(len(SIZES) + 1)]
TOTAL = ENDS[-1]
# ends of files, of the row groups of b.parquet, and of batches
EDGES = [*ENDS, 1030 + 1200, 1030 + 2400, 1024, 1030 + 1024, 3530 + 1024, 3530 + 2048]
near_an_edge = st.builds(lambda edge, k: min(max(edge + k, 0), TOTAL), st.sampled_from(EDGES), st.integers(-2, 2))
anywhere = st.one_of(near_an_edge, st.integers(0, TOTAL))
TEXTS = [f"Document {k}, “é”\u2028\tand no new line." for k in range(TOTAL)]


def write(path: Path, texts: Sequence[Any], column: str = "text") -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        table = pa.table({"number": list(range(len(texts))), column: texts})
        pq.write_table(table, path, row_group_size=1200)
    elif path.suffix == ".jsonl":
        lines = [json.dumps({"number": k, column: text}) + "\n" for k, text in enumerate(texts)]
        path.write_text("".join(lines), encoding="utf-8")
    else:
        path.write_bytes("".join(f"{text}\n" for text in texts).encode())
    return path


def read(documents: Documents, start: int = 0, stop: int | None = None) -> list[str]:
    """The documents, after a look at how they come."""
    texts: list[str] = []
    for first, batch in documents.read(start, documents.num_documents if stop is None else stop):
        assert first == start + len(texts)
        assert 0 < len(batch) <= DOCUMENTS_PER_BATCH
        texts += batch
    return texts


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind, some longer than a batch, with ``TEXTS`` in the order of their names."""
    root = tmp_path_factory.mktemp("documents")
    for (name, size), first in zip(SIZES.items(), ENDS[:-1], strict=True):
        write(root / name, TEXTS[first : first + size])
    (root / "README.md").write_text("not text of the corpus")
    (root / "z.txt").mkdir()
    return root


@pytest.fixture(scope="session")
def documents(folder: Path) -> Documents:
    return load_documents(MINE, folder)


def test_all_files_of_a_folder_in_the_order_of_their_names(documents: Documents, folder: Path) -> None:
    assert pq.ParquetFile(folder / "b.parquet").num_row_groups == 3
    assert documents.num_documents == TOTAL
    assert documents.description == str(folder)
    assert read(documents) == TEXTS


@given(start=anywhere, stop=anywhere)
def test_any_range_is_a_slice_of_the_whole(start: int, stop: int, documents: Documents) -> None:
    assert read(documents, start, stop) == TEXTS[start:stop]


@pytest.mark.parametrize("name", [name for name, size in SIZES.items() if size])
def test_one_file(name: str, folder: Path) -> None:
    first = ENDS[list(SIZES).index(name)]
    assert read(load_documents(MINE, folder / name)) == TEXTS[first : first + SIZES[name]]


@given(texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"))), ending=st.booleans())
def test_lines_end_at_line_feeds_and_nowhere_else(
    texts: list[str], ending: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("lines") / "any.txt"
    texts = [f"{text}." for text in texts]  # a line of spaces is an empty document
    path.write_bytes(("\n".join(["first", *texts, "last"]) + "\n" * ending).encode())
    assert read(load_documents(MINE, path)) == ["first", *texts, "last"]


@pytest.mark.parametrize("name", ["windows.txt", "windows.jsonl"])
def test_byte_order_mark_and_carriage_returns_are_not_text(tmp_path: Path, name: str) -> None:
    texts = ["one", "two"]
    lines = [json.dumps({"text": text}) if name.endswith("jsonl") else text for text in texts]
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert read(load_documents(MINE, tmp_path / name)) == texts


def test_first_of_the_corpus_columns_that_is_there(tmp_path: Path) -> None:
    corpus = Corpus(name="mine", columns=("content", "body"))
    for name in ("x.parquet", "x.jsonl"):
        path = write(tmp_path / name, ["a", "b"], column="body")
        assert read(load_documents(corpus, path)) == ["a", "b"]
    (tmp_path / "x.jsonl").write_text('{"body": "not me", "content": "me"}\n')
    assert read(load_documents(corpus, tmp_path / "x.jsonl")) == ["me"]


@pytest.mark.parametrize(("maximum", "expected"), [(1, 1), (1031, 1031), (TOTAL, TOTAL), (TOTAL + 1, TOTAL)])
def test_max_documents_counts_from_the_start(maximum: int, expected: int, folder: Path) -> None:
    documents = load_documents(MINE, folder, maximum)
    assert documents.num_documents == expected
    assert read(documents) == TEXTS[:expected]


def test_sha256_is_of_content_and_order_not_the_folder(tmp_path: Path, folder: Path) -> None:
    def digest(root: Path, maximum: int | None = None) -> str:
        return load_documents(MINE, root, maximum).sha256

    known = digest(folder)
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert digest(copy) == known
    (copy / "README.md").write_text("changed")
    assert digest(copy) == known
    different = {known, digest(copy, 2), digest(copy, 3)}
    for name in SIZES:  # one letter more in each kind of file
        shutil.copytree(folder, tmp_path / name)
        write(tmp_path / name / name, ["one", "other"])
        different.add(digest(tmp_path / name))
    (copy / "a.jsonl").rename(copy / "z.jsonl")
    different.add(digest(copy))
    assert len(different) == 3 + len(SIZES) + 1


@pytest.mark.parametrize(
    ("name", "texts", "place", "value"),
    [
        ("x.jsonl", [*TEXTS[:1300], 7, "a"], "x.jsonl, line 1301: ", "7"),
        ("x.parquet", [7], "x.parquet, row 0: ", "7"),
        ("x.parquet", ["a", b"\xff"], "x.parquet, row 0: ", "b'a"),
        ("x.jsonl", ["a", ["b"]], "x.jsonl, line 2: ", "['b']"),
    ],
)
def test_row_that_is_not_text_is_named(tmp_path: Path, name: str, texts: list[Any], place: str, value: str) -> None:
    if isinstance(texts[-1], bytes):
        texts = [text.encode() if isinstance(text, str) else text for text in texts]
    write(tmp_path / "data" / "first.txt", TEXTS[:50])  # rows are counted in each file
    write(tmp_path / "data" / name, texts)
    documents = load_documents(MINE, tmp_path / "data")
    with pytest.raises(DataError, match=naming(place, value)):
        read(documents)


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl"])
def test_a_row_without_text_is_an_empty_document(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, ["a", None, " \u00a0\u200b", "b"])
    assert read(load_documents(MINE, tmp_path / name)) == ["a", "", "", "b"]


def test_an_empty_line_of_a_text_is_an_empty_document_and_one_of_json_lines_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n\n  \n{"text": "b"}\n')
    assert read(load_documents(MINE, tmp_path / "x.jsonl")) == ["a", "b"]
    (tmp_path / "x.txt").write_text("a\n\n\nb\n")
    assert read(load_documents(MINE, tmp_path / "x.txt")) == ["a", "", "", "b"]


@pytest.mark.parametrize(
    "name", ["x.csv", "x.tsv", "x.arrow", "x.json", "x.txt.gz", "x.jsonl.zst", "x.CSV.xz", "x.ndjson"]
)
def test_any_range_of_a_file_of_any_format(name: str, tmp_path: Path) -> None:
    texts = [f"{k} é" for k in range(3 * DOCUMENTS_PER_BATCH)]
    documents = load_documents(MINE, write_rows(tmp_path / name, pa.table({"text": texts, "label": texts})))
    assert documents.num_documents == len(texts)
    for start, stop in ((0, 5), (1500, 1501), (1000, 3000), (3071, 3072), (7, 7)):
        assert read(documents, start, stop) == texts[start:stop]


def test_long_files_of_lines_are_read_from_the_block_of_the_first_row(tmp_path: Path) -> None:
    texts = [f"{k} " + "word " * 20 for k in range(40_000)]
    for name in ("x.txt", "x.jsonl"):
        documents = load_documents(MINE, write(tmp_path / name, texts))
        assert documents.num_documents == len(texts)
        for start in (0, 600, 9_000, 25_000, 39_990):
            assert read(documents, start, start + 10) == texts[start : start + 10]


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("x.txt", b"caf\xe9", "UTF-8"),
        ("x.jsonl", b'{"text": "caf\xe9"}', "UTF-8"),
        ("x.jsonl", b'{"text": ', ""),
        ("x.jsonl", b'["text"]', ""),
        ("x.jsonl", b"7", ""),
    ],
)
def test_line_that_cannot_be_read_is_named(tmp_path: Path, name: str, line: bytes, message: str) -> None:
    good = json.dumps({"text": "a"}).encode()
    (tmp_path / name).write_bytes(b"\n".join([*[good] * 1500, line, good]))
    with pytest.raises(DataError, match=naming(f"{name}", "line 1501: ", message)):
        read(load_documents(MINE, tmp_path / name), 1499, 1501)


def test_text_that_no_tokenizer_takes_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "half \\ud83d of a character"}\n')
    with pytest.raises(DataError, match=naming("x.jsonl, line 1: ", "surrogate")):
        read(load_documents(MINE, tmp_path / "x.jsonl"))


def test_missing_column_is_answered_with_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", ["a"], column="texts")
    with pytest.raises(DataError, match=naming("x.parquet: ", "'text'", "'texts'", "number, texts")):
        load_documents(MINE, tmp_path / "x.parquet")
    path = tmp_path / "y.jsonl"
    path.write_text('{"content": "b"}\n')
    with pytest.raises(DataError, match=naming("y.jsonl: ", "'text'", "content")):
        load_documents(MINE, path)
    with pytest.raises(DataError, match=naming("x.parquet: ", "'body' or 'content'", "number, texts")):
        load_documents(Corpus(name="mine", columns=("body", "content")), tmp_path / "x.parquet")


def test_parquet_that_cannot_be_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", TEXTS)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"x\.parquet: "):
        load_documents(MINE, path)


def test_parquet_damaged_inside(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", TEXTS)
    content = path.read_bytes()
    third = len(content) // 3
    path.write_bytes(content[:third] + b"\x55" * third + content[2 * third :])
    documents = load_documents(MINE, path)  # its footer is well
    with pytest.raises(DataError, match=r"x\.parquet"):
        read(documents)


def test_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=naming("empty: ", ".parquet, .jsonl")):
        load_documents(MINE, tmp_path / "empty")
    for name in ("x.txt", "x.jsonl", "x.parquet"):
        with pytest.raises(DataError, match=naming(f"{name}: ")):
            load_documents(MINE, write(tmp_path / name, []))
    (tmp_path / "x.docx").write_text("text\na\n")
    with pytest.raises(DataError, match=naming("x.docx: ", "'.docx'", ".parquet, .jsonl")):
        load_documents(MINE, tmp_path / "x.docx")
    with pytest.raises(DataError, match=naming("--data", "gone: ")):
        load_documents(MINE, tmp_path / "gone")
    with pytest.raises(DataError, match=naming("'mine'", "--data", "DISTILL_DATA")):
        load_documents(MINE)


def test_distill_data_is_searched_for_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTILL_DATA", str(tmp_path))
    with pytest.raises(DataError, match=naming("'mine'", "mine, mine.parquet, mine.jsonl")):
        load_documents(MINE)
    for name in ("mine.txt", "mine.jsonl", "mine.parquet", "mine/any.txt"):  # each goes before those before it
        write(tmp_path / name, [f"of {name}"])
        assert read(load_documents(MINE)) == [f"of {name}"]
    given = write(tmp_path / "given.txt", ["given"])
    assert read(load_documents(MINE, given)) == ["given"]  # --data goes before all


README = """---
configs:
- config_name: raw
  data_files:
  - {split: train, path: raw/train-*}
  - {split: validation, path: raw/validation-*}
---
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A folder laid out like a data set of the hub: 1300 rows to train on in two files, two to validate."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write(tmp_path / "hub" / "README.md", [README])
    for name, texts in (("train-0", TEXTS[:1100]), ("train-1", TEXTS[1100:1300]), ("validation-0", ["one", "two"])):
        write(tmp_path / "hub" / "raw" / f"{name}.parquet", texts)
    return Hub(id=str(tmp_path / "hub"), config="raw")


def test_hub(hub: Hub) -> None:
    documents = load_documents(Corpus(name="mine", hub=hub))
    assert documents.description == f"{hub.id}/raw:train"
    for start, stop in ((0, 1300), (0, 1), (1023, 1025), (1024, 1101), (1099, 1300), (5, 5)):
        assert read(documents, start, stop) == TEXTS[:1300][start:stop]
    held_out = load_documents(Corpus(name="mine", hub=hub, hub_split="validation"), None, 1)
    assert read(held_out) == ["one"]
    assert held_out.sha256 != documents.sha256 == load_documents(Corpus(name="mine", hub=hub)).sha256


def test_hub_that_changed_has_another_sha256(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(name="mine", hub=hub)
    before = load_documents(corpus)
    write(Path(hub.id) / "raw" / "train-1.parquet", [f"{text} And more." for text in TEXTS[1100:1300]])
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "other_cache")  # as on another machine
    after = load_documents(corpus)
    assert before.num_documents == after.num_documents == 1300
    assert before.sha256 != after.sha256


def test_hub_without_the_column_or_the_split(hub: Hub) -> None:
    with pytest.raises(DataError, match=naming("hub/raw:train: ", "'body'", "number, text")):
        load_documents(Corpus(name="mine", hub=hub, columns=("body",)))
    with pytest.raises(DataError, match=naming("hub/raw, split 'test': ", "--data")):
        load_documents(Corpus(name="mine", hub=hub, hub_split="test"))


def test_local_text_goes_before_the_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("DISTILL_DATA", str(tmp_path / "data"))
    corpus = Corpus(name="mine", hub=hub)
    assert load_documents(corpus).num_documents == 1300  # nothing of the corpus is there
    write(tmp_path / "data" / "mine.txt", ["local"])
    assert read(load_documents(corpus)) == ["local"]
