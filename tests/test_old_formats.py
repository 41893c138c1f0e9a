"""Sets and students of every format version there has been must stay readable."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.logit_set.examples import logits_of
from pipeline.logit_set.reader import open_set
from pipeline.logit_set.record import ExamplesRecord
from pipeline.logit_set.verify import verify_shards
from pipeline.sql.gate import open_files, select
from student.data import load_examples
from student.model.architecture import FORMAT_VERSION
from student.predict import Predictor

EXAMPLES_VERSION = ExamplesRecord.model_fields["format_version"].default
FORMATS = sorted(path for path in (Path(__file__).parent / "fixtures" / "formats").glob("v*"))


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_a_logit_set_is_still_read(folder: Path) -> None:
    logit_set = open_set(folder / "opinion")
    verify_shards(logit_set.root, logit_set.record)
    rows = logit_set.read("train", ("sentence1", "logits"))
    examples = load_examples(logit_set, "train")
    assert rows.num_rows == len(examples) == 6
    np.testing.assert_array_equal(logits_of(rows, 2), examples.teacher_NC)
    with open_files({"examples": [logit_set.root / shard.path for shard in logit_set.record.shards]}) as connection:
        keys = select(connection, "select split, source_row from examples order by all").fetchall()
    assert keys == [("train", k) for k in range(6)] + [("validation", k) for k in range(4)]


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_a_student_still_says_the_same(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    assert expected["predictions"]
    for run, answer in expected["predictions"].items():
        [prediction] = Predictor(folder / run)([expected["sentence"]])
        assert prediction["label"] == answer["label"]
        assert prediction["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-5)


@pytest.mark.parametrize(
    ("file", "current"), [("opinion/distill.json", EXAMPLES_VERSION), ("run/config.json", FORMAT_VERSION)]
)
def test_there_is_a_fixture_of_every_version(file: str, current: int) -> None:
    versions = {json.loads((folder / file).read_text())["format_version"] for folder in FORMATS}
    assert versions == set(range(1, current + 1))
