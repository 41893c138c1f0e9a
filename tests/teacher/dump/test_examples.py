import hashlib
import itertools
import json
import os
import re
import resource
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from pipeline.errors import ConfigError, FingerprintMismatchError, IntegrityError, TeacherError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord, read_set_record, write_set_record
from pipeline.sets.record_parts import Shard, fingerprint
from pipeline.sets.signals.rows import logits_of
from pipeline.sql.read_only_query import open_files, select
from pipeline.tasks.task import Task
from pipeline.text.tokenizer import tokenizer_sha256
from teacher.dumps import dump
from tests.helpers.commands import distill, distill_in_two_processes, kill_when
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS, dump_config
from tests.helpers.messages import naming
from tests.helpers.word_tasks import WORDS, MakeTask, MakeTeacher, make_louder

KEYS = "select split, source_row, variant from examples order by all"


def write(work: Path, store: Path, task: str = "opinion", **changes: Any) -> SetRecord:
    """Dumps a tiny task in this process."""
    record = dump(dump_config(work, task, store, **changes), "distill teacher-dump")
    assert record is not None
    return record


def query(root: Path, sql: str) -> pa.Table:
    with open_files({"examples": sorted((root / "examples").glob("*.parquet"))}) as connection:
        return select(connection, sql).to_arrow_table()


def assert_every_row_once(root: Path) -> None:
    expected = {("train", row, 0) for row in range(TRAIN_ROWS)} | {
        ("validation", row, 0) for row in range(VALIDATION_ROWS)
    }
    rows = [tuple(row.values()) for row in query(root, KEYS).to_pylist()]
    assert len(rows) == len(expected)
    assert set(rows) == expected


