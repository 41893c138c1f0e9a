from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import QueryError
from pipeline.query.mixture import open_sets
from pipeline.query.selection import read_chosen
from pipeline.sets.kinds.examples import KEYS, ExampleSet
from tests.helpers.messages import naming
from tests.helpers.rewritten_sets import rewritten, with_logits

COLUMNS = (*KEYS, "label")


@pytest.fixture(scope="module")
def flat(opinion_set: ExampleSet, tmp_path_factory: pytest.TempPathFactory) -> ExampleSet:
    """The first 50 training rows of `opinion_set`, and its dev rows, with logits of a teacher that guesses."""
    knows_nothing = with_logits(lambda _: [1.0, 1.0])
    root = tmp_path_factory.mktemp("sets") / "Flat-1"
    return rewritten(
        opinion_set, root, lambda split, rows: knows_nothing(split, rows[: 50 if split == "train" else 40])
    )


def chosen(logit_set: ExampleSet, query: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = read_chosen(logit_set, query, COLUMNS).to_pylist()
    return rows


def test_rows_come_by_key_with_gold_and_logits_of_the_set(opinion_set: ExampleSet) -> None:
    query = "select variant, source_row from opinion where source_row in (3, 70, 20) order by source_row desc"
    expected = opinion_set.read("train", (*COLUMNS, "1.0::double as weight", "logits"), "source_row in (3, 20, 70)")
    assert chosen(opinion_set, query) == expected.to_pylist()


def test_gold_is_the_sets_whatever_the_query_says(opinion_set: ExampleSet) -> None:
    own = opinion_set.read("train", ("label",)).column("label").to_pylist()
    for end in ("", " ;\n", " -- all of it"):
        rows = chosen(opinion_set, f"select source_row, variant, 1 - label as label from opinion{end}")
        assert [row["label"] for row in rows] == own


def test_weights_and_logits_are_taken_from_the_query(opinion_set: ExampleSet) -> None:
    query = (
        "select source_row, variant, source_row / 4 as Weight, [source_row, -0.5] as LOGITS from examples "
        "where source_row < 3"
    )
    rows = chosen(opinion_set, query)
    assert [row["weight"] for row in rows] == [0, 0.25, 0.5]
    assert [row["logits"] for row in rows] == [[0, -0.5], [1, -0.5], [2, -0.5]]


def test_only_training_rows_are_seen(opinion_set: ExampleSet, flat: ExampleSet) -> None:
    both = open_sets([opinion_set.root, flat.root])
    with both.opened("train") as connection:
        views = connection.execute("select view_name from duckdb_views() where not internal").fetchall()
    assert sorted(views) == [("flat_1",), ("opinion",)]
    query = "select source_row, variant, (select count(*) from opinion) + (select count(*) from flat_1) as weight "
    rows = chosen(both, query + "from opinion limit 1")
    assert [row["weight"] for row in rows] == [96 + 50]
    shard = opinion_set.root / opinion_set.record.shards_of("validation")[0].path
    with pytest.raises(QueryError, match="read_parquet"):
        chosen(both, f"select source_row, variant from read_parquet('{shard}')")


def test_without_logits_of_its_own_a_query_takes_the_mixture(opinion_set: ExampleSet, flat: ExampleSet) -> None:
    both = open_sets([opinion_set.root, flat.root], "weighted:1,3")
    rows = chosen(both, "select source_row, variant from flat_1 where source_row < 5")
    expected = both.read("train", ("logits",), "source_row < 5").column("logits").to_pylist()
    assert [row["logits"] for row in rows] == expected
    with pytest.raises(QueryError, match=naming("--query: ", "source row 50, variant 0: ")):
        chosen(both, "select source_row, variant from opinion")


def test_a_query_with_logits_may_choose_any_row(opinion_set: ExampleSet, flat: ExampleSet) -> None:
    both = open_sets([opinion_set.root, flat.root])
    query = (
        "select source_row, variant, case when f.logits is null then o.logits else mix([o.logits, f.logits], [1, 1]) "
        "end as logits from opinion o left join flat_1 f using (split, source_row, variant) where source_row >= 48"
    )
    rows = chosen(both, query)
    own = opinion_set.read("train", ("logits",), "source_row >= 48").column("logits").to_pylist()
    assert len(rows) == 48
    assert [row["logits"] for row in rows[2:]] == own[2:]
    mixed = np.exp(np.array(rows[0]["logits"]))
    assert mixed == pytest.approx((np.exp(own[0]) / np.exp(own[0]).sum() + 0.5) / 2, abs=1e-6)


KEY = "source_row, variant"


@pytest.mark.parametrize(
    ("query", "match"),
    [
        (f"select {KEY} from opinion union all select 7, 0", "source row 7, variant 0: "),
        (f"select {KEY} from opinion union all select 96, 0", "source row 96, variant 0: "),
        ("select source_row, 1 as variant from opinion", "source row 0, variant 1: "),
        (f"select {KEY} from opinion union all select null, 0", "source row None, variant 0: "),
        (f"select {KEY} from opinion where false", "row"),
        ("select source_row from opinion", "variant"),
        ("select source_row * 1.0 as source_row, variant from opinion", r"source_row .*DECIMAL"),
        ("select source_row::varchar as source_row, variant from opinion", r"source_row .*VARCHAR"),
        (f"select {KEY}, 1 as wieght from opinion", naming("'wieght'", "'weight'")),
        (f"select {KEY}, logits, logits from opinion", "'logits'"),
        (f"select {KEY}, source_row - 5 as weight from opinion", r"source row 0, variant 0: .*weight"),
        (f"select {KEY}, nullif(source_row, 4) as weight from opinion", r"source row 4, variant 0: .*weight"),
        (f"select {KEY}, 'nan'::float as weight from opinion", r"source row 0, variant 0: .*weight"),
        (f"select {KEY}, 'inf'::float as weight from opinion", r"source row 0, variant 0: .*weight"),
        (f"select {KEY}, 0 as weight from opinion", "weight"),
        (f"select {KEY}, [1, 2, 3] as logits from opinion", r"source row 0, variant 0: .*logits"),
        (f"select {KEY}, [1, null] as logits from opinion", r"source row 0, variant 0: .*logits"),
        (f"select {KEY}, [1, 'nan'::float] as logits from opinion", r"source row 0, variant 0: .*logits"),
        (f"select {KEY}, [1, 1e300] as logits from opinion", r"source row 0, variant 0: .*logits"),
        (f"select {KEY}, null::float[] as logits from opinion", r"source row 0, variant 0: .*logits"),
        (f"select {KEY} from roles", "roles"),
        ("drop view opinion", "SELECT"),
        (f"select {KEY} from opinion; drop view opinion", "SELECT"),
        (f"select {KEY}, error('stop') as weight from opinion", "stop"),
    ],
)
def test_what_a_query_must_not_return_is_told(opinion_set: ExampleSet, query: str, match: str) -> None:
    with pytest.raises(QueryError, match=match):
        chosen(opinion_set, query)


def test_everything_that_is_wrong_is_told_at_once(opinion_set: ExampleSet) -> None:
    query = f"select {KEY}, -1 as weight, [0] as logits from opinion union all select 500, 0, 1, [1, 2]"
    with pytest.raises(QueryError, match=naming("--query: 3 problems", "source row 500, ", "weight", "logits")):
        chosen(opinion_set, query)


def test_a_set_whose_name_sql_reserves(opinion_set: ExampleSet, tmp_path: Path) -> None:
    odd = rewritten(opinion_set, tmp_path / "select", lambda _, rows: rows)
    assert len(chosen(odd, 'select source_row, variant from "select"')) == 96
    assert open_sets([opinion_set.root, odd.root]).read("train", KEYS).num_rows == 96
