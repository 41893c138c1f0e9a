"""What fuzzing has found (tests/fuzz): files that ended in a traceback, or filled the memory."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, DataError, DistillError, IntegrityError
from pipeline.file_names import CONFIG_FILE
from pipeline.record_file import read_record
from pipeline.sets.record import SetRecord, read_set_record
from pipeline.sets.verify import verify_shards
from pipeline.sources.corpus import FilePart
from pipeline.sources.row_files import open_rows
from pipeline.tasks.task import Corpus, Task, load_task, own_manifest, parse_manifest
from student.model.config_file import read_config
from student.model.pretrained import MaskedWordStudent
from student.model.student import Student
from teacher.imported.answer_rows import read_answers
from teacher.imported.import_settings import AnswersFile
from tests.helpers.formats import FOLDER
from tests.helpers.messages import naming
from tests.helpers.toy_students import ENCODER_FIELDS

CORPUS = Corpus(name="own", columns=("text",))
DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text", [DEEP, "{a: " * 2000, "splits: 2020-13-45", "name: !!int x", "name: !!float x", "name: !!timestamp x"]
)
def test_yaml_that_its_reader_stumbles_over(text: str) -> None:
    with pytest.raises(ConfigError, match=r"own\.yaml: .*YAML"):
        parse_manifest(Task, text, "own.yaml")


def test_yaml_that_grows_when_it_is_shown(tmp_path: Path) -> None:
    levels = [f"- &{chr(98 + k)} [{', '.join([f'*{chr(97 + k)}'] * 10)}]" for k in range(9)]
    (tmp_path / "own.yaml").write_text("name:\n- &a [x, x]\n" + "\n".join(levels))
    with pytest.raises(ConfigError) as caught:
        own_manifest(Task, tmp_path / "own.yaml", None, "--task")
    assert len(str(caught.value)) < 5000


def test_a_document_that_is_nested_too_deep(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(DEEP)
    with pytest.raises(DataError, match=naming("x.jsonl: ")):
        FilePart(tmp_path / "x.jsonl", CORPUS)
    (tmp_path / "x.jsonl").write_text('{"text": ' + DEEP)
    with pytest.raises(DataError, match=naming("x.jsonl, line 1: ")):
        FilePart(tmp_path / "x.jsonl", CORPUS)


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv"])
def test_a_column_that_is_there_twice_is_named(tmp_path: Path, name: str) -> None:
    between = "," if name.endswith("csv") else "\t"
    (tmp_path / name).write_text("\n".join(between.join(row) for row in (["a", "b", "a"], ["1", "2", "3"])))
    assert open_rows(tmp_path / name).table(["b"]).to_pylist() == [{"b": "2"}]  # nobody asks for the others
    with pytest.raises(DataError, match=naming(f"{name}: ", "'a'")):
        open_rows(tmp_path / name).table()


def test_a_name_of_a_column_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b'"a\nb\xff",c\n1,2\n')
    with pytest.raises(DataError, match=naming("rows.csv: line 2: byte 0xff")):
        open_rows(tmp_path / "rows.csv").table()
    pq.write_table(pa.table({"text": ["one"]}), tmp_path / "x.parquet", compression="none")
    data = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "x.parquet").write_bytes(data.replace(b"text", b"te\xe9t"))
    for read in (open_rows, lambda path: FilePart(path, CORPUS)):
        with pytest.raises(DataError, match=r"x\.parquet: "):
            read(tmp_path / "x.parquet")


def test_a_key_of_an_answer_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_bytes(b'{"logits": {"entail\x8f": 1}}\n')
    with pytest.raises(DataError, match=naming("answers.jsonl: line 1: byte 0x8f")):
        read_answers(AnswersFile(file=tmp_path / "answers.jsonl", task="rte", teacher="any"), load_task("rte"))


@pytest.mark.parametrize(
    "changes",
    [
        {"vector_size": 2**22},
        {"hidden_size": 2**22},
        {"vocabulary_size": 2**22},
        {"vector_size": 10**12},
        {"num_bigrams": 2**20},
    ],
)
def test_a_config_that_describes_more_than_memory_holds(tmp_path: Path, changes: dict[str, Any]) -> None:
    run = Path(shutil.copytree(FOLDER / "run", tmp_path / "run"))
    config = read_record(run / CONFIG_FILE) | {"head": "mlp", "hidden_size": 8}
    sizes = {name: value for name, value in changes.items() if name in ENCODER_FIELDS}
    changed = config | changes | {"encoder": config["encoder"] | sizes}
    (run / CONFIG_FILE).write_text(json.dumps({name: changed[name] for name in config}))
    with pytest.raises(IntegrityError, match=naming("run/config.json: ")):
        Student.load(run)


def test_a_pretrained_student_is_bounded_too(tmp_path: Path) -> None:
    run = Path(shutil.copytree(FOLDER / "run-pretrained", tmp_path / "run"))
    (run / CONFIG_FILE).write_text(json.dumps(read_record(run / CONFIG_FILE) | {"num_outputs": 2**22}))
    with pytest.raises(IntegrityError, match=naming("run/config.json: ", "bytes")):
        MaskedWordStudent.load(run)


@pytest.mark.parametrize("text", [DEEP, "[]", '{"kind": []}', '{"kind": {}, "format_version": 1}', "{}", '"x"'])
def test_a_config_that_is_anything(tmp_path: Path, text: str) -> None:
    (tmp_path / CONFIG_FILE).write_text(text)
    with pytest.raises(DistillError, match=CONFIG_FILE):
        read_config(tmp_path / CONFIG_FILE)


def with_last_shard(root: Path, old: bytes, new: bytes) -> SetRecord:
    """The record of a set as its maker writes it, once bytes of its last shard are others."""
    record = read_set_record(root)
    shard = record.shards[-1]
    data = (root / shard.path).read_bytes()
    changed = data.replace(old, new)
    assert changed != data
    (root / shard.path).write_bytes(changed)
    digest = {"bytes": len(changed), "sha256": hashlib.sha256(changed).hexdigest()}
    return record.model_copy(update={"shards": (*record.shards[:-1], shard.model_copy(update=digest))})


def test_statistics_of_levels_that_are_not_the_columns(tmp_path: Path) -> None:
    """The field of one histogram, 2 in Parquet's Thrift, becomes 3, that of another: pyarrow ends the process."""
    root = Path(shutil.copytree(FOLDER / "topk", tmp_path / "topk"))
    record = with_last_shard(root, b"\x29\x26", b"\x39\x26")
    with pytest.raises(IntegrityError, match=naming("train-00000-of-00001.parquet: ", "Definition level")):
        verify_shards(root, record)


def test_a_name_of_a_shards_column_that_is_no_text(tmp_path: Path) -> None:
    root = Path(shutil.copytree(FOLDER / "topk", tmp_path / "topk"))
    record = with_last_shard(root, b"candidates", b"candidate\xe9")
    with pytest.raises(IntegrityError, match=naming("masked_words/train-00000-of-00001.parquet: ", "'utf-8'")):
        verify_shards(root, record)