def flags(work: Path, store: Path, **more: object) -> list[object]:
    """The same settings as ``dump_config``'s, for a process of its own."""
    values: dict[str, object] = {"manifest": work / "opinion.yaml", "data": work / "data", "store": store}
    values |= {"model-name-or-path": work / "teachers" / "opinion", "max-seq-length": 32, **more}
    return ["teacher-dump", *itertools.chain(*((f"--{flag.replace('_', '-')}", v) for flag, v in values.items()))]


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("name", ["opinion", "roles"])
def test_logits_are_those_of_transformers_one_row_at_a_time(
    name: str, work: Path, teachers: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(teachers / name, tmp_path / "teacher"))
    make_louder(folder)
    write(work, tmp_path / "store", name, model_name_or_path=str(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for split in ("train", "validation"):
        rows = ExampleSet.open(tmp_path / "store" / name).read(split, ("sentence1", "sentence2", "logits"))
        texts = zip(rows["sentence1"].to_pylist(), rows["sentence2"].to_pylist(), strict=True)
        with torch.no_grad():
            plain = [model(**tokenizer(*pair, return_tensors="pt")).logits.numpy() for pair in texts]
        assert np.std(plain) > 0.1
        np.testing.assert_allclose(logits_of(rows, 2), np.concatenate(plain), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["opinion", "roles"])
def test_tokens_with_their_specials_are_what_the_model_read(
    name: str, work: Path, teachers: Path, tmp_path: Path
) -> None:
    write(work, tmp_path, name, max_seq_length=8)
    rows = ExampleSet.open(tmp_path / name).read("train", ("sentence1", "sentence2", "ids1", "ids2")).to_pylist()
    tokenizer = AutoTokenizer.from_pretrained(teachers / name)
    for row in rows:
        read = tokenizer(row["sentence1"], row["sentence2"], truncation=True, max_length=8)["input_ids"]
        second = [] if row["ids2"] is None else [*row["ids2"], tokenizer.sep_token_id]
        assert [tokenizer.cls_token_id, *row["ids1"], tokenizer.sep_token_id, *second] == read
    assert (rows[0]["ids2"] is None) == (name == "opinion")


def test_text_hash_is_the_hash_of_tokenizer_and_texts(store: Path, teachers: Path, roles_set: ExampleSet) -> None:
    tokenizer = AutoTokenizer.from_pretrained(teachers / "roles").backend_tokenizer
    assert roles_set.record.tokenizer.sha256 == tokenizer_sha256(tokenizer.to_str())
    for row in roles_set.read("validation", ("sentence1", "sentence2", "text_hash")).to_pylist():
        parts = [roles_set.record.tokenizer.sha256, row["sentence1"], row["sentence2"]]
        data = b"".join(len(p.encode()).to_bytes(8, "little") + p.encode() for p in parts)
        assert row["text_hash"] == hashlib.blake2b(data, digest_size=16).digest()


def test_columns_hold_the_source_rows(work: Path, opinion_set: ExampleSet) -> None:
    lines = (work / "data" / "opinion" / "validation.jsonl").read_text().splitlines()
    rows = opinion_set.read("validation", ("sentence1", "label", "sentence2", "score", "origin", "variant")).to_pylist()
    assert [{"sentence1": row["sentence1"], "label": row["label"]} for row in rows] == list(map(json.loads, lines))
    rest = {(row["sentence2"], row["score"], row["origin"], row["variant"]) for row in rows}
    assert rest == {(None, None, "original", 0)}


def test_scores_are_the_teachers_accuracy(opinion_set: ExampleSet) -> None:
    sql = "select split, avg((argmax(logits) = label)::int) as accuracy from examples group by all"
    accuracies = {row["split"]: row["accuracy"] for row in query(opinion_set.root, sql).to_pylist()}
    scores = {split: values["accuracy"] for split, values in opinion_set.record.scores.items()}
    assert scores == pytest.approx(accuracies)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [0, 20])
def test_killed_and_repeated_is_as_undisturbed(shards: int, work: Path, store: Path, tmp_path: Path) -> None:
    undisturbed = write(work, tmp_path / "undisturbed", rows_per_shard=2)
    root = tmp_path / "killed" / "opinion"
    process = distill(*flags(work, tmp_path / "killed", rows_per_shard=2))
    kill_when(
        process, lambda: (root / "distill.json").exists() and len(list(root.glob("examples/*.parquet"))) >= shards
    )
    assert read_set_record(root).state == "staged"
    before = times(root / "examples")
    with pytest.raises(IntegrityError, match=naming("killed/opinion: ", "\n  distill")):
        ExampleSet.open(root)
    resumed = write(work, tmp_path / "killed", rows_per_shard=2)
    assert resumed.state == "verified"
    assert resumed.shards == undisturbed.shards  # sizes and SHA-256: the files are the same to the byte
    kept = {path: time for path, time in before.items() if path.suffix == ".parquet"}
    assert len(kept) >= shards
    assert kept.items() <= times(root / "examples").items()
    assert not list((root / "examples").glob(".*.distill-tmp"))
    assert_every_row_once(root)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_jobs_in_any_order_write_the_same_set(order: tuple[int, ...], work: Path, store: Path, tmp_path: Path) -> None:
    whole = write(work, tmp_path / "whole", rows_per_shard=20)
    states = [write(work, tmp_path / "jobs", rows_per_shard=20, shard_index=k, num_shards=3).state for k in order]
    assert states == ["staged", "staged", "verified"]
    assert read_set_record(tmp_path / "jobs" / "opinion").shards == whole.shards
    assert_every_row_once(tmp_path / "jobs" / "opinion")


def test_a_job_writes_its_own_shards_only(work: Path, store: Path, tmp_path: Path) -> None:
    record = write(work, tmp_path, rows_per_shard=20, shard_index=1, num_shards=3)
    written = {str(path.relative_to(tmp_path / "opinion")) for path in (tmp_path / "opinion").glob("examples/*")}
    assert written == {shard.path for shard in record.shards[1::3]}
    with pytest.raises(ConfigError, match=naming("--shard-index: 3", "--num-shards 3")):
        write(work, tmp_path, rows_per_shard=20, shard_index=3, num_shards=3)


def test_a_slurm_array_writes_a_set(
    work: Path, teachers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    states = []
    for task in (4, 3):
        variables = {"ID": task, "MIN": 3, "MAX": 4, "COUNT": 2}
        for name, value in variables.items():
            monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
        states.append(write(work, tmp_path, rows_per_shard=20, shard_index="auto").state)
    assert states == ["staged", "verified"]
    assert "SLURM_ARRAY_TASK_ID=4" in capsys.readouterr().err


@pytest.fixture
def copied(store: Path, tmp_path: Path) -> Path:
    """A store with the finished set ``opinion``, which a test may change."""
    shutil.copytree(store / "opinion", tmp_path / "store" / "opinion")
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_seq_length": 16}, naming("max_seq_length: 32", "16")),
        ({"precision": "bf16"}, naming("precision: fp32", "bf16")),
        ({"splits": "validation"}, r"source\.train"),
        ({"teacher_labels": "good,bad"}, naming("teacher.labels: bad,good", "good,bad")),
        ({"rows_per_shard": 50}, naming("6 files", "--rows-per-shard")),
    ],
)
def test_other_settings_than_those_of_the_set_are_refused(
    changes: dict[str, Any], named: str, work: Path, copied: Path
) -> None:
    before = times(copied)
    with pytest.raises(FingerprintMismatchError, match=named):
        write(work, copied, **changes)
    changed = {path for path, time in times(copied).items() if before.get(path) != time}
    assert all(path.is_dir() for path in changed)


