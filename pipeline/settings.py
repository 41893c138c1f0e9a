"""Settings of commands: frozen parts and unions of parts, each field a flag.

A command's settings are a tree. A leaf is one flag: its description is the help text. A branch is a part, or a union of
parts. A flag names the member of a union (``--embedding lstm``), or only this member has it (``--corpus NAME``). The
command line, Python, recipes and sweeps are flat: `build` makes the tree, and refuses flags of parts that were not
chosen. No library fits. tyro makes subcommands of members, jsonargparse needs ``--encoder.hidden_size``, and
pydantic-settings has no default member. They stop at the first wrong value. Typer makes no flags of a model's fields.
"""

import functools
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from pipeline.errors import ConfigError, did_you_mean, own_words, raise_all
from pipeline.untrusted import flag_problem

S = TypeVar("S", bound="Settings")


@dataclass(frozen=True)
class Draft:
    """Marks a field with given flags of other settings, which are not built until the rest of their values is known."""

    kind: "type[Settings]"


SPELLINGS = {"json_output": "--json"}  # pydantic's models have a method `json`


class Settings(BaseModel):
    """A command's settings, or a part of them.

    A field may have ``json_schema_extra`` with ``argument`` (a positional argument), ``aliases`` (hidden spellings of
    the flag) and ``decides``: paths, output formats and the like do not decide a result, and no record holds them.

    Attributes:
        helps: other help texts for flags that the class inherits.
        panel: the heading in ``--help`` for the flags that the class introduces.
        chosen_by: the flag whose presence chooses this member of a union, if no flag names the members.
        open_choices: flags that name members of unions and whose default depends on the data.
        no_flags: fields of the class or of its parts that are not flags.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    helps: ClassVar[Mapping[str, str]] = {}
    panel: ClassVar[str] = "Options"
    chosen_by: ClassVar[str | None] = None
    open_choices: ClassVar[tuple[str, ...]] = ()
    no_flags: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def from_flags(cls, /, **values: Any) -> Self:
        """Returns the settings that flat values describe."""
        return build(cls, values)

    @classmethod
    def complete(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns given values together with the values that they refer to, such as those of a file."""
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
        """The default that ``--help`` shows. A description that names the default itself explains its condition."""
        if "Default: " in (self.field.description or ""):
            return () if typing.get_origin(self.annotation) is tuple else None
        if self.choices:
            return None if self.is_open else self.field.default  # of the first member, which is the default
        if self.field.is_required():
            return () if typing.get_origin(self.annotation) is tuple else None
        defaults = [owner.model_fields[self.name].get_default(call_default_factory=True) for owner in self.owners]
        return defaults[0] if len({repr(default) for default in defaults}) == 1 else None

    @property
    def help(self) -> str:
        """The help text: that of the command, of the owner, or of its nearest base class with one."""
        texts = [self.text, *(part.__dict__.get("helps", {}).get(self.name) for part in self.owners[0].__mro__)]
        return next((text for text in texts if text is not None), self.field.description) or ""

    @property
    def panel(self) -> str:
        """The heading in ``--help``: that of the class that introduces the field."""
        first = [part for part in _classes(self.owners[0]) if self.name in part.model_fields][-1]
        return str(first.__dict__.get("panel", self.owners[0].panel))

    @property
    def is_argument(self) -> bool:
        """Whether it is a positional argument."""
        return bool(_extra(self.field, "argument", False))

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names of the field that are accepted and not shown."""
        return tuple(_extra(self.field, "aliases", ()))


def flag_name(field: str) -> str:
    """Returns the command line's spelling of a field: ``max_seq_length`` -> ``--max-seq-length``."""
    return SPELLINGS.get(field, "--" + field.replace("_", "-"))


