"""Reads a logit set with pyarrow and DuckDB alone: ``python examples/read_a_set.py logits/mrpc``."""

import json
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

QUESTION = """
    with answers as (
        select split, label, list_position(logits::float[], list_max(logits::float[])) - 1 as teacher,
               1 / list_sum([exp(x - list_max(logits::float[])) for x in logits::float[]]) as confidence
        from read_parquet($shards) where label is not null
    )
    select split, count(*) as rows, round(avg((teacher = label)::int), 3) as accuracy,
           round(avg(confidence) filter (where teacher <> label), 3) as confidence_when_wrong
    from answers group by split order by split
"""


def main(root: Path) -> None:
    """Prints what a set says of itself, and how sure its teacher was of the rows it got wrong."""
    record = json.loads((root / "distill.json").read_text(encoding="utf-8"))
    print(f"{record['name']}: {record['state']}, by {record['teacher']['name']}")

    shards = sorted(root.glob("examples/*.parquet"))
    table = pq.read_table(shards[0], columns=["source_row", "label", "logits"])
    logits_NC = table["logits"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    print(f"{shards[0].name}: logits {logits_NC.shape}, {logits_NC.dtype}")

    print(duckdb.sql(QUESTION, params={"shards": [str(path) for path in shards]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
