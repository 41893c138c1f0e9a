"""The interactive prompt of ``distill sql``, with history, completion and multi-line queries."""

from collections.abc import Callable
from pathlib import Path

import duckdb
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer

from pipeline import console
from pipeline.errors import DistillError, QueryError, did_you_mean

TABLES = """
select name, "columns" from (
    select table_name as name, column_count as "columns" from duckdb_tables()
    union all select view_name, column_count from duckdb_views() where not internal
) order by name
"""
WORDS = """
select table_name from duckdb_columns() where not internal
union select column_name from duckdb_columns() where not internal
union select function_name from duckdb_functions() where not internal
union select keyword_name from duckdb_keywords()
"""
HELP = """One SELECT, ended by a semicolon, on as many lines as it needs.
.tables   tables and views
.help     this
Tab completes names, the arrows bring back earlier queries, Ctrl-C drops the line, Ctrl-D leaves.
Rows: from mnli limit 5; its columns: describe mnli; questions to it: from calibration(mnli);"""


def run_prompt(connection: duckdb.DuckDBPyConnection, answer: Callable[[str], None], history: Path) -> None:
    """Reads queries and answers them until the user leaves. After an error, the prompt continues.

    Args:
        connection: provides names for completion.
        answer: a function that runs one query and prints its rows.
        history: a file for what was typed.
    """
    session: PromptSession[str] = PromptSession(
        history=_history(history),
        completer=completer(connection),
        # Completion on Tab only: a list that opens while one types hides the lines below.
        complete_while_typing=False,
        multiline=Condition(lambda: not _is_finished(get_app().current_buffer.text)),
        prompt_continuation="    ...> ",
        lexer=PygmentsLexer(SqlLexer),
    )
    console.note("type a query and a semicolon, or .help")
    while True:
        try:
            text = session.prompt("distill> ").strip()
            if text:
                _run_command(connection, answer, text)
        except DistillError as error:
            console.error(str(error))
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def completer(connection: duckdb.DuckDBPyConnection) -> WordCompleter:
    """Completes views, columns, macros and SQL's keywords."""
    return WordCompleter([word for (word,) in connection.execute(WORDS).fetchall()], ignore_case=True)


def _run_command(connection: duckdb.DuckDBPyConnection, answer: Callable[[str], None], text: str) -> None:
    commands: dict[str, Callable[[], None]] = {
        ".tables": lambda: console.print_rows(["name", "columns"], connection.execute(TABLES).fetchall()),
        ".help": lambda: console.note(HELP),
    }
    if not text.startswith("."):
        answer(text)
    elif text in commands:
        commands[text]()
    else:
        raise QueryError(f"no command {text!r}. {did_you_mean(text, commands)}")


def _is_finished(text: str) -> bool:
    """Whether Enter ends the query, or only its line."""
    return not text.strip() or text.startswith(".") or text.rstrip().endswith(";")


def _history(path: Path) -> History:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Tested here, because prompt_toolkit would fail in the middle of a session, after the first query.
        path.open("a").close()
    except OSError as error:
        console.note(f"{path}: cannot be written ({error.strerror}): this session's history is not kept")
        return InMemoryHistory()
    return FileHistory(path)