@functools.cache
def flags(kind: type[Settings]) -> dict[str, Flag]:
    """Returns all flags of a tree of settings by name, in the order of ``--help``: arguments first."""
    found: dict[str, Flag] = {}
    for flag in (one for one in _walk(kind) if one.name not in kind.no_flags):
        known = found.setdefault(flag.name, flag)
        if known is not flag:
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
    for name in kind.helps.keys() & found.keys():
        found[name] = replace(found[name], text=kind.helps[name])
    return dict(sorted(found.items(), key=lambda item: not item[1].is_argument))


def _walk(kind: type[Settings]) -> Iterator[Flag]:
    """Yields all flags of a tree. A class comes before its base classes."""

    def introduced_by(name: str) -> int:
        if _extra(kind.model_fields[name], "argument", False):
            return -1  # arguments have the order of the fields, such as a run before its texts
        return max(number for number, part in enumerate(_classes(kind)) if name in part.model_fields)

    for name in sorted((name for name in kind.model_fields if name not in kind.no_flags), key=introduced_by):
        field = kind.model_fields[name]
        members, draft = _members(field), _draft(field)
        if draft is not None:
            yield from _walk(draft)
        elif not members:
            yield Flag(name, field, (kind,), _unchecked(field.annotation))
        for member in members:
            # In ``--help``, the flag that chooses a member comes before the flags that only this member has.
            deciding_flags = (field.discriminator, member.chosen_by)
            for flag in sorted(_walk(member), key=lambda flag: flag.name not in deciding_flags):
                if flag.name == field.discriminator:
                    choices = tuple(_names_of(members, flag.name))
                    every = typing.Literal[choices]  # type: ignore[valid-type]
                    by_flags = kind.member_for.__func__ is not Settings.member_for.__func__  # type: ignore[attr-defined]
                    is_open = by_flags or flag.name in kind.open_choices
                    yield replace(flag, annotation=every, choices=choices, is_open=is_open)
                else:
                    is_of_choice = flag.is_of_choice or len(members) > 1 or _is_optional(field)
                    yield replace(flag, is_of_choice=is_of_choice)


def _classes(kind: type[Settings]) -> list[type[Settings]]:
    return [part for part in kind.__mro__ if issubclass(part, Settings)]


def _extra(field: FieldInfo, key: str, default: Any) -> Any:
    extra = field.json_schema_extra
    return extra.get(key, default) if isinstance(extra, dict) else default


def _members(field: FieldInfo) -> tuple[type[Settings], ...]:
    """Returns the classes of settings that a field may hold, or none for a leaf."""
    annotation = field.annotation
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    return tuple(one for one in options if isinstance(one, type) and issubclass(one, Settings))


def _names_of(members: Sequence[type[Settings]], discriminator: str) -> dict[str, type[Settings]]:
    return {one: m for m in members for one in typing.get_args(m.model_fields[discriminator].annotation)}


def _draft(field: FieldInfo) -> type[Settings] | None:
    return next((one.kind for one in field.metadata if isinstance(one, Draft)), None)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _is_optional(field: FieldInfo) -> bool:
    return _is_union(field.annotation) and type(None) in typing.get_args(field.annotation)


def _unchecked(annotation: Any) -> Any:
    """Returns a type without the checks of its members, which the help of a flag would contain."""
    if not _is_union(annotation):
        return annotation
    options = [one.__origin__ if hasattr(one, "__metadata__") else one for one in typing.get_args(annotation)]
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


def build(
    kind: type[S], values: Mapping[str, Any], known_problems: Sequence[str] = (), subject: str = "wrong flags"
) -> S:
    """Returns the tree of settings that flat values describe. None and () mean that a flag was not given.

    Args:
        kind: the settings' class.
        values: by field name.
        known_problems: problems that were found before, to be reported with the others.
        subject: the source of the values, for the message.

    Raises:
        ConfigError: naming every flag that is unknown, out of range, or of a part that was not chosen.
    """
    made, problems = attempt(kind, values)
    raise_all(ConfigError, subject, sorted({*problems, *known_problems}))
    assert made is not None, "or there would have been problems"
    return made


