"""Settings of commands: frozen parts and unions of parts, each field a flag.

A command's settings are a tree. A leaf is one flag: its description is the help text, its name the keyword in Python. A
branch is a part, or a union of parts. One member of a union is chosen by the flag that names it (``--embedding lstm``),
or by a flag that only this member has (``--corpus NAME``). The command line, Python, recipes and sweeps are flat.
`pipeline.flat_settings` makes the tree of flat values, and refuses flags of parts that were not chosen. The module does
not import torch, so that ``--help`` is quick.
"""

import functools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

S = TypeVar("S", bound="Settings")


@dataclass(frozen=True)
class Draft:
    """Marks a field with given flags of other settings, which are not built until the rest of their values is known."""

    kind: "type[Settings]"


SPELLINGS = {"json_output": "--json"}  # pydantic's models have a method `json`


class Settings(BaseModel):
    """A command's settings, or a part of them.

    A field may have ``json_schema_extra`` with ``argument`` (a positional argument), ``aliases`` (hidden spellings of
    the flag) and ``decides``: whether the field decides the result. Paths, output formats and the frequency of
    checkpoints do not, so fingerprints and records leave such fields out.

    Attributes:
        helps: other help texts for flags that the class inherits.
        panel: the heading in ``--help`` for the flags that the class introduces.
        chosen_by: the flag whose presence chooses this member of a union, if no flag names the members.
        open_choices: flags that name members of unions and whose default depends on the data.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    helps: ClassVar[Mapping[str, str]] = {}
    panel: ClassVar[str] = "Options"
    chosen_by: ClassVar[str | None] = None
    open_choices: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def from_flags(cls, /, **values: Any) -> Self:
        """Returns the settings that flat values describe. See `pipeline.flat_settings.build`."""
        from pipeline.flat_settings import build  # imported here, because that module imports this one

        return build(cls, values)

    @classmethod
    def complete(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns given values together with the values that they refer to, such as those of a file.

        Called before `build`.
        """
        return given

    @classmethod
    def member_for(cls, options: Sequence[type["Settings"]], name: str, given: Mapping[str, Any]) -> "type[Settings]":
        """Returns the default member of the union ``name``: the first one, unless overridden."""
        return options[0]


@dataclass(frozen=True)
class Flag:
    """One flag of a command, at any place in the tree.

    Attributes:
        name: the name of the field, and the keyword in Python.
        field: the field of the first part with the flag. Members of a union may have different defaults.
        owners: the parts that have it.
        annotation: the type of its value on the command line.
        choices: for the flag that names a union's member, all names.
        is_of_choice: whether only optional parts have it.
        is_open: for the flag that names a union's member, whether other flags or the data decide the default member.
        text: the command's help, if it differs from that of its part.
    """

    name: str
    field: FieldInfo
    owners: tuple[type[Settings], ...]
    annotation: Any
    choices: tuple[str, ...] = ()
    is_of_choice: bool = False
    is_open: bool = False
    text: str | None = None

    @property
    def is_required(self) -> bool:
        """Whether every use of the command needs it."""
        return self.field.is_required() and not self.is_of_choice

    @property
    def default(self) -> Any:
        """The default that ``--help`` shows. If members of a union differ, their descriptions name their defaults."""
        if self.choices:
            return None if self.is_open else self.field.default  # of the first member, which is the default
        if self.field.is_required():
            return () if typing.get_origin(self.annotation) is tuple else None
        return self.field.get_default(call_default_factory=True) if self.is_shared_default else None

    @property
    def help(self) -> str:
        """The help text: that of the command, of the owner, or of its nearest base class with one."""
        if self.text is not None:
            return self.text
        texts = (part.__dict__.get("helps", {}).get(self.name) for part in self.owners[0].__mro__)
        return next((text for text in texts if text is not None), self.field.description) or ""

    @property
    def panel(self) -> str:
        """The heading in ``--help``: that of the class that introduces the field."""
        bases = [
            part for part in self.owners[0].__mro__ if issubclass(part, Settings) and self.name in part.model_fields
        ]
        return str(bases[-1].__dict__.get("panel", self.owners[0].panel))

    @property
    def is_argument(self) -> bool:
        """Whether it is a positional argument."""
        return bool(self._extra("argument", False))

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names of the field that are accepted and not shown."""
        return tuple(self._extra("aliases", ()))

    @property
    def decides(self) -> bool:
        """Whether it decides the result."""
        return bool(self._extra("decides", True))

    @property
    def is_shared_default(self) -> bool:
        """Whether all owners give it the same default, so that ``--help`` can show it."""
        defaults = [repr(owner.model_fields[self.name].get_default(call_default_factory=True)) for owner in self.owners]
        return len(set(defaults)) == 1

    def _extra(self, key: str, default: Any) -> Any:
        extra = self.field.json_schema_extra
        return extra.get(key, default) if isinstance(extra, dict) else default


def flag_name(field: str) -> str:
    """Returns the command line's spelling of a field: ``max_seq_length`` -> ``--max-seq-length``."""
    return SPELLINGS.get(field, "--" + field.replace("_", "-"))


