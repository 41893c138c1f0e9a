"""The SQL macros on a million rows, against a plain scan of the same logits."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.sql.read_only_query import open_files, select

ROWS, CLASSES = 1_000_000, 3
QUERIES = {
    "scan: max(logits[1])": "select max(logits[1]) from examples",
    "argmax": "select argmax(logits), count(*) from examples group by all",
    "entropy": "select avg(entropy(logits)) from examples",
    "margin": "select avg(margin(logits)) from examples",
    "softmax": "select avg(softmax(logits)[1]) from examples",
    "kl": "select avg(kl(logits, list_reverse(logits))) from examples",
}


def alternatives() -> dict[str, Callable[[], object]]:
    """Each macro over the same million rows."""
    path = Path(tempfile.mkdtemp()) / "logits.parquet"
    values = np.random.default_rng(0).normal(size=ROWS * CLASSES).astype(np.float32)
    pq.write_table(pa.table({"logits": pa.FixedSizeListArray.from_arrays(pa.array(values), CLASSES)}), path)

    def run(query: str) -> object:
        with open_files({"examples": [path]}) as connection:
            return select(connection, query).fetchall()

    return {name: lambda query=query: run(query) for name, query in QUERIES.items()}  # type: ignore[misc]
