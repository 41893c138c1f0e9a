"""Sets that are pushed without text: what is in them, and that no text is."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, IntegrityError
from pipeline.query.catalog import open_catalog
from pipeline.sets.card import card_text
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import fingerprint
from pipeline.sets.registry import TEXT_COLUMNS
from pipeline.sets.verify import verify_shards
from pipeline.sets.write import write_shard
from tests.helpers.messages import naming
from tests.helpers.places import contents, fetch, send
from tests.helpers.rewritten_shards import with_logit


def text_free(logit_set: ExampleSet, folder: Path) -> tuple[Path, SetRecord]:
    """The set as it arrives somewhere else."""
    send(logit_set.root, str(folder / "there"), without_text=True)
    pulled = fetch(str(folder / "there"), folder / "store")
    return pulled.root, pulled.record


def rows(root: Path, record: SetRecord) -> list[dict[str, Any]]:
    tables = [pq.read_table(root / shard.path, partitioning=None) for shard in record.shards]
    return [row for table in tables for row in table.to_pylist()]


def test_all_but_the_text_is_there(roles_set: ExampleSet, tmp_path: Path) -> None:
    root, record = text_free(roles_set, tmp_path)
    verify_shards(root, record)
    assert (record.state, record.has_text, record.format_version) == ("verified", False, 1)
    assert record.settings == roles_set.record.settings | {"text": "left out"}
    assert record.fingerprint == fingerprint(record.settings) != roles_set.record.fingerprint
    assert record.scores == roles_set.record.scores
    whole = [
        {name: value for name, value in row.items() if name not in TEXT_COLUMNS}
        for shard in roles_set.record.shards
        for row in pq.read_table(roles_set.root / shard.path, partitioning=None).to_pylist()
    ]
    assert rows(root, record) == whole
    assert {"text_hash", "logits", "label"} <= whole[0].keys()
    with open_catalog(tmp_path / "store") as connection:
        assert connection.execute("select count(logits) from roles").fetchone() == (136,)


@pytest.mark.parametrize("name", ["opinion_set", "roles_set", "augmented_set"])
def test_no_text_is_left_anywhere(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    logit_set: ExampleSet = request.getfixturevalue(name)
    root, record = text_free(logit_set, tmp_path)
    whole = logit_set.read("train", ("sentence1", "sentence2")).to_pylist()
    texts = {text for row in whole for text in row.values() if text is not None}
    assert len(texts) > 10
    values = [value for row in rows(root, record) for value in row.values()]
    assert not {value for value in values if isinstance(value, str)} & texts
    assert not any(isinstance(value, list) and len(value) != record.target.num_logits for value in values)
    for folder in (tmp_path / "there", root):
        data = b"\n".join(contents(folder).values()).lower()
        assert not [text for text in texts if text.lower().encode() in data]
    assert all("sentence" not in str(pq.read_schema(root / shard.path)) for shard in record.shards)


def test_variants_are_kept_and_their_sample_is_not(augmented_set: ExampleSet, tmp_path: Path) -> None:
    before = augmented_set.record
    assert before.augmentation is not None
    assert before.augmentation.sample
    root, record = text_free(augmented_set, tmp_path)
    assert record.augmentation == before.augmentation.model_copy(update={"sample": ()})
    assert sum(row["variant"] > 0 for row in rows(root, record)) == before.augmentation.rows > 0
    assert "| row | origin | original | variant |" in card_text(before)
    assert "| row | origin | original | variant |" not in card_text(record)


def test_the_card_says_what_to_do(opinion_set: ExampleSet, tmp_path: Path) -> None:
    root, record = text_free(opinion_set, tmp_path)
    text = (root / "README.md").read_text()
    assert text == card_text(record)
    assert "The texts are not in this set" in text
    assert "distill join" in text
    assert "`sentence1`" not in text
    assert "`ids1`" not in text


def test_it_cannot_be_used_as_if_it_had_text(opinion_set: ExampleSet, token_store: Path, tmp_path: Path) -> None:
    root, _ = text_free(opinion_set, tmp_path)
    with pytest.raises(ConfigError, match=naming("store/opinion: ", "distill join")):
        ExampleSet.open(root)
    with pytest.raises(ConfigError, match=naming("store/opinion: ", "--without-text")):
        send(root, str(tmp_path / "elsewhere"), without_text=True)
    with pytest.raises(ConfigError, match=naming("tokens/topk: ")):
        send(token_store / "topk", str(tmp_path / "elsewhere"), without_text=True)
    assert not (tmp_path / "elsewhere").exists()


def test_it_is_another_set_than_the_one_with_text(opinion_set: ExampleSet, tmp_path: Path) -> None:
    send(opinion_set.root, str(tmp_path / "there"))
    with pytest.raises(ConfigError, match=naming("there: ", "'opinion'", "--replace")):
        send(opinion_set.root, str(tmp_path / "there"), without_text=True)
    send(opinion_set.root, str(tmp_path / "there"), without_text=True, replace=True)
    texts = opinion_set.read("train", ("sentence1",)).column(0).to_pylist()
    data = b"\n".join(contents(tmp_path / "there").values())
    assert not [text for text in texts if text.encode() in data]
    again = send(opinion_set.root, str(tmp_path / "there"), without_text=True)
    assert again.sent == ()  # the same to the byte, however often it is made


def test_nothing_damaged_is_sent_as_if_it_were_sound(opinion_set: ExampleSet, tmp_path: Path) -> None:
    root = shutil.copytree(opinion_set.root, tmp_path / "opinion")
    shard = opinion_set.record.shards[0]
    table = pq.read_table(root / shard.path, partitioning=None).replace_schema_metadata(None)
    write_shard(root, opinion_set.record, shard, [with_logit(table, 9)])  # as nobody's teacher has said
    with pytest.raises(IntegrityError, match=naming(f"{shard.path}: ")):
        send(root, str(tmp_path / "there"), without_text=True)
    assert not (tmp_path / "there").exists()
