"""Variants on disk: parts, what is kept of them, and the folder's record."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import FingerprintMismatchError, IntegrityError, PassingError, limit_reached
from pipeline.record_file import read_work_record
from pipeline.sets.record_parts import Sample, Setting
from teacher.augment import augment
from teacher.augment import variants as variants_module
from teacher.augment.augment import write_distinct
from teacher.augment.variants import SCHEMA, Variants, VariantsFolder, open_variants
from tests.helpers.messages import naming

SETTINGS: dict[str, Setting] = {"method": "tinybert", "seed": 1, "replace_probability": 0.4}
Text = tuple[str, str | None]
Variant = tuple[int, int, Text]  # source row, number, sentences


def originals_of(texts: Iterable[Text]) -> pa.Table:
    first, second = zip(*texts, strict=True)
    return pa.table(
        {
            "source_row": pa.array(range(len(first)), pa.int64()),
            "sentence1": pa.array(first, pa.string()),
            "sentence2": pa.array(second, pa.string()),
        }
    )


def variants_of(rows: Iterable[Variant]) -> pa.Table:
    values = [(row, number, "tinybert", *text, 1, 3) for row, number, text in rows]
    columns = [list(column) for column in zip(*values, strict=True)] or [[] for _ in SCHEMA]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def started(root: Path, num_rows: int = 4, command: str = "distill augment", **changes: Setting) -> VariantsFolder:
    """A folder for four variants of each row."""
    folder = VariantsFolder.of(root, SETTINGS | changes, num_rows, 4, command)
    folder.start()
    return folder


def kept(root: Path, originals: Sequence[Text], variants: Sequence[Variant], per_part: int = 1000) -> Variants:
    """Writes variants, four of a row and so many rows a part, and keeps those that are distinct."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variants_module, "VARIANTS_PER_PART", 4 * per_part)
        folder = started(root, len(originals))
        for part in folder.generated:
            of_part = variants_of(row for row in variants if part.start <= row[0] < part.stop)
            folder.work.write_table(part, of_part)
        record = write_distinct(folder, originals_of(originals), "tinybert", 4, SETTINGS)
        found = open_variants(root)
    assert found is not None
    assert found.record == record
    return found


def rows_in(variants: Variants, start: int = 0, stop: int = 10**6) -> list[Variant]:
    names = ["source_row", "variant", "sentence1", "sentence2"]
    found = [tuple(row.values()) for row in variants.read(start, stop).select(names).to_pylist()]
    return [(row, variant, (first, second)) for row, variant, first, second in found]


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


SINGLES: list[Text] = [("a", None), ("b", None), ("a", None), ("d", None)]
MADE: list[Variant] = [
    (0, 1, ("x", None)),
    (0, 2, ("b", None)),  # the original of a later row
    (1, 1, ("y", None)),
    (1, 2, ("x", None)),  # repeats 0:1
    (1, 3, ("y", None)),  # repeats 1:1
    (2, 2, ("x", None)),  # repeats 0:1
    (2, 4, ("a", None)),  # its own original, which there is twice
    (3, 1, ("z ", None)),
    (3, 2, ("z", None)),  # another text, if only by a space
    (3, 3, ("Z", None)),
]
KEPT = [MADE[n] for n in (0, 2, 7, 8, 9)]


def write_generated(folder: VariantsFolder) -> None:
    folder.work.write_table(folder.generated[0], variants_of(MADE))


@pytest.mark.parametrize("per_part", [1, 2, 3, 1000])
def test_each_text_once_over_the_whole_set_and_originals_first(tmp_path: Path, per_part: int) -> None:
    variants = kept(tmp_path, SINGLES, MADE, per_part)
    record = variants.record
    assert rows_in(variants) == KEPT
    counts = record.model_dump(include={"source_rows", "tried", "generated", "unchanged", "repeated", "rows"})
    assert counts == {
        "source_rows": 4,
        "tried": 16,
        "generated": 10,
        "unchanged": 2,
        "repeated": 3,
        "rows": 5,
    }
    assert (record.changed_words, record.words, record.change_rate) == (5, 15, 1 / 3)
    assert record.multiplier == 1 + 5 / 4
    assert record.sample == tuple(
        Sample(source_row=row, variant=n, origin="tinybert", original=(SINGLES[row][0],), text=(text[0],))
        for row, n, text in KEPT
    )
    assert record.lines()["given up: no word left to change or to keep"] == 6
    assert not (tmp_path / "generated").exists()
    assert len(list((tmp_path / "rows").iterdir())) == -(-4 // per_part)


def test_the_record_does_not_depend_on_the_parts(tmp_path: Path) -> None:
    records = [kept(tmp_path / str(size), SINGLES, MADE, size).record for size in (1, 3, 1000)]
    assert records[0] == records[1] == records[2]
    other = [*MADE[:-1], (3, 3, ("ZZ", None))]
    assert kept(tmp_path / "other", SINGLES, other).record.rows_sha256 != records[0].rows_sha256


def test_a_pair_is_repeated_only_if_both_sentences_are(tmp_path: Path) -> None:
    made: list[Variant] = [
        (0, 1, ("a", "x")),
        (0, 2, ("ab", "")),  # not the same as ("a", "b")
        (1, 1, ("b", "a")),  # the original of row 0 the other way round
        (1, 2, ("a", "x")),  # repeats 0:1
        (1, 3, ("a", "b")),  # the original of row 0
    ]
    variants = kept(tmp_path, [("a", "b"), ("c", "d")], made)
    record = variants.record
    assert rows_in(variants) == made[:3]
    assert (record.unchanged, record.repeated, record.rows) == (1, 1, 3)
    assert record.sample[0].original == ("a", "b")


texts = st.sampled_from([("a", None), ("b", None), ("c", None), ("A", None)])


@settings(max_examples=40)
@given(originals=st.lists(texts, min_size=1, max_size=4), data=st.data(), per_part=st.integers(1, 4))
def test_known_answers_by_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory, originals: list[Text], data: st.DataObject, per_part: int
) -> None:
    made = [(row, n, data.draw(texts)) for row in range(len(originals)) for n in range(1, data.draw(st.integers(1, 4)))]
    seen, expected = set(originals), []
    for variant in made:
        if variant[2] not in seen:
            seen.add(variant[2])
            expected.append(variant)
    variants = kept(tmp_path_factory.mktemp("kept"), originals, made, per_part)
    record = variants.record
    assert rows_in(variants) == expected
    assert record.unchanged == sum(text in originals for _, _, text in made)
    assert record.generated == len(made) == record.unchanged + record.repeated + record.rows


