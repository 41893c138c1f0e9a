"""Settings of commands: frozen parts and unions of parts, each field a flag.

A command's settings are a tree. A leaf is one flag: its description is the help text, its name the keyword in Python. A
branch is a part, or a union of parts of which one is chosen: by the flag that names it (``--embedding lstm``), or by
the flag that only it has (``--corpus NAME``). The command line, Python, recipes and sweeps are flat; `build` makes the
tree of flat values, and refuses in one place what belongs to a part that was not chosen. Free of torch, so that
``--help`` is quick.
"""

import functools
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from pipeline.errors import ConfigError, did_you_mean, raise_all
from pipeline.strings import flag_problem

S = TypeVar("S", bound="Settings")


@dataclass(frozen=True)
class Draft:
    """Marks a field that holds flags of other settings as they were given, unbuilt: what completes them comes later."""

    kind: "type[Settings]"


SPELLINGS = {"json_output": "--json"}  # pydantic's models have a method `json`


class Settings(BaseModel):
    """A command's settings, or a part of them.

    A field may carry ``json_schema_extra`` with ``argument`` (a positional argument), ``aliases`` (hidden spellings of
    the flag) and ``decides``: whether the field decides the result. Where files lie, how results are printed and how
    often they are saved does not, so fingerprints and records leave such fields out.

    Attributes:
        helps: other help texts for flags that the class inherits.
        panel: the heading of ``--help`` under which the flags stand that the class introduces.
        chosen_by: of a member of a union without a naming flag, the flag whose presence chooses it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    helps: ClassVar[Mapping[str, str]] = {}
    panel: ClassVar[str] = "Options"
    chosen_by: ClassVar[str | None] = None

    @classmethod
    def from_flags(cls, /, **values: Any) -> Self:
        """Returns the settings that flat values describe; see `build`."""
        return build(cls, values)

    @classmethod
    def complete(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns given values with those that they stand for, such as a file's, before anything is built of them."""
        return given

    @classmethod
    def member_for(cls, options: Sequence[type["Settings"]], name: str, given: Mapping[str, Any]) -> "type[Settings]":
        """Returns the member of the union ``name`` that holds if no flag names one; the first unless overridden."""
        return options[0]


@dataclass(frozen=True)
class Flag:
    """One flag of a command, wherever in the tree its field is.

    Attributes:
        name: of the field, and the keyword in Python.
        field: of the first part that has it; members of a union may give it different defaults.
        owners: the parts that have it.
        annotation: the type of its value on the command line.
        choices: for the flag that names a union's member, all names.
        is_of_choice: whether only parts have it that need not be chosen.
        is_open: of the flag that names a union's member, whether other flags decide which one holds without it.
        text: what the command says of it, where that is not what its part says.
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
        """The value that ``--help`` shows; where members of a union differ in it, their descriptions name theirs."""
        if self.choices:
            return None if self.is_open else self.field.default  # of the first member, which holds if none is named
        if self.field.is_required():
            return () if typing.get_origin(self.annotation) is tuple else None
        return self.field.get_default(call_default_factory=True) if self.is_shared_default else None

    @property
    def help(self) -> str:
        """The help text: the command's, that of the owner, or of the nearest of its bases that has one."""
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
            found[name] = replace(flag, annotation=typing.Optional[flag.annotation])  # noqa: UP045 - made as it runs
    for name, text in kind.helps.items():
        if name in found:
            found[name] = replace(found[name], text=text)
    return dict(sorted(found.items(), key=lambda item: not item[1].is_argument))


def build(
    kind: type[S], values: Mapping[str, Any], known_problems: Sequence[str] = (), subject: str = "wrong flags"
) -> S:
    """Returns the tree of settings that flat values describe; None and () stand for a flag that was not given.

    Args:
        kind: the settings' class.
        values: by field name.
        known_problems: what else is wrong with them, to be reported with the rest.
        subject: where they come from, for the message.

    Raises:
        ConfigError: naming every flag that is unknown, out of range, or of a part that was not chosen.
    """
    made, problems = attempt(kind, values)
    raise_all(ConfigError, subject, sorted({*problems, *known_problems}))
    assert made is not None, "or there would have been problems"
    return made


