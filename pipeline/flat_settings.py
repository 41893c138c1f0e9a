"""Trees of settings from flat values, and back.

Flags, keywords, recipes, sweeps and records use flat values.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from pipeline.errors import ConfigError, did_you_mean, own_words, raise_all
from pipeline.settings import Flag, S, Settings, draft_of, flag_name, flags, is_optional, members_of, names_of_member
from pipeline.strings import flag_problem


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
    known, problems = flags(kind), list[str]()
    names = {alias: name for name, flag in known.items() for alias in flag.aliases}
    given = {names.get(name, name): value for name, value in values.items() if value not in (None, ())}
    problems += [
        f"{flag_name(name)}: unknown flag. {did_you_mean(name, list(known))}" for name in given.keys() - known.keys()
    ]
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
    """Returns the problems of strings among values of flags. See `pipeline.strings`."""
    problems = {name: flag_problem(name, value) for name, value in values.items()}
    arguments = {name for name, flag in known.items() if flag.is_argument}
    return [
        f"{name.upper() if name in arguments else flag_name(name)}: {problem}"
        for name, problem in problems.items()
        if problem is not None
    ]


def narrowed(settings: Settings, kind: type[S], reason: str) -> S:
    """Returns the settings of a use of a command that has fewer flags than the command.

    Args:
        settings: the settings of the command.
        kind: the class of the settings for this use.
        reason: why other flags are refused.

    Raises:
        ConfigError: naming every given flag that this use does not have, or that belongs to a part that was not chosen.
    """
    values = given(settings)
    foreign = [f"{flag_name(name)}: {reason}" for name in values if name not in flags(kind)]
    return build(kind, {name: value for name, value in values.items() if name in flags(kind)}, foreign)


def flat(settings: Settings, only_given: bool = False) -> dict[str, Any]:
    """Returns the values of all leaves by name, or only of those that were given."""
    values: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if members_of(field):
            values |= flat(value, only_given) if value is not None else {}
        elif draft_of(field) is not None:
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
    for part in parts:
        if part is None:
            continue
        leaves = part.model_dump(mode="json")
        for name, field in type(part).model_fields.items():
            if members_of(field):
                values |= deciding(getattr(part, name))
            elif not isinstance(field.json_schema_extra, dict) or field.json_schema_extra.get("decides", True):
                values[name] = leaves[name]
    return values


def defaults(kind: type[Settings]) -> dict[str, Any]:
    """Returns the defaults of all flags that decide a result. None for flags whose default differs between parts."""
    return {flag.name: flag.default for flag in flags(kind).values() if flag.decides}


def as_flags(settings: Settings, names: Collection[str] | None = None) -> list[str]:
    """Returns the command line of the given settings, or only of these flags."""
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


def _choose(kind: type[Settings], name: str, given: Mapping[str, Any], problems: list[str]) -> type[Settings] | None:
    """Returns the member of a union, or the part, that the given flags choose.

    None for an optional part without flags.
    """
    field = kind.model_fields[name]
    members, discriminator = members_of(field), field.discriminator
    if isinstance(discriminator, str) and discriminator in given:
        by_name = {one: member for member in members for one in names_of_member(member, discriminator)}
        value = given[discriminator]
        if value not in by_name:
            problems.append(
                f"{flag_name(discriminator)} {value}: unknown value. {did_you_mean(str(value), list(by_name))}"
            )
        return by_name.get(value)
    chosen = [member for member in members if member.chosen_by is not None and member.chosen_by in given]
    if len(chosen) > 1:
        both = " or ".join(flag_name(str(member.chosen_by)) for member in chosen)
        problems.append(f"{flag_name(str(chosen[0].chosen_by))}: give either {both}")
    if chosen:
        return chosen[-1]
    if is_optional(field):
        any_of_it = members[0].chosen_by is None and any(flag in given for flag in flags(members[0]))
        return members[0] if any_of_it else None
    return kind.member_for(members, name, given)


def _build(kind: type[S], given: Mapping[str, Any], used: dict[str, type[Settings]], problems: list[str]) -> S | None:
    """Builds a part from those given flags that belong to it or to its own parts. Adds their names to ``used``."""
    values: dict[str, Any] = {}
    is_complete = True
    for name, field in kind.model_fields.items():
        draft = draft_of(field)
        if draft is not None:
            values[name] = {flag: given[flag] for flag in flags(draft) if flag in given}
            used |= dict.fromkeys(values[name], kind)
        elif not members_of(field):
            if name in given:
                values[name], used[name] = given[name], kind
        else:
            member = _choose(kind, name, given, problems)
            # or reported there
            used |= {str(one.chosen_by): one for one in members_of(field) if one.chosen_by in given}
            part = None if member is None else _build(member, given, used, problems)
            is_complete &= member is None or part is not None
            if member is None and field.discriminator in given:  # by an unknown name
                others = {flag: kind for one in members_of(field) for flag in flags(one) if flag in given}
                is_complete = False
                used |= others
            values |= {} if part is None else {name: part}
    try:
        return kind(**values)
    except ValidationError as error:
        problems += [_problem(one) for one in error.errors() if is_complete or one["type"] != "missing"]
        return None


def _problem(error: Any) -> str:
    """Returns pydantic's errors with the names of the flags."""
    message = own_words(str(error["msg"]))
    if not error["loc"]:
        return message
    where = flag_name(str(error["loc"][0]))
    if error["type"] == "missing":
        return f"{where}: missing"
    return f"{where}: {message} (got {error['input']!r})"