@functools.cache
def flags(kind: type[Settings]) -> dict[str, Flag]:
    """Returns all flags of a tree of settings by name, in the order of ``--help``: arguments first."""
    found: dict[str, Flag] = {}
    for flag in _walk(kind):
        known = found.get(flag.name)
        if known is None:
            found[flag.name] = flag
            continue
        found[flag.name] = replace(
            known,
            owners=tuple(dict.fromkeys(known.owners + flag.owners)),
            annotation=_either(known.annotation, flag.annotation),
            choices=tuple(dict.fromkeys(known.choices + flag.choices)),
            is_of_choice=known.is_of_choice and flag.is_of_choice,
            is_open=known.is_open or flag.is_open or known.choices[:1] != flag.choices[:1],
        )
    for name, flag in found.items():
        if flag.default is None and not flag.is_required and not _is_union(flag.annotation):
            found[name] = replace(flag, annotation=typing.Optional[flag.annotation])  # noqa: UP045 - made at run time
    for name, text in kind.helps.items():
        if name in found:
            found[name] = replace(found[name], text=text)
    return dict(sorted(found.items(), key=lambda item: not item[1].is_argument))


def members_of(field: FieldInfo) -> tuple[type[Settings], ...]:
    """Returns the classes of settings that a field may hold, or none for a leaf."""
    annotation = field.annotation
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    return tuple(one for one in options if isinstance(one, type) and issubclass(one, Settings))


def draft_of(field: FieldInfo) -> type[Settings] | None:
    """Returns the settings of a field with unbuilt flags."""
    return next((one.kind for one in field.metadata if isinstance(one, Draft)), None)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _unchecked(annotation: Any) -> Any:
    """Returns a type without the checks of its members, which the help of a flag would contain."""
    if not _is_union(annotation):
        return annotation
    options = [
        getattr(option, "__origin__", option) if hasattr(option, "__metadata__") else option
        for option in typing.get_args(annotation)
    ]
    return typing.Union[tuple(options)]  # noqa: UP007 - made at run time


def _either(one: Any, other: Any) -> Any:
    """Returns the type of a flag that two parts have: the choices of both, or the type of the first part."""
    words = [_words(annotation) for annotation in (one, other)]
    if one == other or not all(words):
        return one
    return typing.Literal[tuple(dict.fromkeys(words[0] + words[1]))]


def _words(annotation: Any) -> tuple[Any, ...]:
    """Returns the choices of a flag. Empty if it has no fixed choices."""
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    return next(filter(None, map(_words, typing.get_args(annotation))), ()) if _is_union(annotation) else ()


def is_optional(field: FieldInfo) -> bool:
    """Returns whether a field may hold None."""
    return _is_union(field.annotation) and type(None) in typing.get_args(field.annotation)


def names_of_member(member: type[Settings], discriminator: str) -> tuple[str, ...]:
    """Returns the names by which a flag chooses a member of a union."""
    return tuple(typing.get_args(member.model_fields[discriminator].annotation))


def _walk(kind: type[Settings]) -> Iterator[Flag]:
    """Yields all flags of a tree. A class comes before its base classes."""
    own = [part for part in kind.__mro__ if issubclass(part, Settings)]

    def introduced_by(name: str) -> int:
        extra = kind.model_fields[name].json_schema_extra
        if isinstance(extra, dict) and extra.get("argument"):
            return -1  # arguments have the order of the fields, such as a run before its texts
        return max(number for number, part in enumerate(own) if name in part.model_fields)

    for name in sorted(kind.model_fields, key=introduced_by):
        field = kind.model_fields[name]
        members, draft = members_of(field), draft_of(field)
        if draft is not None:
            yield from _walk(draft)
            continue
        if not members:
            yield Flag(name, field, (kind,), _unchecked(field.annotation))
            continue
        discriminator = field.discriminator
        for member in members:
            is_of_choice = len(members) > 1 or is_optional(field)
            deciding = (discriminator, member.chosen_by)
            # In ``--help``, the flag that chooses a member comes before the flags that only this member has.
            for flag in sorted(_walk(member), key=lambda flag: flag.name not in deciding):
                if flag.name == discriminator:
                    choices = tuple(one for option in members for one in names_of_member(option, flag.name))
                    every = typing.Literal[choices]  # type: ignore[valid-type]
                    by_flags = kind.member_for.__func__ is not Settings.member_for.__func__  # type: ignore[attr-defined]
                    is_open = by_flags or flag.name in kind.open_choices
                    yield replace(flag, annotation=every, choices=choices, is_open=is_open)
                else:
                    yield replace(flag, is_of_choice=flag.is_of_choice or is_of_choice)
