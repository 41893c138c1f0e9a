import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import IntegrityError
from pipeline.record_file import CHECKSUM, MAX_RECORD_BYTES, parse_record, read_record, write_record
from tests.helpers.messages import naming

RECORD = {"state": "finished", "settings": {"Ä": 1.5, "b": None}, "notes": ["as it was"]}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_the_checksum_is_the_documented_one(tmp_path: Path) -> None:
    write_record(tmp_path / "run.json", RECORD)
    values = json.loads((tmp_path / "run.json").read_text())
    assert list(values)[-1] == "record_sha256"
    stated = values.pop("record_sha256")
    assert stated == hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    assert values == read_record(tmp_path / "run.json") == RECORD


@given(st.dictionaries(st.text(min_size=1), json_values, min_size=1, max_size=4))
def test_what_is_written_comes_back(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("record") / "run.json"
    write_record(path, values)
    assert read_record(path) == values


def test_every_flipped_bit_is_detected_but_in_the_checksum_s_own_name(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_record(path, RECORD)
    data, stated = path.read_bytes(), json.loads(path.read_text())[CHECKSUM]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            values = parse_record(bytes(flipped))
        except ValueError:
            continue
        assert [key for key in values if key not in RECORD] == [key for key in values if values[key] == stated]
        assert RECORD.items() <= values.items()


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    """JSON has no NaN, and a run that has a score of it must stay readable."""
    write_record(tmp_path / "run.json", {"kl": float("nan"), "losses": [1.5, float("inf")]})
    assert read_record(tmp_path / "run.json") == {"kl": None, "losses": [1.5, None]}


def test_a_record_that_was_changed_by_hand_has_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(RECORD))
    assert read_record(tmp_path / "run.json") == RECORD


def test_who_changed_a_record_is_told_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_record(path, RECORD)
    path.write_text(path.read_text().replace("as it was", "as it shall be"))
    with pytest.raises(IntegrityError, match=naming("run.json: ", "'record_sha256'")):
        read_record(path)


def test_a_link_is_followed_as_the_hub_s_client_makes_them(tmp_path: Path) -> None:
    write_record(tmp_path / "blob", RECORD)
    (tmp_path / "run.json").symlink_to(tmp_path / "blob")
    assert read_record(tmp_path / "run.json") == RECORD


@pytest.mark.parametrize("text", ["[]", "[" * 100_000, '{"a": NaN}', '{"a": 1, "a": 2}', " " * (MAX_RECORD_BYTES + 1)])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"run\.json: "):
        read_record(tmp_path / "run.json")