def test_nothing_kept_is_no_error(tmp_path: Path) -> None:
    variants = kept(tmp_path, [("a", None)], [(0, 1, ("a", None))])
    record = variants.record
    assert (record.rows, record.multiplier, record.change_rate, record.sample) == (0, 1, 0, ())
    assert rows_in(variants) == []


def test_a_sample_of_ten_is_spread_over_all(tmp_path: Path) -> None:
    made: list[Variant] = [(row, n, (f"{row}:{n}", None)) for row in range(7) for n in (1, 2, 3, 4)]
    record = kept(tmp_path, [(str(row), None) for row in range(7)], made, 2).record
    numbers = [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]  # of 28
    assert [sample.text[0] for sample in record.sample] == [made[n][2][0] for n in numbers]


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (1, 3), (3, 4), (2, 2), (0, 1)])
@pytest.mark.parametrize("per_part", [1, 3, 1000])
def test_a_range_of_source_rows_is_read_whole(tmp_path: Path, per_part: int, start: int, stop: int) -> None:
    variants = kept(tmp_path, SINGLES, MADE, per_part)
    assert rows_in(variants, start, stop) == [row for row in KEPT if start <= row[0] < stop]
    assert variants.read(start, stop).schema.equals(SCHEMA)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 2}, ("seed: 1", "2")),
        ({"replace_probability": 0.5}, ("replace_probability: 0.4", "0.5")),
        ({"pairs": "both"}, ("pairs: ", "both")),
    ],
)
@pytest.mark.parametrize("place", ["rows", "generated"])
def test_another_setting_is_named_and_nothing_is_lost(
    tmp_path: Path, changes: dict[str, Any], named: tuple[str, ...], place: str
) -> None:
    if place == "rows":
        kept(tmp_path, SINGLES, MADE)
    else:
        write_generated(started(tmp_path, command="first"))
    before = files(tmp_path)
    with pytest.raises(FingerprintMismatchError, match=naming(tmp_path, *named, "--name", "--variants")):
        started(tmp_path, **changes)
    assert files(tmp_path) == before


def test_settings_of_a_folder_with_nothing_in_it_may_change(tmp_path: Path) -> None:
    for seed in (1, 2):
        started(tmp_path, command=f"command {seed}", seed=seed)
        assert open_variants(tmp_path) is None
    record = read_work_record(tmp_path / "augment.json")
    assert record == {"state": "running", "command": "command 2", "settings": SETTINGS | {"seed": 2}}


def test_the_first_command_is_kept_in_the_record(tmp_path: Path) -> None:
    write_generated(started(tmp_path, command="first"))
    started(tmp_path, command="second")
    assert json.loads((tmp_path / "augment.json").read_text())["command"] == "first"


def test_a_part_holds_so_many_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants_module, "VARIANTS_PER_PART", 12)
    for num_variants, count in [(4, 4), (12, 10), (1000, 10)]:
        folder = VariantsFolder.of(tmp_path, SETTINGS, 10, num_variants)
        assert len(folder.rows) == len(folder.generated) == count


@pytest.mark.parametrize("damage", ["torn", "gone", "a byte"])
def test_damaged_rows_are_noticed(tmp_path: Path, damage: str) -> None:
    variants = kept(tmp_path, SINGLES, MADE)
    path = variants.folder.path(variants.folder.rows[0])
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[len(data) // 3] ^= 1
        path.write_bytes(data if damage == "a byte" else data[:-50])
    assert open_variants(tmp_path) is None
    if damage != "a byte":
        with pytest.raises(IntegrityError, match=naming(f"{tmp_path}: ")):
            variants.read(0, 4)


def test_what_a_kill_in_the_last_moment_left_is_removed(tmp_path: Path) -> None:
    found = kept(tmp_path, SINGLES, MADE)
    (tmp_path / "generated").mkdir()
    (tmp_path / "generated" / "train-00000-of-00001.parquet").write_text("whatever")
    assert open_variants(tmp_path) is not None
    assert not (tmp_path / "generated").exists()
    assert rows_in(found) == KEPT


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"state": "running"}', '{"state": "finished", "settings": {}, "command": ""}']
)
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "augment.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"augment\.json: "):
        open_variants(tmp_path)


def test_a_full_disk_is_no_reason_to_remove_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment, "REPEATED", "copy (select $files from range(100000)) to '/dev/full'")
    with pytest.raises(PassingError, match="generated/spilled: "):
        kept(tmp_path / "folder", [("a", None)], [])


def test_no_memory_left_is_no_reason_to_remove_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hungry = "set max_memory = '1MB'; select $files, list(i) from range(10000000) numbers(i)"
    monkeypatch.setattr(augment, "REPEATED", hungry)
    with pytest.raises(duckdb.OutOfMemoryException) as caught:
        kept(tmp_path / "folder", [("a", None)], [])
    assert limit_reached(caught.value) is not None