def attempt(kind: type[S], values: Mapping[str, Any]) -> tuple[S | None, list[str]]:
    """Returns what `build` does, or what is wrong with the values.

    Raises:
        ConfigError: if what completes them cannot be read.
    """
    known, problems = flags(kind), list[str]()
    names = {alias: name for name, flag in known.items() for alias in flag.aliases}
    given = {names.get(name, name): value for name, value in values.items() if value not in (None, ())}
    problems += [f"{flag_name(name)}: {did_you_mean(name, list(known))}" for name in given.keys() - known.keys()]
    unfit = _unfit_strings(known, given)
    if unfit:
        return None, sorted({*problems, *unfit})
    given = dict(kind.complete({name: value for name, value in given.items() if name in known}))
    used: dict[str, type[Settings]] = {}
    made = _build(kind, given, used, problems)
    problems += [_misplaced(kind, known[name], given) for name in given.keys() - used.keys()]
    problems += [] if made is None else _unfit_strings(known, flat(made))  # defaults from the environment, too
    return None if problems else made, sorted(set(problems))


def _unfit_strings(known: Mapping[str, Flag], values: Mapping[str, Any]) -> list[str]:
    """What is wrong with the strings among values of flags, see `pipeline.strings`."""
    problems = {name: flag_problem(name, value) for name, value in values.items()}
    arguments = {name for name, flag in known.items() if flag.is_argument}
    return [
        f"{name.upper() if name in arguments else flag_name(name)}: {problem}"
        for name, problem in problems.items()
        if problem is not None
    ]


def narrowed(settings: Settings, kind: type[S], reason: str) -> S:
    """Returns what a use of a command takes that has fewer flags than the command.

    Args:
        settings: the command's.
        kind: the settings of this use.
        reason: why other flags are not for it.

    Raises:
        ConfigError: naming every flag that was given and is not for it, or is of a part of it that was not chosen.
    """
    values = given(settings)
    foreign = [f"{flag_name(name)}: {reason}" for name in values if name not in flags(kind)]
    return build(kind, {name: value for name, value in values.items() if name in flags(kind)}, foreign)


def flat(settings: Settings, only_given: bool = False) -> dict[str, Any]:
    """Returns the values of all leaves by name, or of those that were given rather than left to defaults."""
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
    """Returns the values that were given, by flag; None stands for a flag that was not."""
    return {name: value for name, value in flat(settings, only_given=True).items() if value is not None}


def deciding(*parts: Settings | None) -> dict[str, Any]:
    """Returns the values, as JSON, of all fields of parts that decide a result."""
    values: dict[str, Any] = {}
    for part in parts:
        if part is None:
            continue
        leaves = part.model_dump(mode="json")
        for name, field in type(part).model_fields.items():
            if _members(field):
                values |= deciding(getattr(part, name))
            elif not isinstance(field.json_schema_extra, dict) or field.json_schema_extra.get("decides", True):
                values[name] = leaves[name]
    return values


def defaults(kind: type[Settings]) -> dict[str, Any]:
    """Returns the defaults of all flags that decide a result; of those that have another in each part, None."""
    return {flag.name: flag.default for flag in flags(kind).values() if flag.decides}


def changed(settings: S, **values: Any) -> S:
    """Returns the settings with other values for some flags, checked anew."""
    return build(type(settings), given(settings) | values)


def as_flags(settings: Settings, names: Collection[str] | None = None) -> list[str]:
    """Returns the command line that makes the settings, as far as they were given; or of it these flags alone."""
    words: list[str] = []
    values = given(settings) if names is None else {name: v for name, v in flat(settings).items() if name in names}
    defaults = {name: flag.field.default for name, flag in flags(type(settings)).items()}
    for name, value in values.items():
        if value is True:
            words.append(flag_name(name))
        elif value is False and defaults[name] is True:
            words.append(flag_name(name).replace("--", "--no-", 1))
        elif value is not None and value is not False:
            for one in value if isinstance(value, list | tuple) else [value]:
                words += [flag_name(name), str(one)]
    return words


