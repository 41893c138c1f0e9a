"""Refuses queries that compare logits by position although their sets have other labels, or another order of them.

Logits in SQL are lists without names, so DuckDB itself cannot match labels.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import duckdb

from pipeline.errors import QueryError

COMPARING = {"agreement", "disagreement", "kl", "label_kl", "mix", "mix_labels", "vote"}
SCORES, LABEL_NAME = "scores", "label_name"
EXAMPLES = "examples"  # the view over all sets
IS_CATALOG = "select 1 from duckdb_tables() where table_name = 'sets'"
ORDERS = """select "set", "view", labels from sets where labels is not null"""


class Mentions(NamedTuple):
    """What a query mentions, in small letters.

    Attributes:
        functions: the functions that it calls.
        tables: names of views and in table macros, as often as they are mentioned.
        texts: other texts in quotes, which may be names of sets.
        named: the first arguments of ``label_name``.
    """

    functions: set[str]
    tables: list[str]
    texts: list[str]
    named: set[str]


def mentions(nodes: Sequence[dict[str, Any]]) -> Mentions:
    """Returns what the nodes of a syntax tree mention."""
    found = Mentions(set(), [], [], set())
    names_of_sets: set[int] = set()
    for node in nodes:
        function = node.get("function_name", "").lower()
        found.functions.add(function)
        if node.get("type") == "BASE_TABLE":
            found.tables.append(node["table_name"].lower())
        if node.get("type") == "TABLE_FUNCTION":
            arguments = [argument["expression"] for argument in node["function"]["arguments"]]
            found.tables.extend(one["column_names"][-1].lower() for one in arguments if "column_names" in one)
        if function == LABEL_NAME and node["arguments"]:
            literal = node["arguments"][0]["expression"].get("literal", {})
            names_of_sets.add(id(literal))
            found.named.add(str(literal.get("text")).lower())
    literals = [node["literal"] for node in nodes if node.get("literal", {}).get("kind") == "STRING"]
    found.texts.extend(str(one["text"]).lower() for one in literals if id(one) not in names_of_sets)
    return found


def check_label_order(
    connection: duckdb.DuckDBPyConnection, mentioned: Mentions, runs: Mapping[str, Sequence[str]]
) -> None:
    """Raises QueryError if a query compares outputs by position, and their labels differ.

    Args:
        connection: the database. If it is no catalog, nothing is known about its sets.
        mentioned: what the query mentions, without the names that it defines itself.
        runs: the labels of the students that it calls.
    """
    is_comparing, has_scores = bool(mentioned.functions & COMPARING), SCORES in mentioned.functions
    if not (is_comparing or has_scores or mentioned.named) or not connection.execute(IS_CATALOG).fetchall():
        return
    rows = connection.execute(ORDERS).fetchall()
    labels_of = {
        name.lower(): tuple(labels) for root, view, labels in rows for name in (root, view, f"{view}_variants")
    }
    chosen = [name for name in mentioned.texts if name in labels_of]
    # Without a name for each, the view over all sets may bring any of them.
    is_any = is_comparing and mentioned.tables.count(EXAMPLES) > len(chosen)
    names = {root.lower() for root, _, _ in rows} if is_any else {*mentioned.tables, *chosen} & labels_of.keys()
    used = {name: labels_of[name] for name in sorted(names)}
    compared = list((used | ({run: tuple(labels) for run, labels in runs.items()} if has_scores else {})).items())
    for name, labels in compared[1:]:
        first, expected = compared[0]
        is_permuted = sorted(labels) == sorted(expected)
        if labels != expected and (is_comparing or (has_scores and is_permuted)):
            advice = "Compare their names, see `label_name`."
            advice = f"""Name a set for each `{EXAMPLES}`: "set" = '{first}'.""" if is_any else advice
            raise QueryError(f"{_differ(first, expected, name, labels)}{advice}")
    for name in sorted(mentioned.named & labels_of.keys()):
        if used and labels_of[name] not in used.values():
            first, expected = next(iter(used.items()))
            raise QueryError(
                f"{LABEL_NAME}: {_differ(first, expected, name, labels_of[name])}Name the set that the labels are from."
            )


def _differ(first: str, expected: Sequence[str], other: str, labels: Sequence[str]) -> str:
    return (
        f"the labels of {first} are {', '.join(expected)}, but those of {other} are {', '.join(labels)}, and SQL "
        "compares them by their numbers. "
    )
