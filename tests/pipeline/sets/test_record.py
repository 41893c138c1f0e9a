import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.errors import IntegrityError
from pipeline.record_file import MAX_RECORD_BYTES, read_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import FILE_NAME, read_set_record, staged, write_set_record
from pipeline.sets.record import changed as changed_record
from pipeline.sets.record_parts import Setting, fingerprint
from tests.helpers.messages import naming

MASKING = {"kind": "uniform", "probability": 0.15, "num_copies": 1, "seed": 1, "mask_id": 1}
settings = st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers() | st.booleans(), max_size=6)


def changed(logit_set: ExampleSet, folder: Path, **changes: Any) -> Path:
    """A folder with a distill.json in which some keys are different."""
    values = read_record(logit_set.root / FILE_NAME)
    (folder / FILE_NAME).write_text(json.dumps(values | changes))
    return folder


def test_round_trip(tmp_path: Path, roles_set: ExampleSet) -> None:
    record = roles_set.record.model_copy(update={"notes": ("Ärger mit \u2028 “Zeilen”",)})
    write_set_record(tmp_path, record)
    assert read_set_record(tmp_path) == record


@given(values=settings, random=st.randoms())
def test_fingerprint_ignores_order_only(values: dict[str, Setting], random: Any) -> None:
    items = list(values.items())
    random.shuffle(items)
    assert fingerprint(dict(items)) == fingerprint(values)
    assert fingerprint({**values, "one more": 1}) != fingerprint(values)
    for key, value in values.items():
        assert fingerprint({**values, key: f"{value}, changed"}) != fingerprint(values)


def test_counts(opinion_set: ExampleSet) -> None:
    record = opinion_set.record
    assert record.num_rows == 96 + 40
    assert record.num_bytes == sum(path.stat().st_size for path in (opinion_set.root / "examples").iterdir())
    assert [(s.start, s.stop) for s in record.shards_of("validation")] == [(0, 20), (20, 40)]


@pytest.mark.parametrize("version", [0, 5, "2", None, True, 2.5])
def test_another_format_is_refused(tmp_path: Path, opinion_set: ExampleSet, version: object) -> None:
    changed(opinion_set, tmp_path, format_version=version, something_new=True)
    with pytest.raises(IntegrityError, match=naming(FILE_NAME, f"version {version!r}")):
        read_set_record(tmp_path)


@pytest.mark.parametrize("split", ["../../../etc/cron", "a/b", "..", "", "Train", "train\n", "/train", "tr ain", "'x'"])
def test_split_name_that_leaves_the_folder_is_refused(tmp_path: Path, opinion_set: ExampleSet, split: str) -> None:
    shard = opinion_set.record.shards[0].model_dump() | {"split": split}
    changed(opinion_set, tmp_path, shards=[shard])
    with pytest.raises(IntegrityError, match=r"shards\.0\.split"):
        read_set_record(tmp_path)


def test_changed_setting_no_longer_fits_the_fingerprint(tmp_path: Path, opinion_set: ExampleSet) -> None:
    changed(opinion_set, tmp_path, settings=opinion_set.record.settings | {"precision": "bf16"})
    with pytest.raises(IntegrityError, match=naming(FILE_NAME, "fingerprint")):
        read_set_record(tmp_path)


def test_every_problem_is_listed(tmp_path: Path, opinion_set: ExampleSet) -> None:
    changed(opinion_set, tmp_path, nam="x", state="finished", max_seq_length="long")
    with pytest.raises(IntegrityError) as caught:
        read_set_record(tmp_path)
    assert "3 problems" in str(caught.value)
    assert "'nam'. Did you mean 'name'?" in str(caught.value)


def test_shard_listed_twice_is_refused(tmp_path: Path, opinion_set: ExampleSet) -> None:
    shard = opinion_set.record.shards[0].model_dump()
    changed(opinion_set, tmp_path, shards=[shard, shard])
    with pytest.raises(IntegrityError, match=naming(FILE_NAME, "shard")):
        read_set_record(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", FILE_NAME),
        ("{", FILE_NAME),
        ("[" * 100_000, FILE_NAME),
        ("[]", "version None"),
        ("1", "version None"),
        ('{"format_version": 1}', "'name'"),
        (b"\xff", FILE_NAME),
    ],
)
def test_damaged_file(tmp_path: Path, text: str | bytes, message: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(IntegrityError, match=message):
        read_set_record(tmp_path)


def test_missing_and_oversized_file(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=FILE_NAME):
        read_set_record(tmp_path)
    with (tmp_path / FILE_NAME).open("wb") as stream:
        stream.truncate(MAX_RECORD_BYTES + 1)
    with pytest.raises(IntegrityError, match="16,777,216"):
        read_set_record(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"signals": {}}, "signals: "),
        ({"signals": {"smell": {}}}, r"signals\.smell"),
        ({"signals": {"mlm": {"codec": {"name": "dense", "vocabulary_size": 9}}}}, "masked_words"),
        ({"kind": "masked_words"}, "'masked_words'"),
        ({"kind": "words"}, "kind"),
        ({"task": None}, "'task'"),
        ({"masking": MASKING}, "masking: "),
        ({"versions_before": [{"format_version": 1, "settings": {"precision": "bf16"}}]}, "settings"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    tmp_path: Path, opinion_set: ExampleSet, changes: dict[str, Any], message: str
) -> None:
    changed(opinion_set, tmp_path, **changes)
    with pytest.raises(IntegrityError, match=message):
        read_set_record(tmp_path)


def test_what_is_made_from_a_set_is_staged_anew_and_checked(opinion_set: ExampleSet) -> None:
    record = opinion_set.record
    new = staged(record.settings | {"one": "more"}, "distill", base=record, name="new")
    assert (new.name, new.state, new.command, new.scores) == ("new", "staged", "distill", {})
    assert (new.fingerprint, new.versions) == (fingerprint(new.settings), record.versions)
    assert {shard.sha256 for shard in new.shards} == {None}
    with pytest.raises(ValidationError, match="masking: "):
        changed_record(record, masking=MASKING)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers_sha256": "0" * 64}, "weights_sha256, answers_sha256: "),
        ({"weights_sha256": None}, "weights_sha256, answers_sha256: "),
        ({"weights_sha256": None, "answers_sha256": "0" * 64}, "num_parameters|weights"),
        ({"num_parameters": None}, "num_parameters|weights"),
    ],
)
def test_a_teacher_is_known_by_its_weights_or_by_its_answers(
    tmp_path: Path, opinion_set: ExampleSet, changes: dict[str, Any], message: str
) -> None:
    teacher = read_record(opinion_set.root / FILE_NAME)["teacher"]
    with pytest.raises(IntegrityError, match=message):
        read_set_record(changed(opinion_set, tmp_path, teacher=teacher | changes))