def _members(field: FieldInfo) -> tuple[type[Settings], ...]:
    """The classes of settings that a field may hold; none for a leaf."""
    annotation = field.annotation
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    return tuple(one for one in options if isinstance(one, type) and issubclass(one, Settings))


def _draft(field: FieldInfo) -> type[Settings] | None:
    """The settings whose flags a field holds unbuilt."""
    return next((one.kind for one in field.metadata if isinstance(one, Draft)), None)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _either(one: Any, other: Any) -> Any:
    """The type of a flag that two parts have: of words the words of both, else that of the first part."""
    words = [_words(annotation) for annotation in (one, other)]
    if one == other or not all(words):
        return one
    return typing.Literal[tuple(dict.fromkeys(words[0] + words[1]))]


def _words(annotation: Any) -> tuple[Any, ...]:
    """The words that a flag may be; none if it is not one of given words."""
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    return next(filter(None, map(_words, typing.get_args(annotation))), ()) if _is_union(annotation) else ()


def _is_optional(field: FieldInfo) -> bool:
    return _is_union(field.annotation) and type(None) in typing.get_args(field.annotation)


def _names_of_member(member: type[Settings], discriminator: str) -> tuple[str, ...]:
    return tuple(typing.get_args(member.model_fields[discriminator].annotation))


def _walk(kind: type[Settings]) -> Iterator[Flag]:
    """All flags of a tree, those of a class before those of the parts that it inherits from."""
    own = [part for part in kind.__mro__ if issubclass(part, Settings)]

    def introduced_by(name: str) -> int:
        extra = kind.model_fields[name].json_schema_extra
        if isinstance(extra, dict) and extra.get("argument"):
            return -1  # a run before its texts: arguments stand in the order of the fields
        return max(number for number, part in enumerate(own) if name in part.model_fields)

    for name in sorted(kind.model_fields, key=introduced_by):
        field = kind.model_fields[name]
        members, draft = _members(field), _draft(field)
        if draft is not None:
            yield from _walk(draft)
            continue
        if not members:
            yield Flag(name, field, (kind,), field.annotation)
            continue
        discriminator = field.discriminator
        for member in members:
            is_of_choice = len(members) > 1 or _is_optional(field)
            for flag in sorted(_walk(member), key=lambda flag: flag.name != discriminator):
                if flag.name == discriminator:
                    choices = tuple(one for option in members for one in _names_of_member(option, flag.name))
                    every = typing.Literal[choices]  # type: ignore[valid-type]
                    is_open = kind.member_for.__func__ is not Settings.member_for.__func__  # type: ignore[attr-defined]
                    yield replace(flag, annotation=every, choices=choices, is_open=is_open)
                else:
                    yield replace(flag, is_of_choice=flag.is_of_choice or is_of_choice)


def _choose(kind: type[Settings], name: str, given: Mapping[str, Any], problems: list[str]) -> type[Settings] | None:
    """The member of a union, or the part, that the given flags choose; None for an optional part that is not wanted."""
    field = kind.model_fields[name]
    members, discriminator = _members(field), field.discriminator
    if isinstance(discriminator, str) and discriminator in given:
        by_name = {one: member for member in members for one in _names_of_member(member, discriminator)}
        value = given[discriminator]
        if value not in by_name:
            problems.append(f"{flag_name(discriminator)} {value}: {did_you_mean(str(value), list(by_name))}")
        return by_name.get(value)
    chosen = [member for member in members if member.chosen_by is not None and member.chosen_by in given]
    if len(chosen) > 1:
        both = " or ".join(flag_name(str(member.chosen_by)) for member in chosen)
        problems.append(f"{flag_name(str(chosen[0].chosen_by))}: give {both}, one of them")
    if chosen:
        return chosen[-1]
    if _is_optional(field):
        any_of_it = members[0].chosen_by is None and any(flag in given for flag in flags(members[0]))
        return members[0] if any_of_it else None
    return kind.member_for(members, name, given)