def test_other_weights_are_refused(work: Path, copied: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "teachers" / "opinion", tmp_path / "teacher")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "teacher")
    with torch.no_grad():
        model.classifier.bias[0] += 1e-4
    model.save_pretrained(tmp_path / "teacher")
    with pytest.raises(FingerprintMismatchError, match=r"teacher\.weights"):
        write(work, copied, model_name_or_path=str(tmp_path / "teacher"))


def test_other_rows_are_refused(work: Path, copied: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "data", tmp_path / "data")
    path = tmp_path / "data" / "opinion" / "validation.jsonl"
    path.write_text(path.read_text().replace("the ", "The ", 1))
    with pytest.raises(FingerprintMismatchError, match=r"source\.validation"):
        write(work, copied, data=tmp_path / "data")


def test_the_place_of_the_rows_and_of_the_teacher_do_not_matter(work: Path, copied: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "data", tmp_path / "data")
    shutil.copytree(work / "teachers" / "opinion", tmp_path / "teacher")
    before = read_set_record(copied / "opinion")
    assert write(work, copied, data=tmp_path / "data", model_name_or_path=str(tmp_path / "teacher")) == before


def test_repeating_a_finished_dump_changes_no_file(work: Path, copied: Path) -> None:
    before = {path: time for path, time in times(copied).items() if path.is_file()}
    assert write(work, copied) == read_set_record(copied / "opinion")
    assert {path: time for path, time in times(copied).items() if path.is_file()} == before


def torn(root: Path, shard: Shard) -> None:
    path = root / shard.path
    path.write_bytes(path.read_bytes()[:-100])


def removed(root: Path, shard: Shard) -> None:
    (root / shard.path).unlink()


def of_another_range(root: Path, shard: Shard) -> None:
    other = next(s for s in read_set_record(root).shards if s.split == shard.split and s.index != shard.index)
    shutil.copyfile(root / other.path, root / shard.path)


def of_another_run(root: Path, shard: Shard) -> None:
    path = root / shard.path
    table = pq.read_table(path, partitioning=None)
    footer = json.loads(table.schema.metadata[b"distill"]) | {"fingerprint": "0" * 64}
    pq.write_table(table.replace_schema_metadata({b"distill": json.dumps(footer)}), path)


@pytest.mark.parametrize("damage", [torn, removed, of_another_range, of_another_run])
@pytest.mark.parametrize("state", ["staged", "verified"])
def test_a_damaged_shard_is_written_again(
    damage: Callable[[Path, Shard], None], state: str, work: Path, copied: Path, store: Path
) -> None:
    root, whole = copied / "opinion", read_set_record(store / "opinion")
    damage(root, whole.shards[-1])
    if state == "staged":
        bare = [shard.model_copy(update={"rows": None, "bytes": None, "sha256": None}) for shard in whole.shards]
        staged = whole.model_copy(update={"state": "staged", "scores": {}, "shards": tuple(bare)})
        (root / "distill.json").write_text(staged.model_dump_json())
    others = {path: time for path, time in times(root / "examples").items() if path.name not in whole.shards[-1].path}
    assert write(work, copied) == whole
    assert others.items() <= times(root / "examples").items()
    assert_every_row_once(root)


def test_a_changed_byte_of_a_shard_is_noticed_and_mended(work: Path, copied: Path) -> None:
    root, whole = copied / "opinion", read_set_record(copied / "opinion")
    path = root / whole.shards[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=naming(whole.shards[0].path, "SHA-256")):
        ExampleSet.open(root).read(whole.shards[0].split, ("logits",))
    assert write(work, copied) == whole
    assert ExampleSet.open(root).read(whole.shards[0].split, ("logits",)).num_rows == VALIDATION_ROWS


