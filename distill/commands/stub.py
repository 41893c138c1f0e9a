"""Types for editors and type checkers: the public functions with all their keywords, as ``distill/__init__.pyi``.

The keywords of a function are read from its settings, which type checkers cannot do. So the build of the package writes
this file, see setup.py. ``make api`` writes it for the repository, where git ignores it.
"""

import inspect
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import distill
from distill.commands import FUNCTIONS, load

HEAD = '''\
"""The public API. The build of the package has written this file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

'''


def stub() -> str:
    """Returns the text of the stub."""
    objects = vars(distill)["OBJECTS"]  # which the stub itself has not
    imports = [f"from {module} import {name} as {name}\n" for name, module in objects.items()]
    listed = "".join(f'    "{name}",\n' for name in sorted([*objects, *FUNCTIONS]))
    functions = "\n".join(map(_function, sorted(FUNCTIONS)))
    return f"{HEAD}{''.join(sorted(imports))}\n__all__ = [\n{listed}]\n\n{functions}"


def _function(name: str) -> str:
    function = load(name)
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = [p for p in parameters if p not in positional]
    listed = [*map(_parameter, positional), *(["*"] if keywords else []), *map(_parameter, keywords)]
    lines = "".join(f"    {one},\n" for one in listed)
    docstring = str(inspect.getdoc(function)).replace("\n", "\n    ").rstrip()
    return f'def {name}(\n{lines}) -> Result:\n    """{docstring}"""\n'


def _parameter(parameter: inspect.Parameter) -> str:
    text = f"{parameter.name}: {_type(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    is_plain = parameter.default is None or isinstance(parameter.default, bool | int | float | str)
    return f"{text} = {parameter.default!r}" if is_plain or parameter.default == () else f"{text} = ..."


def _type(annotation: Any) -> str:
    """A type as an argument: a path may be a str, a tuple any sequence."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(_flat(map(_type, parts))))
    if origin is tuple:
        return f"str | Sequence[{_type(parts[0])}]"
    if annotation is Path:
        return "str | Path"
    return "None" if annotation is types.NoneType else str(annotation.__name__)


def _flat(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from [text] if "[" in text else text.split(" | ")


if __name__ == "__main__":
    Path(distill.__file__).with_suffix(".pyi").write_text(stub(), encoding="utf-8")