def attempt(kind: type[S], values: Mapping[str, Any]) -> tuple[S | None, list[str]]:
    """Returns the settings as `build` does, or the problems of the values.

    Raises:
        ConfigError: if a file that completes the values cannot be read.
    """
    known = flags(kind)
    spelled = {alias: name for name, flag in known.items() for alias in flag.aliases}
    values = {spelled.get(name, name): value for name, value in values.items() if value not in (None, ())}
    unknown = values.keys() - known.keys()
    problems = [f"{flag_name(name)}: unknown flag. {did_you_mean(name, list(known))}" for name in unknown]
    unfit = _unfit_strings(known, values)
    if unfit:
        return None, sorted({*problems, *unfit})
    values = dict(kind.complete({name: value for name, value in values.items() if name in known}))
    used = set[str]()
    made = _build(kind, values, used, problems)
    problems += [_misplaced(kind, known[name], values) for name in values.keys() - used]
    problems += [] if made is None else _unfit_strings(known, flat(made))  # defaults from the environment, too
    return None if problems else made, sorted(set(problems))


def flat(settings: Settings, only_given: bool = False) -> dict[str, Any]:
    """Returns the values of all leaves by name, or only of those that were given."""
    values: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if _members(field):
            values |= flat(value, only_given) if value is not None else {}
        elif _draft(field) is not None:
            values |= value
        elif not only_given or name in settings.model_fields_set:
            values[name] = value
    return values


def given(settings: Settings) -> dict[str, Any]:
    """Returns the given values by flag. None means that a flag was not given."""
    return {name: value for name, value in flat(settings, only_given=True).items() if value is not None}


def deciding(*parts: Settings | None) -> dict[str, Any]:
    """Returns the values, as JSON, of all fields of parts that decide a result."""
    values: dict[str, Any] = {}
    for part in filter(None, parts):
        leaves = part.model_dump(mode="json")
        for name, field in type(part).model_fields.items():
            if _members(field):
                values |= deciding(getattr(part, name))
            elif _extra(field, "decides", True):
                values[name] = leaves[name]
    return values


def defaults(kind: type[Settings]) -> dict[str, Any]:
    """Returns the defaults of all flags that decide a result. None for flags whose default differs between parts."""
    return {flag.name: flag.default for flag in flags(kind).values() if _extra(flag.field, "decides", True)}


def as_flags(settings: Settings, names: Collection[str] | None = None) -> list[str]:
    """Returns the command line of the given settings, or only of these flags."""
    words: list[str] = []
    values = given(settings) if names is None else {name: v for name, v in flat(settings).items() if name in names}
    for name, value in values.items():
        if value is True:
            words.append(flag_name(name))
        elif value is False:
            words += [_no(name)] if flags(type(settings))[name].field.default is True else []
        elif value is not None:
            for one in value if isinstance(value, list | tuple) else [value]:
                words += [flag_name(name), str(one)]
    return words


def _no(name: str) -> str:
    return flag_name(name).replace("--", "--no-", 1)


def _typed(flag: Flag) -> str:
    return flag.name.upper() if flag.is_argument else flag_name(flag.name)


def _unfit_strings(known: Mapping[str, Flag], values: Mapping[str, Any]) -> list[str]:
    problems = {name: problem for name in values if (problem := flag_problem(name, values[name])) is not None}
    return [f"{_typed(known[name]) if name in known else flag_name(name)}: {one}" for name, one in problems.items()]


def _choose(kind: type[Settings], name: str, values: Mapping[str, Any], problems: list[str]) -> type[Settings] | None:
    """Returns the member of a union, or the part, that values choose. None for an optional part without flags."""
    field = kind.model_fields[name]
    members, discriminator = _members(field), field.discriminator
    if isinstance(discriminator, str) and discriminator in values:
        by_name, value = _names_of(members, discriminator), values[discriminator]
        if value not in by_name:
            problems.append(f"{flag_name(discriminator)} {value}: unknown value. {did_you_mean(str(value), by_name)}")
        return by_name.get(value)
    chosen = {one.chosen_by: one for one in members if one.chosen_by is not None and one.chosen_by in values}
    if len(chosen) > 1:
        problems.append(f"{flag_name(next(iter(chosen)))}: give either {' or '.join(map(flag_name, chosen))}")
    if chosen:
        return list(chosen.values())[-1]
    if _is_optional(field):
        any_of_it = members[0].chosen_by is None and any(flag in values for flag in flags(members[0]))
        return members[0] if any_of_it else None
    return kind.member_for(members, name, values)


