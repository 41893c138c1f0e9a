"""New versions of a set: which files they share, which texts the teacher predicts, what is refused."""

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError, FingerprintMismatchError, IntegrityError
from pipeline.parquet import read_footer
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import FILE_NAME, read_set_record
from pipeline.sets.record_parts import fingerprint
from pipeline.sets.signals.rows import logits_of
from pipeline.sets.verify import verify_shards
from teacher.dumps import dump
from teacher.dumps.examples import ExamplesJob
from tests.helpers.commands import distill, distill_in_two_processes, kill_when
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS, dump_config
from tests.helpers.messages import naming
from tests.helpers.word_tasks import make_louder

Lines = list[dict[str, Any]]
NEW = [{"sentence1": f"the wine was good {number} times .", "label": 1} for number in ("two", "three", "two")]


@pytest.fixture(scope="module")
def loud(work: Path, teachers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher whose predictions differ from row to row, with a set of them. Do not change it."""
    folder = tmp_path_factory.mktemp("loud")
    shutil.copytree(teachers / "opinion", folder / "teacher")
    make_louder(folder / "teacher")
    dump(dump_config(work, "opinion", folder, model_name_or_path=str(folder / "teacher")), "distill teacher-dump")
    return folder


@pytest.fixture
def versions(work: Path, loud: Path, tmp_path: Path) -> Path:
    """A store with the set ``opinion``, and next to it ``data``. A test may change both."""
    shutil.copytree(loud / "opinion", tmp_path / "store" / "opinion")
    shutil.copytree(loud / "teacher", tmp_path / "teacher")
    shutil.copytree(work / "data" / "opinion", tmp_path / "data" / "opinion")
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The token ids of every row that the teacher reads, but for the rows that it is tried on first."""
    seen: list[list[int]] = []

    predict = ExamplesJob.predict

    def noted(job: ExamplesJob, inputs: Sequence[Any], advance: Any) -> Any:
        seen.extend(row.ids1 for row in inputs)
        return predict(job, inputs, advance)

    monkeypatch.setattr(ExamplesJob, "predict", noted)
    return seen


def edit(folder: Path, change: Callable[[Lines], Lines], split: str = "train") -> None:
    path = folder / "data" / "opinion" / f"{split}.jsonl"
    lines = change([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def extend(work: Path, folder: Path, name: str = "second", old: str | None = "opinion", **changes: Any) -> ExampleSet:
    flags = {
        "data": folder / "data",
        "name": name,
        "extend": old,
        "model_name_or_path": str(folder / "teacher"),
        **changes,
    }
    record = dump(dump_config(work, "opinion", folder / "store", **flags), "distill teacher-dump --extend")
    assert record is not None
    assert record.state == "verified"
    return ExampleSet.open(folder / "store" / name)


def shared(a: Path, b: Path) -> set[str]:
    """The files that two sets have in common, one inode each."""
    inodes = {path.stat().st_ino for path in (a / "examples").iterdir()}
    return {path.name for path in (b / "examples").iterdir() if path.stat().st_ino in inodes}


def assert_same_rows(one: ExampleSet, other: ExampleSet) -> None:
    """Equal except for float noise in the logits, which were computed in other batches."""
    for split in ("train", "validation"):
        columns = ("source_row", "sentence1", "label", "ids1", "text_hash", "logits")
        ours, theirs = (logit_set.read(split, columns) for logit_set in (one, other))
        assert ours.drop(["logits"]) == theirs.drop(["logits"])
        assert logits_of(theirs, 2).std() > 0.1
        np.testing.assert_allclose(logits_of(ours, 2), logits_of(theirs, 2), rtol=0, atol=1e-5)


def assert_as_dumped_anew(extended: ExampleSet, work: Path, folder: Path) -> None:
    """The same rows and, but for float noise, the same logits as of a set that shares nothing."""
    plain = extend(work, folder, "plain", None)
    assert extended.record.fingerprint == plain.record.fingerprint
    assert_same_rows(extended, plain)
    for split, scores in plain.record.scores.items():
        assert extended.record.scores[split] == pytest.approx(scores)


def test_appended_rows_are_all_that_is_asked(versions: Path, work: Path, asked: list[list[int]]) -> None:
    edit(versions, lambda lines: [*lines, *NEW])
    second = extend(work, versions)
    assert len(asked) == 2  # two of the three new rows have the same text
    old = versions / "store" / "opinion"
    assert shared(old, second.root) == {path.name for path in (old / "examples").iterdir()}
    record = second.record
    assert [(s.path, s.start, s.stop) for s in record.shards_of("train")[3:]] == [
        ("examples/train-00003-of-00004.parquet", 72, 96),
        ("examples/train-00004-of-00005.parquet", 96, 99),
    ]
    (version,) = record.versions_before
    first = read_set_record(old)
    assert (version.format_version, version.settings) == (1, first.settings)
    for shard in record.shards:
        footer = read_footer(second.root / shard.path)
        writer = (1, record.fingerprint) if shard.index == 4 else (1, first.fingerprint)
        assert (footer["format_version"], footer["fingerprint"]) == writer
    assert "opinion (" in record.notes[-1]
    assert_as_dumped_anew(second, work, versions)


def test_only_new_and_changed_rows_are_asked(versions: Path, work: Path, asked: list[list[int]]) -> None:
    edit(versions, lambda lines: [*lines[:30], NEW[0], *lines[30:50], NEW[1], *lines[51:]])
    second = extend(work, versions)
    assert len(asked) == 2
    assert shared(versions / "store" / "opinion", second.root) == {
        "train-00000-of-00004.parquet",
        "validation-00000-of-00002.parquet",
        "validation-00001-of-00002.parquet",
    }
    assert_as_dumped_anew(second, work, versions)


def test_other_gold_asks_nothing_but_writes_the_file_anew(versions: Path, work: Path, asked: list[list[int]]) -> None:
    edit(versions, lambda lines: [*lines[:-1], lines[-1] | {"label": 1 - lines[-1]["label"]}])
    second = extend(work, versions)
    assert asked == []
    assert "train-00003-of-00004.parquet" not in shared(versions / "store" / "opinion", second.root)
    assert_as_dumped_anew(second, work, versions)


def test_fewer_rows_ask_nothing(versions: Path, work: Path, asked: list[list[int]]) -> None:
    edit(versions, lambda lines: lines[:60])
    second = extend(work, versions)
    assert asked == []
    assert [(s.start, s.stop) for s in second.record.shards_of("train")] == [(0, 24), (24, 48), (48, 60)]
    assert_as_dumped_anew(second, work, versions)


def test_no_file_in_common_is_a_plain_set_with_the_old_answers(
    versions: Path, work: Path, asked: list[list[int]]
) -> None:
    for split in ("train", "validation"):
        edit(versions, lambda lines: lines[::-1], split)
    second = extend(work, versions)
    assert asked == []
    assert second.record.versions_before == ()
    assert_as_dumped_anew(second, work, versions)


def test_an_extension_is_extended(versions: Path, work: Path, asked: list[list[int]]) -> None:
    edit(versions, lambda lines: [*lines, NEW[0]])
    second = extend(work, versions)
    edit(versions, lambda lines: [*lines, NEW[1], NEW[2]])
    third = extend(work, versions, "third", "second")
    assert len(asked) == 2
    record = third.record
    prints = [read_set_record(versions / "store" / name).fingerprint for name in ("opinion", "second")]
    assert [fingerprint(version.settings) for version in record.versions_before] == prints
    by_start = {shard.start: shard.version for shard in record.shards if shard.split == "train"}
    assert by_start == dict.fromkeys((0, 24, 48, 72), prints[0]) | {96: prints[1], 97: None}
    assert len(shared(second.root, third.root)) == 7
    shutil.rmtree(versions / "store" / "opinion")  # the others stand on their own
    verify_shards(third.root, record)
    assert_as_dumped_anew(third, work, versions)


def test_repeated_it_changes_nothing_and_a_lost_file_is_mended(versions: Path, work: Path) -> None:
    edit(versions, lambda lines: [*lines, *NEW])
    second = extend(work, versions)
    before = {path: path.stat().st_mtime_ns for path in second.root.rglob("*.*")}
    assert extend(work, versions).record == second.record
    assert {path: path.stat().st_mtime_ns for path in second.root.rglob("*.*")} == before
    for shard in (second.record.shards[0], second.record.shards[-1]):
        (second.root / shard.path).unlink()
    assert extend(work, versions).record == second.record


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_seq_length": 16}, ("max_seq_length: 32", "16")),
        ({"precision": "bf16"}, ("head: ", "precision: fp32", "bf16")),
        ({"teacher_labels": "good,bad"}, ("teacher.labels: bad,good", "good,bad")),
    ],
)
def test_other_settings_are_refused_by_name(
    versions: Path, work: Path, changes: dict[str, Any], named: tuple[str, ...]
) -> None:
    with pytest.raises(FingerprintMismatchError) as caught:
        extend(work, versions, **changes)
    assert [words for words in named if words not in str(caught.value)] == []
    assert not (versions / "store" / "second").exists()


def test_what_cannot_be_extended_is_refused(
    versions: Path, work: Path, augmented_set: ExampleSet, token_store: Path
) -> None:
    with pytest.raises(ConfigError, match=naming("--extend opinion", "--name")):
        extend(work, versions, "opinion")
    with pytest.raises(ConfigError, match=naming("--extend", "opinion-mask-pos", "--augment none")):
        extend(work, versions, old=str(augmented_set.root))
    with pytest.raises(ConfigError, match=naming("tokens/topk", "distill pretrain-student")):
        extend(work, versions, old=str(token_store / "topk"))
    with pytest.raises(ConfigError, match=naming("--extend: ", "--augment")):
        extend(work, versions, augment="mask-pos", seed=1)
    shard = read_set_record(versions / "store" / "opinion").shards[0]
    (versions / "store" / "opinion" / shard.path).write_bytes(b"x")
    with pytest.raises(IntegrityError, match=naming(f"{shard.path}: 1 bytes")):
        extend(work, versions)
    assert not (versions / "store" / "second").exists()


def test_a_plain_dump_of_new_rows_says_how_to_extend(versions: Path, work: Path) -> None:
    edit(versions, lambda lines: [*lines, *NEW])
    with pytest.raises(FingerprintMismatchError, match=naming("source.train", "teacher-dump --extend opinion")):
        extend(work, versions, "opinion", None)
    with pytest.raises(FingerprintMismatchError) as caught:
        extend(work, versions, "opinion", None, max_seq_length=16)
    assert "--extend" not in str(caught.value)


def extended_record(versions: Path, work: Path) -> tuple[Path, dict[str, Any]]:
    edit(versions, lambda lines: [*lines, *NEW])
    root = extend(work, versions).root
    return root / FILE_NAME, read_record(root / FILE_NAME)


def test_a_shard_of_another_version_or_settings_is_refused(versions: Path, work: Path) -> None:
    path, values = extended_record(versions, work)
    path.write_text(json.dumps(values | {"versions_before": []}))
    with pytest.raises(IntegrityError, match=naming("second/distill.json: ", "shard")):
        read_set_record(path.parent)
    (version,) = values["versions_before"]
    other = version["settings"] | {"teacher.weights": "0" * 64}
    shards = [s | {"version": fingerprint(other)} if "version" in s else s for s in values["shards"]]
    version = version | {"settings": other}
    path.write_text(json.dumps(values | {"versions_before": [version], "shards": shards}))
    with pytest.raises(IntegrityError, match=naming("second/distill.json: ", "settings")):
        read_set_record(path.parent)


def test_a_shard_claiming_another_version_is_found(versions: Path, work: Path) -> None:
    path, values = extended_record(versions, work)
    values["shards"][0]["version"] = None
    path.write_text(json.dumps(values))
    with pytest.raises(IntegrityError, match=naming("examples/validation-00000-of-00002.parquet: ", "footer")):
        verify_shards(path.parent, read_set_record(path.parent))


def flags(work: Path, folder: Path, **more: object) -> list[object]:
    values: dict[str, object] = {"manifest": work / "opinion.yaml", "data": folder / "data", "store": folder / "store"}
    values |= {"model-name-or-path": folder / "teacher", "max-seq-length": 32, "rows-per-shard": 25}
    values |= {"extend": "opinion", "name": "second", **more}
    return ["teacher-dump", *itertools.chain(*((f"--{flag}", value) for flag, value in values.items()))]


@pytest.mark.slow
def test_killed_and_repeated_is_as_undisturbed(versions: Path, work: Path) -> None:
    edit(versions, lambda lines: [*lines, *({"sentence1": f"new {k}", "label": k % 2} for k in range(60))])
    undisturbed = extend(work, versions, "undisturbed", rows_per_shard=2)
    root = versions / "store" / "second"
    process = distill(*flags(work, versions, **{"rows-per-shard": 2}))
    kill_when(process, lambda: len(list(root.glob("examples/*.parquet"))) >= 10)
    assert read_set_record(root).state == "staged"
    assert extend(work, versions, rows_per_shard=2).record.shards == undisturbed.record.shards


@pytest.mark.slow
def test_two_processes_write_what_one_does(versions: Path, work: Path) -> None:
    edit(versions, lambda lines: [*lines[:40], *NEW, *lines[40:]])
    one = extend(work, versions, "one")
    distill_in_two_processes(*flags(work, versions))
    two = ExampleSet.open(versions / "store" / "second")
    assert [s.path for s in two.record.shards] == [s.path for s in one.record.shards]
    assert shared(versions / "store" / "opinion", two.root) == shared(versions / "store" / "opinion", one.root)
    assert_as_dumped_anew(two, work, versions)
    assert two.read("train", ("source_row",)).num_rows == TRAIN_ROWS + 3
    assert two.read("validation", ("source_row",)).num_rows == VALIDATION_ROWS


def test_texts_of_several_files_are_asked_ahead(versions: Path, work: Path, asked: list[list[int]]) -> None:
    """A text that stands in two files has one answer, whoever writes them."""
    twice = [{"sentence1": f"number {k} .", "label": k % 2} for k in range(5)]
    edit(versions, lambda lines: [*twice, *lines, *twice])
    edit(versions, lambda lines: [*lines, twice[0]], "validation")
    second = extend(work, versions)
    assert len(asked) == 5
    rows = second.read("train", ("logits",), "sentence1 like 'number %'")
    assert logits_of(rows, 2)[:5].tolist() == logits_of(rows, 2)[5:].tolist()
    jobs = [extend_job(work, versions, job) for job in (1, 0)]
    assert jobs == ["staged", "verified"]
    third = ExampleSet.open(versions / "store" / "third")
    assert [shard.path for shard in third.record.shards] == [shard.path for shard in second.record.shards]
    assert_same_rows(third, second)


def extend_job(work: Path, folder: Path, job: int) -> str:
    flags = {"data": folder / "data", "name": "third", "extend": "opinion", "shard_index": job, "num_shards": 2}
    flags["model_name_or_path"] = str(folder / "teacher")
    record = dump(dump_config(work, "opinion", folder / "store", **flags), "distill teacher-dump --extend")
    assert record is not None
    return record.state
