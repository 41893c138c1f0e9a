"""Random SQL over DuckDB's own list of functions, past the gate: nothing but a SELECT over the set's files, ever.

python -m tests.fuzz.queries [QUERIES [SEED]]
"""

import random
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import QueryError
from pipeline.sql import read_only_query
from pipeline.sql.read_only_query import open_files, select, to_arrow

SECRET = "what no query may see"  # noqa: S105
PART = re.compile(r"\{(\w+)\}")
STATEMENTS = (
    "{s}",
    "{s}",
    "{s}",
    "with t as ({s}) from t",
    "with t as materialized ({w}) select 1",
    "from ({w})",
    "{s} union all {s}",
    "explain analyze {w}",
    "{w}",
    "{s}; {w}",
    "select exists (with t as ({w}) select 1)",
    "describe {s}",
    "with recursive r(i) as (select 1 union all {s}) from r limit 3",
)
WRITES = (
    "copy (select 1) to {path}",
    "insert into v values (1)",
    "create table t as {s}",
    "attach {path} as a",
    "set enable_external_access = true",
    "delete from v",
    "export database {path}",
    "install httpfs",
    "call {f}({a})",
    "pragma {f}({a})",
    "update v set x = 1",
    "create macro m() as 1",
    "load {path}",
    "drop view v",
)
SELECTS = (
    "select {e}",
    "select {e} from v",
    "select * from {f}({a})",
    "from {f}({a}) limit 2",
    "select x from v where {e} is null",
    "select {f}({e}) over (order by x) from v",
    "select list_transform([1], lambda e: {e})",
    "select {f}({e}) from v group by all",
    "from {path}",
    "select * from v, lateral ({s}) limit 3",
    "select ({s})",
    "summarize from {f}({a})",
)
SIMPLE = (
    "1",
    "x",
    "'a'",
    "null",
    "[1, 2]",
    "9",
    "-3",
    "true",
    "date '2020-01-01'",
    "blob '\\xAA'",
    "'$.a'",
    "'combine'",
)
ATOMS = (
    *SIMPLE,
    "v",
    "'combine'",
    "{path}",
    "[{path}]",
    "'select 1'",
    "$$ {w} $$",
    "struct_pack(a := 1)",
    "map(['a'], [1])",
    "1::hugeint",
)


class Grammar:
    """Draws queries.

    Args:
        draw: the random numbers.
        functions: names.
        paths: files, as they stand in a query.
    """

    def __init__(self, draw: random.Random, functions: list[str], paths: list[str]) -> None:
        self.draw, self.functions, self.paths = draw, functions, paths

    def of(self, template: str, depth: int = 0) -> str:
        """A template with its parts drawn."""
        return PART.sub(lambda part: self.of(self.part(part[1], depth), depth + 1), template)

    def part(self, name: str, depth: int) -> str:
        """A template for a part: an expression, a function, a path, arguments, a SELECT, something that writes."""
        if name == "path":
            return self.draw.choice(self.paths)
        if name == "f":
            return self.draw.choice(self.functions)
        if name == "a":
            return ", ".join(["{e}"] * self.draw.randrange(4))
        if name == "e" and (depth > 5 or self.draw.random() < 0.4):
            return self.draw.choice(SIMPLE if depth > 5 else ATOMS)
        if name == "e":
            return "{f}({a})"
        if name == "s":
            return self.draw.choice(SELECTS) if depth < 4 else "select {e}"
        return self.draw.choice(WRITES) if depth < 4 else "copy v to {path}"


def store(folder: Path) -> Path:
    """A file that may be read, and others that may not."""
    pq.write_table(pa.table({"x": [1, 2, 3]}), folder / "shard.parquet")
    pq.write_table(pa.table({"x": [SECRET]}), folder / "other.parquet")
    (folder / "secret.csv").write_text(f"x\n{SECRET}\n")
    (folder / "secret.txt").write_text(SECRET)
    with duckdb.connect(str(folder / "other.duckdb")) as other:
        other.execute(f"create table t as select '{SECRET}' as x")
    return folder


def fuzz(folder: Path, count: int, seed: int) -> Counter[str]:
    """Asks so many queries; returns how many were refused, failed and answered.

    Raises:
        AssertionError: if a query saw or changed what it may not, naming it.
    """
    names = sorted(folder.iterdir())
    before = {path: path.read_bytes() for path in names}
    paths = [f"'{path}'" for path in (*names, folder / "new.parquet", folder / "*", "/etc/passwd")]
    outcomes: Counter[str] = Counter()
    draw = random.Random(seed)  # noqa: S311
    with open_files({"v": [folder / "shard.parquet"]}) as connection:
        functions = [name for (name,) in connection.execute(
            "select distinct function_name from duckdb_functions() where regexp_full_match(function_name, '\\w+')"
        ).fetchall()]  # fmt: skip
        grammar = Grammar(draw, sorted(functions), paths)
        state = settings(connection)
        for _ in range(count):
            query = grammar.of(draw.choice(STATEMENTS))
            try:
                answer = to_arrow(select(connection, query)).slice(0, 100).to_pylist()
                seen = SECRET in str(answer)
                outcomes["answered"] += 1
            except QueryError as error:
                seen = SECRET in str(error)
                outcomes["refused" if "allowed" in str(error) else "failed"] += 1
            assert not seen, query
            assert {path: path.read_bytes() for path in folder.iterdir()} == before, query
        assert settings(connection) == state
        assert connection.execute("select count(*) from v").fetchone() == (3,)
    return outcomes


def settings(connection: duckdb.DuckDBPyConnection) -> list[tuple[object, ...]]:
    """What a query may not change: settings, tables, views, macros, databases."""
    parts = [f"from duckdb_{part}()" for part in ("settings", "tables", "databases", "secrets")]
    # of its own views DuckDB counts the columns only when a name is looked for among them
    parts.append("select database_name, schema_name, view_name, sql from duckdb_views()")
    state = [row for part in parts for row in connection.execute(f"{part} order by all").fetchall()]
    return [*state, *connection.execute("select count(*) from duckdb_functions()").fetchall()]


if __name__ == "__main__":
    read_only_query.LOCKED_DOWN |= {"memory_limit": "500MB", "max_execution_time": 5000, "threads": 1}
    with tempfile.TemporaryDirectory() as temporary:
        number, seed = (int(argument) for argument in (*sys.argv[1:], *("10000", "0")[len(sys.argv) - 1 :]))
        sys.stdout.write(f"{dict(fuzz(store(Path(temporary)), number, seed))}\n")