@pytest.mark.parametrize("spoil", [os.truncate, lambda path, _: path.unlink()])
def test_a_damaged_tokenizer_is_mended(spoil: Callable[[Path, int], None], work: Path, copied: Path) -> None:
    path = copied / "opinion" / TOKENIZER_FILE
    content = path.read_bytes()
    spoil(path, 100)
    write(work, copied)
    assert path.read_bytes() == content


@pytest.fixture
def words(word_task: MakeTask) -> Task:
    return word_task(("ash", "birch", "cedar"))


def word_settings(tmp_path: Path, teacher: Path, **changes: Any) -> dict[str, Any]:
    return {
        "manifest": tmp_path / "words.yaml",
        "data": tmp_path / "data",
        "model_name_or_path": str(teacher),
        **changes,
    }


def test_a_permuted_teacher_is_stopped_first(
    words: Task, word_teacher: MakeTeacher, work: Path, tmp_path: Path
) -> None:
    settings = word_settings(tmp_path, word_teacher((2, 0, 1)))
    with pytest.raises(TeacherError, match="--teacher-labels cedar,ash,birch"):
        write(work, tmp_path / "store", **settings)
    assert not list((tmp_path / "store").rglob("*"))
    record = write(work, tmp_path / "store", **settings, teacher_labels="cedar, ash, birch")
    assert record.scores == {split: {"accuracy": 1.0} for split in ("train", "validation")}
    assert record.teacher.labels == ("cedar", "ash", "birch")
    assert record.target.names == ("ash", "birch", "cedar")


def test_stored_logits_are_in_the_tasks_order(
    words: Task, word_teacher: MakeTeacher, work: Path, tmp_path: Path
) -> None:
    teacher = word_teacher((2, 0, 1), ["cedar", "ash", "birch"])
    write(work, tmp_path / "store", **word_settings(tmp_path, teacher))
    rows = ExampleSet.open(tmp_path / "store" / "words").read("train", ("sentence1", "logits"))
    numbers = [WORDS.index(word) for word in rows["sentence1"].to_pylist()]
    np.testing.assert_allclose(logits_of(rows, 3), 10 * np.eye(3)[numbers], atol=1e-3)


def test_a_partial_split_is_noted(word_task: MakeTask, word_teacher: MakeTeacher, work: Path, tmp_path: Path) -> None:
    word_task(("ash", "birch"), rows=10, splits={"train": 1000, "validation": 10, "test": None})
    record = write(work, tmp_path / "store", **word_settings(tmp_path, word_teacher((0, 1))))
    notes = "\n".join(record.notes)
    assert "train.jsonl: 10 rows" in notes
    assert "'test'" in notes
    assert "validation" not in notes
    assert record.splits["train"].expected_rows == 1000
    assert all(note in (tmp_path / "store" / "words" / "README.md").read_text() for note in record.notes)


def test_rows_without_gold_have_logits_and_no_label(
    word_task: MakeTask, word_teacher: MakeTeacher, work: Path, tmp_path: Path
) -> None:
    word_task(("ash", "birch"), rows=10)
    lines = [json.dumps({"text": "apple", "label": -1}) + "\n"] * 4
    (tmp_path / "data" / "validation.jsonl").write_text("".join(lines))
    record = write(work, tmp_path / "store", **word_settings(tmp_path, word_teacher((0, 1))))
    rows = ExampleSet.open(tmp_path / "store" / "words").read("validation", ("label", "logits"))
    assert rows["label"].null_count == 4
    np.testing.assert_allclose(logits_of(rows, 2), [[10, 0]] * 4, atol=1e-3)
    assert record.scores["validation"] == {}


