"""The chain behind one row, and what is refused on the way."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import softmax
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import ConfigError, DataError, DistillError, IntegrityError
from pipeline.files import sha256
from pipeline.query.catalog import open_catalog
from pipeline.query.explain_row import explain_row
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import write_set_record
from pipeline.sets.signals import Logits, Signals
from pipeline.sharing.push import without_text
from pipeline.sql.read_only_query import select
from pipeline.tasks.target import Target
from tests.helpers.messages import naming
from tests.helpers.token_sets import CODECS_BY_NAME, write_set

ROW = 5


def rewritten(root: Path, column: str, values: list[Any]) -> None:
    """Replaces a column of the first shard of train from its first row on; size and hash are recorded honestly."""
    record = ExampleSet.open(root).record
    first = record.shards_of("train")[0]
    table = pq.read_table(root / first.path, partitioning=None)
    place = table.schema.get_field_index(column)
    changed = [*values, *table.column(column).to_pylist()[len(values) :]]
    table = table.set_column(place, table.schema.field(place), pa.array(changed, table.schema.field(place).type))
    pq.write_table(table, root / first.path)
    update = {"bytes": (root / first.path).stat().st_size, "sha256": sha256(root / first.path)}
    shards = tuple(s.model_copy(update=update) if s == first else s for s in record.shards)
    write_set_record(root, record.model_copy(update={"shards": shards}))


@pytest.mark.parametrize("name", ["opinion", "roles"])
def test_the_chain_of_a_row(store: Path, name: str) -> None:
    logit_set = ExampleSet.open(store / name)
    record = logit_set.record
    (row,) = logit_set.read("train", ("*",), f"source_row = {ROW}").to_pylist()
    told = explain_row(store, f"{name}:train:{ROW}")
    assert list(told) == ["set", "file", "teacher", "tokenizer", "source", "row", "teacher's answer"]
    assert (told["set"]["state"], told["set"]["fingerprint"]) == ("verified", record.fingerprint)
    assert told["file"]["sha256"] == sha256(store / name / told["file"]["path"])
    assert told["teacher"]["weights_sha256"] == record.teacher.weights_sha256
    assert told["teacher"]["precision"] == "fp32"
    assert told["tokenizer"]["sha256"] == record.tokenizer.sha256
    assert (told["source"]["source"], told["source"]["licence"]) == (record.source, record.licence)
    text = told["row"]
    assert (text["sentence1"], text["sentence2"]) == (row["sentence1"], row["sentence2"])
    assert text["tokens1"] == row["sentence1"].lower().replace(".", " .").split()
    assert len(text["tokens1"]) == len(row["ids1"])
    assert text["text_hash"] == row["text_hash"].hex()
    assert text["text_hash_belongs_to_text"] is True
    assert text["gold"] == record.target.names[row["label"]]
    answer = told["teacher's answer"]
    p = softmax(np.array(row["logits"], dtype=np.float64))
    assert answer["probabilities"] == pytest.approx(dict(zip(record.target.names, p, strict=True)))
    assert answer["answer"] == record.target.names[int(p.argmax())]
    assert answer["entropy"] == pytest.approx(-(p * np.log(p)).sum())
    assert answer["margin"] == pytest.approx(abs(p[0] - p[1]))


def test_a_variant_tells_its_parent(augmented_set: ExampleSet) -> None:
    variants = augmented_set.read("train", ("source_row", "variant", "sentence1"), "variant > 0").to_pylist()
    variant = variants[0]
    address = f"{augmented_set.root.name}:train:{variant['source_row']}"
    told = explain_row(augmented_set.root.parent, f"{address}:{variant['variant']}")
    parent = explain_row(augmented_set.root.parent, address)
    assert "variant" not in parent
    assert told["variant"]["origin"] == "mask"
    assert told["variant"]["parent_sentence1"] == parent["row"]["sentence1"] != told["row"]["sentence1"]
    assert told["row"]["sentence1"] == variant["sentence1"]
    assert (told["variant"]["method"], told["variant"]["settings"]["mask_probability"]) == ("mask-pos", 0.3)
    assert (told["row"]["label"], told["row"]["gold"]) == (None, None)
    with pytest.raises(DataError, match=naming("opinion-mask-pos: ", "row 0", "variant 99", "0, 1, 2, 3")):
        explain_row(augmented_set.root.parent, f"{address}:99")


def test_a_text_that_is_not_the_hashs_is_told(own_set: ExampleSet) -> None:
    rewritten(own_set.root, "sentence1", ["another text"])
    assert explain_row(own_set.root.parent, "opinion:train:0")["row"]["text_hash_belongs_to_text"] is False
    assert explain_row(own_set.root.parent, "opinion:train:1")["row"]["text_hash_belongs_to_text"] is True


def test_scores_have_no_probabilities(own_set: ExampleSet) -> None:
    first = own_set.root / own_set.record.shards_of("train")[0].path
    rows = pq.read_table(first, partitioning=None).num_rows
    bins = Target(kind="bins", names=("0", "5"), bins={"low": 0, "high": 5, "width": 5})
    write_set_record(own_set.root, own_set.record.model_copy(update={"signals": Signals(logits=Logits(target=bins))}))
    rewritten(own_set.root, "logits", [[0.0, 0.0]] * rows)
    answer = explain_row(own_set.root.parent, "opinion:train:0")["teacher's answer"]
    assert (answer["score"], answer["probabilities"]) == (2.5, {"0": 0.5, "5": 0.5})


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("logits", [[float("nan"), 0.0]], naming("row 0: ", "nan")),
        ("label", [7], naming("row 0: label 7", "bad, good")),
    ],
)
def test_what_cannot_be_is_refused(own_set: ExampleSet, column: str, values: list[Any], message: str) -> None:
    rewritten(own_set.root, column, values)
    with pytest.raises(IntegrityError, match=message):
        explain_row(own_set.root.parent, "opinion:train:0")


def test_a_changed_file_or_tokenizer_is_refused(own_set: ExampleSet) -> None:
    tokenizer = own_set.root / "tokenizer.json"
    before = tokenizer.read_text()
    tokenizer.write_text("{}")
    with pytest.raises(IntegrityError, match=r"tokenizer\.json: "):
        explain_row(own_set.root.parent, "opinion:train:0")
    tokenizer.write_text(before)
    path = own_set.root / own_set.record.shards_of("train")[1].path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match=naming("train-00001-of-00004.parquet: ", "SHA-256")):
        explain_row(own_set.root.parent, f"opinion:train:{own_set.record.shards_of('train')[1].start}")
    assert explain_row(own_set.root.parent, "opinion:train:0")


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        ("opinoin:train:1", DataError, naming("'opinoin'", "'opinion'")),
        ("opinion:trian:1", DataError, naming("'trian'", "'train'")),
        ("opinion:train:96", DataError, naming("row 96", "'train'", "0 to 95")),
        ("opinion:train:1:1", DataError, "variant 1"),
        ("opinion:train", ConfigError, "SET:split:row"),
        ("opinion:train:-1", ConfigError, "SET:split:row"),
        ("opinion:train:one", ConfigError, "SET:split:row"),
    ],
)
def test_what_is_not_there_is_named(store: Path, address: str, kind: type[DistillError], message: str) -> None:
    with pytest.raises(kind, match=message):
        explain_row(store, address)


def test_sets_of_tokens_are_shown_elsewhere(tmp_path: Path) -> None:
    write_set(tmp_path / "the-colours", CODECS_BY_NAME["topk"])
    with pytest.raises(ConfigError, match=naming("from the_colours_words where split = 'train' and source_row = 1")):
        explain_row(tmp_path, "the-colours:train:1")


def test_sets_of_sentences_are_shown_elsewhere(vector_store: Path) -> None:
    with pytest.raises(ConfigError, match='distill sql "from int8 where') as caught:
        explain_row(vector_store, "int8:train:1")
    query = str(caught.value).split('"')[1]
    with open_catalog(vector_store) as connection:
        assert select(connection, query)


def test_a_set_without_text_says_so(opinion_set: ExampleSet) -> None:
    with without_text(opinion_set.root, opinion_set.record) as (bare, _):
        text = explain_row(bare.parent, "opinion:train:0")["row"]
    assert [text[key] for key in ("sentence1", "tokens1", "text_hash_belongs_to_text")] == [None] * 3


def test_on_the_command_line(store: Path, tmp_path: Path) -> None:
    shelf = shutil.copytree(store, tmp_path / "store")

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["sql", "--store", str(shelf), "--explain-row", *arguments])

    told = explain_row(store, f"roles:train:{ROW}")
    assert json.loads(run(f"roles:train:{ROW}", "--json").stdout) == told
    shown = run(f"roles:train:{ROW}").stdout
    assert all(f"\n{title} " in f"\n{shown}" for title in told)
    assert "fingerprint" in shown
    assert run("roles:train:999").exit_code == 2
    for other in (["select 1"], ["--csv"], ["--file", "x.sql"], ["--parquet", "x.parquet"]):
        result = run(f"roles:train:{ROW}", *other)
        assert (result.exit_code, "--explain-row" in result.stderr) == (2, True)