def _build(kind: type[S], given: Mapping[str, Any], used: dict[str, type[Settings]], problems: list[str]) -> S | None:
    """A part of the given flags that it and its own parts have; the names of these go to ``used``."""
    values: dict[str, Any] = {}
    is_complete = True
    for name, field in kind.model_fields.items():
        draft = _draft(field)
        if draft is not None:
            values[name] = {flag: given[flag] for flag in flags(draft) if flag in given}
            used |= dict.fromkeys(values[name], kind)
        elif not _members(field):
            if name in given:
                values[name], used[name] = given[name], kind
        else:
            member = _choose(kind, name, given, problems)
            used |= {str(one.chosen_by): one for one in _members(field) if one.chosen_by in given}  # or told of there
            part = None if member is None else _build(member, given, used, problems)
            is_complete &= member is None or part is not None
            if member is None and field.discriminator in given:  # by a name that there is not
                others = {flag: kind for one in _members(field) for flag in flags(one) if flag in given}
                is_complete = False
                used |= others
            values |= {} if part is None else {name: part}
    try:
        return kind(**values)
    except ValidationError as error:
        problems += [_problem(one) for one in error.errors() if is_complete or one["type"] != "missing"]
        return None


def _problem(error: Any) -> str:
    """What pydantic found, by the flag it is about."""
    message = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return message
    where = flag_name(str(error["loc"][0]))
    if error["type"] == "missing":
        return f"{where}: is missing; give it"
    return f"{where}: {message} (got {error['input']!r})"


def _misplaced(kind: type[Settings], flag: Flag, given: Mapping[str, Any]) -> str:
    """Why a flag that the command has is of no use beside the others: it is of parts that were not chosen."""
    typed = flag_name(flag.name)
    if given[flag.name] is False and flag.field.default is True:
        typed = typed.replace("--", "--no-", 1)
    rivals = [one for owner in flag.owners for one in _rivals(kind, owner) if one in given]
    if rivals:
        return f"{typed}: does not go with {flag_name(rivals[0])}; give one of them"
    homes = dict.fromkeys(home for owner in flag.owners for home in _homes(kind, owner, flag.name))
    return f"{typed}: belongs to {' or '.join(homes) or 'another part'}"


def _rivals(kind: type[Settings], owner: type[Settings]) -> Iterator[str]:
    """The flags that choose other parts than one that no flag chooses, but which holds without them."""
    for field in kind.model_fields.values():
        members = _members(field)
        if owner in members and owner.chosen_by is None and field.discriminator is None:
            yield from (one.chosen_by for one in members if one.chosen_by is not None)
        for member in members:
            yield from _rivals(member, owner)


def _homes(kind: type[Settings], owner: type[Settings], flag: str) -> Iterator[str]:
    """How the part that owns a flag is chosen, as one types it: the innermost choice that leads to it."""
    for field in kind.model_fields.values():
        for member in _members(field):
            if member is owner:
                if flag not in (field.discriminator, member.chosen_by):  # a flag cannot be chosen by itself
                    yield from _choice(field, member)
            elif owner in _parts(member):
                yield from list(_homes(member, owner, flag)) or _choice(field, member)


def _choice(field: FieldInfo, member: type[Settings]) -> Iterator[str]:
    """The flag that chooses a member of a union; nothing for a part that is always there."""
    if isinstance(field.discriminator, str):
        yield from (f"{flag_name(field.discriminator)} {one}" for one in _names_of_member(member, field.discriminator))
    elif member.chosen_by is not None:
        yield flag_name(member.chosen_by)


def _parts(kind: type[Settings]) -> set[type[Settings]]:
    """All parts below a class."""
    below: set[type[Settings]] = set()
    for field in kind.model_fields.values():
        for member in _members(field):
            below |= {member} | _parts(member)
    return below
