"""Sets and students of this format must stay readable. ``fixtures/formats/generate.py`` has written them.

``python -m tests.test_formats`` writes ``docs/set.schema.json`` anew.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.query.catalog import open_catalog
from pipeline.record_file import without_checksum
from pipeline.sets.card import card_text
from pipeline.sets.codec_text import CodecName
from pipeline.sets.codecs import Sparse
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.kinds.masked_words import MaskedWordSet, split_table
from pipeline.sets.record import FILE_NAME, FORMAT_VERSION, SetRecord, read_set_record, to_json
from pipeline.sets.record_parts import fingerprint
from pipeline.sets.registry import FORMATS
from pipeline.sets.signals.rows import logits_of
from pipeline.sets.verify import verify_shards
from pipeline.sources.gold import GOLD_TYPE
from student.data import load_examples
from student.lessons.masked_words import evaluate_mlm
from student.model.architecture import FORMAT_VERSION as STUDENT_VERSION
from student.model.pretrained import MaskedWordStudent
from student.predict.predictor import Predictor
from tests.helpers.formats import CODECS, FOLDER

SCHEMA = Path(__file__).parents[1] / "docs" / "set.schema.json"
NUM_ROWS = {"extended": (7, 4), "text-free": (6, 4), "joined": (6, 4)}  # of train and validation
SETS = (*NUM_ROWS, "variants", *CODECS)
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def schema_text() -> str:
    return json.dumps(SetRecord.model_json_schema(), indent=2) + "\n"


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_sound_and_its_record_comes_back(name: str) -> None:
    record = read_set_record(FOLDER / name)
    assert (record.format_version, record.state) == (FORMAT_VERSION, "verified")
    assert without_checksum(json.loads(to_json(record))) == json.loads((FOLDER / name / FILE_NAME).read_text())
    verify_shards(FOLDER / name, record)


@pytest.mark.parametrize("name", NUM_ROWS)
def test_examples_are_still_queried(name: str, tmp_path: Path) -> None:
    record = read_set_record(FOLDER / name)
    assert (record.rows_of("train"), record.rows_of("validation")) == NUM_ROWS[name]
    (tmp_path / "it").symlink_to(FOLDER / name, target_is_directory=True)
    with open_catalog(tmp_path) as connection:
        assert connection.execute("select count(logits) from it").fetchone() == (sum(NUM_ROWS[name]),)


def test_rows_are_still_what_they_were() -> None:
    logit_set = ExampleSet.open(FOLDER / "extended")
    rows, examples = logit_set.read("train", ("sentence1", "logits")), load_examples(logit_set, "train")
    assert rows.column("sentence1")[-1].as_py() == "the soup was good"
    np.testing.assert_array_equal(logits_of(rows, 2), examples.teacher_NC)
    (earlier,) = logit_set.record.versions_before
    versions = [shard.version for shard in logit_set.record.shards_of("train")]
    assert versions == [fingerprint(earlier.settings), None]


def test_sets_without_text_and_joined_ones_are_still_sound() -> None:
    blind, joined = (read_set_record(FOLDER / name) for name in ("text-free", "joined"))
    assert (blind.has_text, joined.has_text) == (False, True)
    assert "The texts are not in this set" in card_text(blind)
    assert (joined.splits["train"].rows, joined.splits["train"].absent) == (7, 1)
    assert joined.settings["joined"] == blind.fingerprint
    assert len(load_examples(ExampleSet.open(FOLDER / "joined"), "train")) == 6


def test_variants_are_still_read_and_queried(tmp_path: Path) -> None:
    logit_set = ExampleSet.open(FOLDER / "variants")
    rows = logit_set.read("train", ("source_row", "variant", "origin", "label")).to_pylist()
    variants = [row for row in rows if row["variant"]]
    assert [row["source_row"] for row in rows if row["origin"] == "original"] == list(range(6))
    assert {(row["origin"], row["label"]) for row in variants} == {("mask", None)}
    (tmp_path / "it").symlink_to(FOLDER / "variants", target_is_directory=True)
    with open_catalog(tmp_path) as connection:
        query = "select count(*) from it_variants where parent.sentence1 is not null"
        count = connection.execute(query).fetchone()
    assert logit_set.record.augmentation
    assert count == (len(variants),) == (logit_set.record.augmentation.rows,)


@pytest.mark.parametrize("run", ["run", "run-int8", "run-pairs"])
def test_a_student_still_says_the_same(run: str) -> None:
    answer = EXPECTED["predictions"][run]
    [prediction] = Predictor(FOLDER / run)([EXPECTED["sentence"]])
    assert prediction["label"] == answer["label"]
    assert prediction["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-5)
    assert json.loads((FOLDER / run / "config.json").read_text())["format_version"] == STUDENT_VERSION


@pytest.mark.parametrize("codec", CODECS)
def test_tokens_and_a_pretrained_student_still_say_the_same(codec: CodecName) -> None:
    """The student's loss on a set depends on every number that is stored in either."""
    scores = evaluate_mlm(
        MaskedWordStudent.load(FOLDER / "run-pretrained"), MaskedWordSet.open(FOLDER / codec), "validation"
    )
    assert scores == pytest.approx(EXPECTED["pretrained"][codec], rel=1e-2)  # bf16 on some processors


@pytest.mark.parametrize("codec", CODECS)
def test_the_documented_way_to_read_a_position_is_ours(codec: CodecName) -> None:
    document = SCHEMA.with_name("format.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```text\n(import json.*?)^```", document, re.MULTILINE | re.DOTALL)
    values: dict[str, Any] = {}
    exec(code.replace("logits/wikipedia", str(FOLDER / codec)), values)  # noqa: S102
    token_set = MaskedWordSet.open(FOLDER / codec)
    _, columns = split_table(next(token_set.read_shard(token_set.shards("train")[0])))
    ours = token_set.record.codec.decode(columns, 1.0, token_set.decoder()).part(0, 1)
    if isinstance(ours, Sparse):
        expected = dict(zip(ours.token_E.tolist(), ours.probability_E.tolist(), strict=True))
    else:
        expected = dict(enumerate(ours.probability_PV[0].tolist()))
    assert values["probabilities"] == pytest.approx(expected, rel=2e-3)


def test_the_documented_columns_are_those_of_the_files() -> None:
    document = SCHEMA.with_name("format.md").read_text(encoding="utf-8")
    for rows, kind in FORMATS.items():
        record = read_set_record(FOLDER / ("sampled" if rows == "masked_words" else "extended"))  # for the sizes alone
        table = document.partition(f"## Rows: `{rows}`")[2].partition("\n## ")[0]
        types = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table.replace("\\", ""), re.MULTILINE))
        for column in kind.columns(record.tokenizer.vocabulary_size, GOLD_TYPE):
            arrow_type = re.sub(r"\w+: ", "", str(column.type)).replace("float", "float32")
            assert types[column.name] == arrow_type, column.name


def test_the_documented_schema_is_that_of_the_record() -> None:
    assert SCHEMA.read_text() == schema_text(), "write it anew: python -m tests.test_formats"


if __name__ == "__main__":
    SCHEMA.write_text(schema_text())
