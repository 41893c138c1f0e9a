"""The tests themselves: what they share lies in `tests/helpers`."""

import ast
from pathlib import Path

HERE = Path(__file__).parent


def imported(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def test_nothing_is_imported_from_tests_or_conftests() -> None:
    found = {path.relative_to(HERE): sorted(filter(is_test, imported(path))) for path in HERE.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}


def is_test(module: str) -> bool:
    """Whether a module is a file of tests or a conftest."""
    top, _, rest = module.partition(".")
    last = rest.rpartition(".")[2]
    return top == "tests" and (last.startswith("test_") or last == "conftest")