def _misplaced(kind: type[Settings], flag: Flag, given: Mapping[str, Any]) -> str:
    """Returns why a known flag has no effect with the others: it belongs to parts that were not chosen."""
    typed = flag_name(flag.name)
    if given[flag.name] is False and flag.field.default is True:
        typed = typed.replace("--", "--no-", 1)
    rivals = [one for owner in flag.owners for one in _rivals(kind, owner) if one in given]
    if rivals:
        return f"{typed}: does not go with {flag_name(rivals[0])}. Remove one of them"
    homes = dict.fromkeys(home for owner in flag.owners for home in _homes(kind, owner, flag.name))
    return f"{typed}: belongs to {' or '.join(homes) or 'another part'}"


def _rivals(kind: type[Settings], owner: type[Settings]) -> Iterator[str]:
    """Returns the flags that choose another part than the default one."""
    for field in kind.model_fields.values():
        members = members_of(field)
        if owner in members and owner.chosen_by is None and field.discriminator is None:
            yield from (one.chosen_by for one in members if one.chosen_by is not None)
        for member in members:
            yield from _rivals(member, owner)


def _homes(kind: type[Settings], owner: type[Settings], flag: str) -> Iterator[str]:
    """Returns the flag, as one types it, that chooses the part with this flag.

    With nested choices, the innermost one.
    """
    for field in kind.model_fields.values():
        for member in members_of(field):
            if member is owner:
                if flag not in (field.discriminator, member.chosen_by):  # a flag cannot be chosen by itself
                    yield from _choice(field, member)
            elif owner in _parts(member):
                yield from list(_homes(member, owner, flag)) or _choice(field, member)


def _choice(field: FieldInfo, member: type[Settings]) -> Iterator[str]:
    """Returns the flag that chooses a member of a union. Empty for a part that is always present."""
    if isinstance(field.discriminator, str):
        yield from (f"{flag_name(field.discriminator)} {one}" for one in names_of_member(member, field.discriminator))
    elif member.chosen_by is not None:
        yield flag_name(member.chosen_by)


def _parts(kind: type[Settings]) -> set[type[Settings]]:
    """All parts below a class."""
    below: set[type[Settings]] = set()
    for field in kind.model_fields.values():
        for member in members_of(field):
            below |= {member} | _parts(member)
    return below
