"""Hostile Parquet files in a set that is otherwise honest and claims to be verified."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import IntegrityError, PassingError
from pipeline.files import sha256
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.verify import verify_shards
from student.data import load_examples
from tests.helpers.hostile import Change, edit, limited, rerecord, rewrite, with_value, with_values
from tests.helpers.messages import naming

SHARD = "examples/train-00001-of-00004.parquet"  # shard 3
MIB = 2**20


def opened(own_set: ExampleSet) -> ExampleSet:
    return ExampleSet.open(own_set.root)


def broken_utf8(name: str) -> Change:
    """Half a surrogate pair, as UTF-8 forbids it, in one row."""

    def change(table: pa.Table) -> pa.Table:
        data = [text.encode() for text in table.column(name).to_pylist()]
        buffers = pa.array([b"\xed\xa0\x80", *data[1:]], pa.binary()).buffers()
        return with_values(table, name, pa.StringArray.from_buffers(len(data), buffers[1], buffers[2], buffers[0]))

    return change


def other_widths(table: pa.Table) -> pa.Table:
    """Three logits in one row and one in the next: as many in all as there should be."""
    logits = table.column("logits").to_pylist()
    return with_values(table, "logits", [[1.0, 2.0, 3.0], [4.0], *logits[2:]], pa.list_(pa.float32()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_widths, "logits"),
        (with_value("ids1", 0, [1, None, 2]), "ids1|id -9223372036854775808"),
        (with_value("ids1", 0, [60_000]), "vocabulary"),
        (with_value("ids1", 0, [1] * 100), "32 tokens"),
        (with_value("label", 0, -7), r"label.* -7"),
        (with_value("label", 0, 77), r"label.* 77|to 77"),
        (with_value("logits", 0, [float("nan"), 1.0]), "finite"),
        (with_value("logits", 0, [None, 1.0]), "logit|finite"),
        (with_value("split", 0, "validation"), "'train'"),
        (with_value("split", 0, "x' or 1=1 --"), "'train'"),
        (broken_utf8("split"), "'train'"),
        (lambda t: t.append_column("label", t.column("label")), "columns"),
        (lambda t: t.append_column("more", t.column("label")), "columns"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_neither_verified_nor_trained_on(own_set: ExampleSet, change: Change, message: str) -> None:
    rewrite(own_set.root, change)
    with pytest.raises(IntegrityError, match=message):
        verify_shards(own_set.root, opened(own_set).record)
    with pytest.raises(IntegrityError, match=message):
        load_examples(opened(own_set), "train")


def test_text_that_is_not_utf8_is_found(own_set: ExampleSet) -> None:
    rewrite(own_set.root, broken_utf8("sentence1"))
    with pytest.raises(IntegrityError, match=naming(f"{SHARD}: ", "utf-8")):
        verify_shards(own_set.root, opened(own_set).record)


@pytest.mark.parametrize(
    ("footer", "message"),
    [
        (b"[" * 100_000, "nested"),
        (b"5", r"footer.* int"),
        (b"[1, 2]", r"footer.* list"),
        (b"\xff", r"train-00001-of-00004\.parquet: "),
        (b'{"count": 1, "count": 2}', "'count'"),
        (b"{}", "footer"),
    ],
)
def test_a_footer_that_is_none_of_ours(own_set: ExampleSet, footer: bytes, message: str) -> None:
    rewrite(own_set.root, lambda table: table, footer=footer)
    with pytest.raises(IntegrityError, match=message):
        verify_shards(own_set.root, opened(own_set).record)


def in_footer(data: bytes, old: bytes, new: bytes) -> bytes:
    """Changes bytes of a Parquet file's metadata, once."""
    size = int.from_bytes(data[-8:-4], "little")
    metadata = data[-8 - size : -8]
    assert old in metadata
    metadata = metadata.replace(old, new, 1)
    return data[: -8 - size] + metadata + len(metadata).to_bytes(4, "little") + data[-4:]


def varint(number: int) -> bytes:
    """A number as Thrift's compact protocol writes it."""
    number, parts = 2 * number, []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-8] + (2**31 - 1).to_bytes(4, "little") + data[-4:],
        lambda data: data[:-8] + bytes(4) + data[-4:],
        lambda data: data[:-4] + b"PARE",
        lambda data: b"PAR1",
        lambda data: b"",
    ],
    ids=["footer beyond the file", "no footer", "encrypted", "magic alone", "empty"],
)
@pytest.mark.parametrize("command", ["verify", "sql"])
def test_a_file_that_is_no_parquet(own_set: ExampleSet, damage: Callable[[bytes], bytes], command: str) -> None:
    path = own_set.root / SHARD
    path.write_bytes(damage(path.read_bytes()))
    rerecord(own_set.root, 3)
    arguments = ["select * from opinion", "--store", own_set.root.parent] if command == "sql" else [own_set.root]
    result = CliRunner().invoke(app, [command, *map(str, arguments)])
    assert result.exit_code == 2
    assert SHARD in result.stderr


def test_a_number_of_rows_that_only_the_footer_knows(own_set: ExampleSet) -> None:
    path = own_set.root / SHARD
    path.write_bytes(in_footer(path.read_bytes(), b"\x16" + varint(24) + b"\x19", b"\x16" + varint(10**12) + b"\x19"))
    rerecord(own_set.root, 3, rows=10**12)
    assert pq.read_metadata(path).num_rows == 10**12
    with pytest.raises(IntegrityError, match=naming(f"{SHARD}: 24 rows", "1,000,000,000,000")):
        verify_shards(own_set.root, opened(own_set).record)