def _build(kind: type[S], values: Mapping[str, Any], used: set[str], problems: list[str]) -> S | None:
    """Builds a part from those values that belong to it or to its own parts. Adds their names to ``used``."""
    own: dict[str, Any] = {}
    is_complete = True
    for name, field in kind.model_fields.items():
        draft, members = _draft(field), _members(field)
        if draft is not None:
            own[name] = {flag: values[flag] for flag in flags(draft) if flag in values}
            used.update(own[name])
        elif not members:
            own |= {name: values[name]} if name in values else {}
            used |= {name} & values.keys()
        else:
            member = _choose(kind, name, values, problems)
            used |= {str(one.chosen_by) for one in members if one.chosen_by in values}  # or reported there
            part = None if member is None else _build(member, values, used, problems)
            is_complete &= member is None or part is not None
            if member is None and field.discriminator in values:  # by an unknown name
                is_complete = False
                used |= {flag for one in members for flag in flags(one)}
            own |= {} if part is None else {name: part}
    try:
        return kind(**own)
    except ValidationError as error:
        problems += [_problem(kind, one) for one in error.errors() if is_complete or one["type"] != "missing"]
        return None


def _problem(kind: type[Settings], error: Any) -> str:
    """Returns pydantic's errors with the names of the flags."""
    message = own_words(str(error["msg"]))
    if not error["loc"]:
        return message
    where = _typed(flags(kind)[str(error["loc"][0])])
    return f"{where}: missing" if error["type"] == "missing" else f"{where}: {message} (got {error['input']!r})"


def _misplaced(kind: type[Settings], flag: Flag, values: Mapping[str, Any]) -> str:
    """Returns why a known flag has no effect with the others: it belongs to parts that were not chosen."""
    typed = _no(flag.name) if values[flag.name] is False and flag.field.default is True else _typed(flag)
    rivals = [one for owner in flag.owners for one in _rivals(kind, owner) if one in values]
    if rivals:
        return f"{typed}: does not go with {flag_name(rivals[0])}. Remove one of them"
    homes = dict.fromkeys(home for owner in flag.owners for home in _homes(kind, owner, flag.name))
    return f"{typed}: belongs to {' or '.join(homes) or 'another part'}"


def _rivals(kind: type[Settings], owner: type[Settings]) -> Iterator[str]:
    """Yields the flags that choose another part than the default one."""
    for field in kind.model_fields.values():
        members = _members(field)
        if owner in members and owner.chosen_by is None and field.discriminator is None:
            yield from (one.chosen_by for one in members if one.chosen_by is not None)
        for member in members:
            yield from _rivals(member, owner)


def _homes(kind: type[Settings], owner: type[Settings], flag: str) -> Iterator[str]:
    """Yields the flags, as one types them, that choose the part with this flag. With nested choices, the innermost."""
    for field in kind.model_fields.values():
        by = field.discriminator
        for member in _members(field):
            if not _has(member, owner) or (member is owner and flag in (by, member.chosen_by)):
                continue  # a flag cannot be chosen by itself
            if inner := list(_homes(member, owner, flag)):
                yield from inner
            elif isinstance(by, str):
                yield from (f"{flag_name(by)} {one}" for one in _names_of([member], by))
            elif member.chosen_by is not None:
                yield flag_name(member.chosen_by)


def _has(kind: type[Settings], part: type[Settings]) -> bool:
    return kind is part or any(_has(one, part) for field in kind.model_fields.values() for one in _members(field))
