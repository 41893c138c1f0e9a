"""Questions to a set of labelled words: which are answered, and that the others are refused by name."""

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

from pipeline.errors import QueryError
from pipeline.query.catalog import open_catalog
from pipeline.sql.read_only_query import OF_WORDS, select
from tests.helpers.words import dump_entities, right_teacher, write_random_teacher

OF_TWO_SETS = ("agreement", "disagreement")
QUESTIONS = "select function_name from duckdb_functions() where not internal and function_type = 'table_macro'"


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """The store of a teacher of words that is always right, and of one that is not."""
    folder = tmp_path_factory.mktemp("entities")
    write_random_teacher(folder)
    right_teacher(dump_entities(folder, token_vectors=False))
    with open_catalog(folder / "store") as connection:
        yield connection


def test_only_questions_about_single_labels_are_answered_and_of_words_alone(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    questions = {name for (name,) in connection.execute(QUESTIONS).fetchall()} - {"label_f1"}
    assert questions > {*OF_WORDS, "hardest", "agreement"}
    for question in sorted(questions):
        for view in ("entities", "'entities'", "entities_words"):
            asked = f"{question}({view}, {view})" if question in OF_TWO_SETS else f"{question}({view})"
            if view == "entities_words" and question in OF_WORDS:
                assert select(connection, f"from {asked}").fetchall()
                continue
            told = rf"^{question}\(\w+\): .* class_scores\(entities_words\)$"
            with pytest.raises(QueryError, match=told):
                select(connection, f"select * from {asked} limit 3")


def test_what_is_answered_is_right(connection: duckdb.DuckDBPyConnection) -> None:
    scores = select(connection, "select accuracy from calibration_error(right_words)").fetchall()
    assert scores == [(1.0,), (1.0,)]
    diagonal = select(connection, "select label, teacher, share from confusion(right_words)").fetchall()
    assert all(label == said and np.isclose(share, 1) for label, said, share in diagonal)


def test_a_name_of_the_query_itself_is_not_taken_for_the_set(connection: duckdb.DuckDBPyConnection) -> None:
    own = "with entities as (from right_words) select accuracy from calibration_error(entities)"
    assert select(connection, own).fetchall() == [(1.0,), (1.0,)]