def repeated(name: str) -> Change:
    """A text of 60 MiB in every row, which a dictionary stores once."""

    def change(table: pa.Table) -> pa.Table:
        column = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), ["x" * (60 * MIB)])
        return with_values(table, name, column, column.type)

    return change


@pytest.mark.slow
@pytest.mark.parametrize("name", ["split", "origin", "sentence1"])
def test_a_text_that_a_dictionary_repeats_is_unpacked_once(own_set: ExampleSet, name: str) -> None:
    bomb = repeated(name)

    def many(table: pa.Table) -> pa.Table:
        return bomb(pa.concat_tables([table] * 100))

    rewrite(own_set.root, many, store_schema=False, dictionary_pagesize_limit=2**31 - 1, use_dictionary=[name])
    assert (own_set.root / SHARD).stat().st_size < MIB
    assert SHARD in limited("verify", own_set.root)


@pytest.mark.slow
def test_lists_that_run_lengths_repeat(own_set: ExampleSet) -> None:
    rewrite(own_set.root, with_value("ids1", 0, [1] * 40_000_000))
    for command in (["verify", own_set.root], ["train-student", "--set", own_set.root, "--output-dir", "run"]):
        assert "bomb" in limited(*command)


@pytest.mark.slow
def test_tens_of_thousands_of_columns(own_set: ExampleSet) -> None:
    rewrite(own_set.root, lambda table: pa.table({f"c{k}": [1] for k in range(50_000)}))
    assert "50,000 columns" in limited("verify", own_set.root)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [pipe, endless, Path.mkdir])
@pytest.mark.parametrize("name", [SHARD, "examples/validation-00000-of-00002.parquet", "tokenizer.json"])
def test_what_is_no_file_is_not_opened(own_set: ExampleSet, name: str, make: Callable[[Path], None]) -> None:
    (own_set.root / name).unlink()
    make(own_set.root / name)
    store = own_set.root.parent
    commands: list[list[Any]] = [
        ["verify", own_set.root],
        ["pull", own_set.root, "--store", store.parent / "pulled"],
        ["train-student", "--set", own_set.root, "--output-dir", store.parent / "run"],
    ]
    if name != "tokenizer.json":  # SQL does not need it
        commands.append(["sql", "select count(*) from opinion", "--store", store])
    for command in commands:
        result = CliRunner().invoke(app, list(map(str, command)))
        assert result.exit_code == 2, command
        assert "error:" in result.stderr


def test_a_file_that_the_manifest_does_not_list_is_found(own_set: ExampleSet) -> None:
    shutil.copy(own_set.root / SHARD, own_set.root / "examples" / "train-more.parquet")
    with pytest.raises(IntegrityError, match=naming("examples/train-more.parquet: ")):
        verify_shards(own_set.root, own_set.record)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"signals__mlm__codec__top_k": None}, "codec.topk.top_k"),
        ({"signals__mlm__codec__top_k": 10**18}, "codec.topk.top_k"),
        ({"signals__mlm__codec__vocabulary_size": 10**18}, "codec.topk.vocabulary_size"),
    ],
)
def test_a_codec_that_cannot_be(token_store: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    root = Path(shutil.copytree(token_store / "topk", tmp_path / "topk"))
    edit(root, **changes)
    for command in (["verify", root], ["pretrain-student", "--set", root, "--output-dir", tmp_path / "run"]):
        result = CliRunner().invoke(app, list(map(str, command)))
        assert result.exit_code == 2
        assert message in result.stderr


def in_all_rows(name: str, value: int) -> Change:
    def change(table: pa.Table) -> pa.Table:
        return with_values(table, name, [[value] * len(row) for row in table.column(name).to_pylist()])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (in_all_rows("ids", 999), "vocabulary"),
        (in_all_rows("targets", 999), "vocabulary"),
        (in_all_rows("positions", 999), "tokens"),
        (with_value("ids", 0, [1] * 100), "32 tokens"),
        (with_value("ids", 0, [None] * 9), "ids is null"),
    ],
)
def test_rows_of_tokens_that_would_break_a_student(
    token_store: Path, tmp_path: Path, change: Change, message: str
) -> None:
    root = Path(shutil.copytree(token_store / "sampled", tmp_path / "sampled"))
    for number in (1, 2, 3):
        rewrite(root, change, number)
    for command in (["verify", root], ["pretrain-student", "--set", root, "--output-dir", tmp_path / "run"]):
        result = CliRunner().invoke(app, list(map(str, command)))
        assert result.exit_code == 2, result.output
        assert message in result.stderr


@pytest.mark.parametrize("header", [2**63, 10, 0])
def test_a_decoder_whose_header_lies(token_store: Path, tmp_path: Path, header: int) -> None:
    root = Path(shutil.copytree(token_store / "hidden", tmp_path / "hidden"))
    path = root / "decoder.safetensors"
    path.write_bytes(header.to_bytes(8, "little") + path.read_bytes()[8:])
    edit(root, signals__mlm__decoder_sha256=sha256(path))
    result = CliRunner().invoke(app, ["verify", str(root)])
    assert result.exit_code == 2
    assert "decoder.safetensors: " in result.stderr


def test_a_number_of_positions_that_no_disk_holds(token_store: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(token_store / "hidden", tmp_path / "hidden"))
    edit(root, scores={"train": {"positions": 1e308}, "validation": {"positions": 1e308}})
    command = ["recode", root, "--name", "small", "--store", tmp_path / "new" / "store"]
    result = CliRunner().invoke(app, list(map(str, command)))
    assert result.exit_code == PassingError.exit_code
    assert "disk" in result.stderr
