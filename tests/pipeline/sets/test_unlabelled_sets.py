"""Sets with unlabelled rows: verified, shared without text, reported, and trained from."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from distill.apps.report.set_page import set_page
from pipeline.errors import IntegrityError
from pipeline.files import sha256
from pipeline.sets.files import footer_of
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord, changed
from pipeline.sets.set_settings import JoinSettings
from pipeline.sets.verify import verify_shards
from pipeline.sharing.join import join
from pipeline.sharing.push import without_text
from pipeline.tasks.target import NO_LABEL
from student.data import load_examples
from student.train import train
from teacher.dumps import dump
from tests.helpers.dumps import TRAIN_ROWS, dump_config
from tests.helpers.shards import write_examples
from tests.helpers.students import tiny_config

NEW = [f"the {thing} was great but the music was {word} ." for thing in ("tea", "rice", "door") for word in "abcd"]


@pytest.fixture(scope="module")
def mixed(work: Path, teachers: Path, tmp_path_factory: pytest.TempPathFactory) -> ExampleSet:
    """The single-sentence task with twelve unlabelled rows; read only."""
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "new.txt").write_text("\n".join(NEW))
    config = dump_config(work, "opinion", folder, unlabelled=str(folder / "new.txt"), rows_per_shard=200)
    dump(config, "distill teacher-dump --unlabelled new.txt")
    return ExampleSet.open(folder / "opinion-unlabelled")


def rewritten(root: Path, record: SetRecord, change: Callable[[pa.Table], pa.Table]) -> SetRecord:
    """Changes the rows of train; the shard gets the right footer and an honest record."""
    (shard,) = record.shards_of("train")
    path = root / shard.path
    table = change(pq.read_table(path, partitioning=None)).replace_schema_metadata(None)
    write_examples(path, table, footer_of(record, shard))
    measured = shard.model_copy(update={"bytes": path.stat().st_size, "sha256": sha256(path), "rows": table.num_rows})
    return record.model_copy(update={"shards": (*record.shards_of("validation"), measured)})


def put(column: str, row: int, value: object) -> Callable[[pa.Table], pa.Table]:
    """Changes one value of a table."""

    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(column)
        values = table.column(column).to_pylist()
        values[row] = value
        return table.set_column(at, table.schema.field(column), pa.array(values, table.schema.field(column).type))

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (put("origin", TRAIN_ROWS, "original"), "origin"),
        (put("origin", TRAIN_ROWS, "mask"), "origin"),
        (put("origin", 0, "unlabelled"), "origin"),
        (put("label", TRAIN_ROWS, 1), "unlabelled row"),
        (put("sentence1", TRAIN_ROWS, "another text"), "text_hash"),
        (lambda table: table.slice(0, TRAIN_ROWS + 1), "source rows"),
    ],
)
def test_what_is_wrong_with_them_is_found(
    mixed: ExampleSet, tmp_path: Path, change: Callable[[pa.Table], pa.Table], problem: str
) -> None:
    root = shutil.copytree(mixed.root, tmp_path / "own")
    verify_shards(root, rewritten(root, mixed.record, lambda table: table))
    with pytest.raises(IntegrityError, match=problem):
        verify_shards(root, rewritten(root, mixed.record, change))


def test_a_set_that_does_not_tell_of_them_has_none(mixed: ExampleSet) -> None:
    with pytest.raises(IntegrityError, match="origin"):
        verify_shards(mixed.root, changed(mixed.record, unlabelled=None))


@pytest.mark.parametrize(
    "wrong", [{"first_row": TRAIN_ROWS - 1}, {"rows": 11}, {"found": 3}, {"cut": 13}, {"empty": -1}]
)
def test_a_record_whose_numbers_do_not_fit_is_refused(mixed: ExampleSet, wrong: dict[str, int]) -> None:
    assert mixed.record.unlabelled is not None
    values = mixed.record.model_dump(exclude_none=True)
    values["unlabelled"] |= wrong
    with pytest.raises(ValidationError, match="unlabelled"):
        SetRecord(**values)


def test_without_text_and_joined(mixed: ExampleSet, work: Path, store: Path, tmp_path: Path) -> None:
    """One's own data are those of the task: the other rows are told as missing, and the set is the plain one."""
    with without_text(mixed.root, mixed.record) as (blind, record):
        assert record.unlabelled == mixed.record.unlabelled
        verify_shards(blind, record)
        flags = {"manifest": work / "opinion.yaml", "data": work / "data", "store": tmp_path, "name": "joined"}
        joined = join(JoinSettings.from_flags(set=str(blind), **flags), "distill join")
    assert joined.missing["train"] == [(TRAIN_ROWS + k, 0) for k in range(len(NEW))]
    assert joined.extra == joined.other_gold == {"train": [], "validation": []}
    assert joined.record.unlabelled is None
    plain = ExampleSet.open(store / "opinion")
    assert joined.record.fingerprint == plain.record.fingerprint
    columns = ("source_row", "origin", "sentence1", "label", "text_hash")
    assert ExampleSet.open(joined.root).read("train", columns) == plain.read("train", columns)


def test_a_student_learns_from_them(mixed: ExampleSet, tmp_path: Path) -> None:
    examples = load_examples(mixed, "train", "origin = 'unlabelled'")
    assert len(examples) == len(NEW)
    assert (np.asarray(examples.label_N) == NO_LABEL).all()
    where = "origin = 'unlabelled' or margin(logits) > 0"
    train(tiny_config(mixed.root, tmp_path, where=where), "distill train-student")
    rows = mixed.read("train", ("origin",), where)
    assert pc.sum(pc.equal(rows.column("origin"), "unlabelled")).as_py() == len(NEW)
    assert (tmp_path / "run.json").exists()


def test_the_report_of_the_set(mixed: ExampleSet) -> None:
    page = set_page(mixed.root)
    assert f"{mixed.record.num_rows:,} rows" in page.lead
