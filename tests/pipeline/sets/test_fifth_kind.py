"""Another kind of rows is one class: sets of it are written, checked, opened, queried, described and shared."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distill.apps.report.set_page import set_page
from pipeline.errors import ConfigError, IntegrityError
from pipeline.query.catalog import open_catalog
from pipeline.query.explain_row import explain_row
from pipeline.sets.card import CARD_FILE
from pipeline.sets.kinds import open_set
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.open import usable_record
from pipeline.sets.record import SetRecord, changed, parse_set_record, read_set_record, to_json
from pipeline.sets.registry import FORMATS
from pipeline.sets.verify import verify_shards
from pipeline.sets.write import complete_set, write_shard
from tests.helpers.messages import naming
from tests.helpers.places import fetch, send
from tests.helpers.toy_kind import SpanSet, SpansKind, known, write_span_set


@pytest.fixture
def _spans() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        known(patch)
        yield


@pytest.fixture
def spans(_spans: None, tmp_path: Path, opinion_set: ExampleSet) -> SpanSet:
    return write_span_set(tmp_path / "store" / "answers", opinion_set)


def test_a_set_is_written_verified_and_opened(spans: SpanSet, opinion_set: ExampleSet) -> None:
    record = usable_record(spans.root)
    assert record.state == "verified"
    assert record.shards[0].path.startswith("spans/train-00000-of-")
    opened = open_set(spans.root)
    assert isinstance(opened, SpanSet)
    for split in opinion_set.splits:
        logits_NC, label_N, _ = opinion_set.gold(split)
        assert record.scores[split] == {"accuracy": (logits_NC.argmax(axis=1) == label_N).mean()}
    assert [rows.num_rows for rows in opened.read_shard(record.shards[0])] == [record.shards[0].rows]


def test_it_answers_sql_alone_and_in_the_catalog(spans: SpanSet, opinion_set: ExampleSet) -> None:
    query = "select split, source_row, stop - start as length, argmax(logits) as said from {} order by all"
    wanted = opinion_set.sql("select split, source_row, len(ids1) - 1, argmax(logits) from examples order by all")
    assert [tuple(row.values()) for row in spans.sql(query.format("spans"))] == [tuple(row.values()) for row in wanted]
    with open_catalog(spans.root.parent) as connection:
        assert connection.sql(query.format("answers")).fetchall() == [tuple(row.values()) for row in wanted]
    with pytest.raises(ConfigError, match=naming("answers", "from answers where split = 'train'")):
        explain_row(spans.root.parent, "answers:train:0")


def rewritten(spans: SpanSet, change: str, number: int) -> SetRecord:
    """The record of the set after a change of a column in the first shard, with honest checksums."""
    shard = spans.record.shards[0]
    table = pq.read_table(spans.root / shard.path, partitioning=None).replace_schema_metadata(None)
    place = table.schema.get_field_index(change)
    values = pa.array([number, *table.column(change).to_pylist()[1:]], table.schema.field(place).type)
    table = table.set_column(place, table.schema.field(place), values)
    write_shard(spans.root, spans.record, shard, [table])
    unmeasured = tuple(shard.unmeasured() for shard in spans.record.shards)
    return complete_set(spans.root, spans.record.model_copy(update={"shards": unmeasured}))


@pytest.mark.parametrize(
    ("column", "number", "problem"),
    [("stop", 1000, "beyond its sentence"), ("source_row", 5, "do not ascend"), ("source_row", -1, "do not ascend")],
)
def test_wrong_rows_are_found(spans: SpanSet, column: str, number: int, problem: str) -> None:
    with pytest.raises(IntegrityError, match=f"row group 0: .*{problem}"):
        verify_shards(spans.root, rewritten(spans, column, number))


def test_it_is_described_and_shared(spans: SpanSet, tmp_path: Path) -> None:
    assert "Spans of the sentences of opinion" in (spans.root / CARD_FILE).read_text()
    page = set_page(spans.root)
    assert (page.kind, page.lead) == ("set of spans", SpansKind().summary(spans.record))
    send(spans.root, str(tmp_path / "there"))
    fetch(str(tmp_path / "there"), tmp_path / "other", name="answers")
    assert read_set_record(tmp_path / "other" / "answers") == spans.record
    with pytest.raises(ConfigError, match=naming("answers")):
        send(spans.root, str(tmp_path / "blind"), without_text=True)


def test_a_record_with_parts_of_another_kind_is_refused(spans: SpanSet) -> None:
    with pytest.raises(ValueError, match=r"has_text: spans"):
        changed(spans.record, has_text=False)
    with pytest.raises(ValueError, match=r"windows: a set of spans"):
        changed(spans.record, windows={"size": 8, "stride": 1})


def test_without_its_class_its_record_is_refused(spans: SpanSet, monkeypatch: pytest.MonkeyPatch) -> None:
    text = to_json(spans.record).encode()
    monkeypatch.delitem(FORMATS, "spans")
    with pytest.raises(IntegrityError, match=naming("distill.json", "spans", "examples")):
        parse_set_record(text, "distill.json")