def test_a_task_without_a_default_teacher_needs_one_named(work: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--model-name-or-path", "'opinion'")):
        write(work, tmp_path, model_name_or_path=None)


def test_bf16_is_recorded_and_close_to_fp32(work: Path, opinion_set: ExampleSet, tmp_path: Path) -> None:
    record = write(work, tmp_path, precision="bf16")
    assert record.precision == record.settings["precision"] == "bf16"
    assert record.settings["head"] == "fp32"
    assert "head" not in opinion_set.record.settings
    fp32, bf16 = (
        logits_of(s.read("train", ("logits",)), 2) for s in (opinion_set, ExampleSet.open(tmp_path / "opinion"))
    )
    assert 0 < np.abs(fp32 - bf16).max() < 0.05


def test_a_bf16_set_whose_head_was_in_bf16_is_not_gone_on_with(work: Path, store: Path, tmp_path: Path) -> None:
    record = write(work, tmp_path, precision="bf16")
    settings = {name: value for name, value in record.settings.items() if name != "head"}
    older = record.model_copy(update={"settings": settings, "fingerprint": fingerprint(settings)})
    (tmp_path / "opinion" / "distill.json").write_text(older.model_dump_json())
    with pytest.raises(FingerprintMismatchError, match=naming("head: ", "fp32")):
        write(work, tmp_path, precision="bf16")


def test_the_batch_size_does_not_matter(work: Path, opinion_set: ExampleSet, tmp_path: Path) -> None:
    record = write(work, tmp_path, max_tokens_per_batch=40)
    assert record.fingerprint == opinion_set.record.fingerprint
    one, many = (
        logits_of(s.read("train", ("logits",)), 2) for s in (ExampleSet.open(tmp_path / "opinion"), opinion_set)
    )
    np.testing.assert_allclose(one, many, rtol=0, atol=1e-5)


def test_the_set_may_have_a_name_of_its_own(work: Path, store: Path, tmp_path: Path) -> None:
    assert write(work, tmp_path, name="mine-1").name == "mine-1"
    assert ExampleSet.open(tmp_path / "mine-1").record.dataset_name == "opinion"


@pytest.mark.slow
def test_a_shard_that_cannot_be_written_keeps_those_before_it(
    word_task: MakeTask, word_teacher: MakeTeacher, work: Path, tmp_path: Path
) -> None:
    word_task(("ash", "birch"), rows=12)
    train = tmp_path / "data" / "train.jsonl"
    noise = np.random.default_rng(0).bytes(200_000).hex()
    train.write_text(train.read_text() * 2 + json.dumps({"text": noise, "label": 0}) + "\n")
    settings = word_settings(tmp_path, word_teacher((0, 1)), rows_per_shard=5, max_seq_length=32)
    arguments = itertools.chain(*((f"--{key.replace('_', '-')}", value) for key, value in settings.items()))
    small_files = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))
    process = distill("teacher-dump", "--store", tmp_path / "store", *arguments, first=small_files)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 2
    assert re.search(r"train-00004-of-00005\.parquet: .*File too large", error)
    assert "Traceback" not in error
    root = tmp_path / "store" / "words"
    assert not list((root / "examples").glob(".*.distill-tmp"))
    kept = {path: time for path, time in times(root / "examples").items() if path.is_file()}
    assert len(kept) == 3 + 4
    assert write(work, tmp_path / "store", **settings).state == "verified"
    assert kept.items() <= times(root / "examples").items()


@pytest.mark.slow
def test_two_processes_write_what_one_does(work: Path, store: Path, tmp_path: Path) -> None:
    one = write(work, tmp_path / "one", rows_per_shard=10)
    distill_in_two_processes(*flags(work, tmp_path / "two", rows_per_shard=10))
    root = tmp_path / "two" / "opinion"
    two = ExampleSet.open(root).record
    assert_every_row_once(root)
    assert [shard.path for shard in two.shards] == [shard.path for shard in one.shards]
    assert two.scores == one.scores
    sets = [query(tmp_path / name / "opinion", "from examples order by split, source_row") for name in ("one", "two")]
    assert sets[0].drop(["logits"]) == sets[1].drop(["logits"])
    np.testing.assert_allclose(logits_of(sets[0], 2), logits_of(sets[1], 2), rtol=0, atol=1e-5)


def test_a_lost_shard_heals_even_if_its_bytes_come_out_otherwise(work: Path, store: Path, tmp_path: Path) -> None:
    root = tmp_path / "opinion"
    shutil.copytree(store / "opinion", root)
    (root / read_set_record(root).shards[0].path).unlink()
    changed = read_set_record(root)
    forged = changed.shards[0].model_copy(update={"sha256": "0" * 64})  # as another machine's float32 would have it
    write_set_record(root, changed.model_copy(update={"shards": (forged, *changed.shards[1:])}))
    record = dump(dump_config(work, "opinion", tmp_path), "again")
    assert record is not None
    assert record.state == "verified"
    assert ExampleSet.open(root).read("train", ("logits",)).num_rows == TRAIN_ROWS
