"""The errors that users see, as one small exception tree.

Every message states what is wrong, with the value, where (file, row, flag), and what to do about it. The command line
prints them without a traceback and exits with the code of their class. This module also classifies errors of the system
and of libraries: which ones are transient, and which limit of the machine was reached.
"""

import errno
import re
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import ClassVar

MOST_LISTED = 50
PASSING_NAMES = "EAGAIN EBUSY EDQUOT EHOSTDOWN EHOSTUNREACH EIO ENETDOWN ENETUNREACH ENOSPC ENOTCONN ESTALE ETIMEDOUT"
PASSING = {getattr(errno, name) for name in PASSING_NAMES.split() if hasattr(errno, name)}  # Windows lacks some
OF_RUST = re.compile(r"\(os error (\d+)\)")  # how Rust's standard library formats system errors
REFUSED_STATUS = {401, 403}  # HTTP: not authenticated, not authorized
# torch.distributed raises a plain RuntimeError with these words when another process of the group has died.
LOST_PROCESS = ("gloo/transport", "remote process exited")
PASSING_STATUS = {408, 429, 500, 502, 503, 504}  # HTTP: an overloaded or failing server, worth another try
REASONS = {
    errno.EACCES: "no permission. Change its permissions, or choose another place",
    errno.ENOSPC: "the disk is full. Free some space",
    errno.EDQUOT: "the disk's quota is used up. Free some space",
    errno.EROFS: "the disk is read-only. Make it writable, or choose another folder",
    errno.EIO: "the disk reports an input/output error. Check it, or choose another folder",
    errno.EMFILE: "this process has too many open files. Raise `ulimit -n`",
    errno.ENFILE: "the system has too many open files. End other programs",
    errno.ENAMETOOLONG: "the name is too long for the disk. Choose a shorter one",
    errno.ENOMEM: "out of memory. Choose smaller batches, or end other programs",
}
GONE = "another process of this command has ended, so this one ends, too. See the message of that process"
# torch and Python's threads report exhausted memory as a RuntimeError with one of these texts.
OUT_OF_MEMORY = (
    *("allocate memory", "enough memory", "out of memory", "bad_alloc", "create a primitive"),
    # gloo raises the latter when it cannot start a thread.
    *("new thread", "resource temporarily unavailable"),
)


class DistillError(Exception):
    """Base class of all errors that a user can fix.

    Attributes:
        exit_code: of a command that ends with it.
    """

    exit_code: ClassVar = 2


class ConfigError(DistillError):
    """A flag, a manifest or a recipe is wrong."""


class DataError(DistillError):
    """The user's data cannot be used as it is, or cannot be written."""


class PassingError(DataError):
    """A transient error, such as a full disk or a lost connection: repeating the command later may succeed."""

    # EX_TEMPFAIL of sysexits.h: schedulers can retry on this code alone, and not after a wrong flag.
    exit_code = 75


class IntegrityError(DistillError):
    """A logit set or a run on disk is damaged or incomplete."""


class FingerprintMismatchError(DistillError):
    """The data on disk were made with other settings than the requested ones."""


class TeacherError(DistillError):
    """The teacher does not fit the task, or its predictions contradict its labels."""


class MissingDependencyError(DistillError):
    """A package is needed that is not installed."""


class QueryError(DistillError):
    """A SQL query was refused or failed."""


def chain_of(error: BaseException) -> list[BaseException]:
    """Returns an error and all errors that caused it or were being handled when it was raised, newest first."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    # Libraries sometimes raise an error from itself, which makes the chain a circle.
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return chain


def passes(error: BaseException) -> bool:
    """Returns whether an error, or one that it was raised from, is transient."""
    chain = chain_of(error)
    # The hub's client derives this error from ConnectionError, but waiting does not end offline mode: it is a setting.
    if any(type(link).__name__ == "OfflineModeIsEnabled" for link in chain):
        return False
    kinds = (ConnectionError, TimeoutError, socket.gaierror)
    return any(
        isinstance(link, kinds) or errno_of(link) in PASSING or _status(link) in PASSING_STATUS or is_lost_process(link)
        for link in chain
    )


def errno_of(error: BaseException) -> int | None:
    """Returns the system's error number of an error, also if a library only mentions it in words, otherwise None."""
    if isinstance(error, OSError):
        return error.errno
    found = OF_RUST.search(str(error))
    return int(found[1]) if found else None


def is_refused(error: BaseException) -> bool:
    """Returns whether an HTTP server refused access, by the error or one that it was raised from."""
    return any(_status(link) in REFUSED_STATUS for link in chain_of(error))


def is_lost_process(error: BaseException) -> bool:
    """Returns whether an error means that another process of the same launch has died or does not answer."""
    # By name, because commands that never train must not import torch to look at an error.
    by_name = type(error).__name__ in {"DistNetworkError", "DistStoreError"}
    return by_name or any(words in str(error) for words in LOST_PROCESS)


def _status(error: BaseException) -> int | None:
    """Returns the HTTP status in an error of aiohttp, urllib, gcsfs or httpx, or None for any other error."""
    sources = ((error, "status"), (getattr(error, "response", None), "status_code"), (error, "code"))
    numbers = (getattr(source, name, None) for source, name in sources)
    # Attributes of these names may hold other types elsewhere, such as the text `code` of botocore's errors.
    return next((number for number in numbers if isinstance(number, int)), None)


def unless_passing(kind: type[DistillError], cause: BaseException) -> type[DistillError]:
    """Returns the error class to raise from a cause: `PassingError` if the cause is transient, else the given one."""
    return PassingError if passes(cause) else kind


def did_you_mean(name: str, known: Iterable[str], taken: Collection[str] = ()) -> str:
    """Returns a suggestion for a wrong name, and all known names. Names in ``taken`` are not suggested."""
    names = sorted(known)
    close = get_close_matches(name.lower(), [other for other in names if other not in taken], n=1)
    suggestion = f"Did you mean {close[0]!r}? Known" if close else "Known"
    return f"{suggestion}: {', '.join(names) or 'none'}."


def own_words(message: str) -> str:
    """Returns the message of a validator without the words that pydantic puts before it."""
    return message.removeprefix("Value error, ")


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Returns why a file cannot be read."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return f"cannot be read: {error.strerror or error if isinstance(error, OSError) else error}"


def short(value: object) -> str:
    """Returns a setting's value for people. Hashes are shortened."""
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 40 else text[:12] + "…"


def setting_changes(there: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Lists the settings in which the data on disk differ from the request, one per line. Empty if there are none."""
    return "\n".join(
        f"  - {key}: {_setting(there.get(key))} there, {_setting(now.get(key))} now"
        for key in sorted(there.keys() | now.keys())
        if there.get(key) != now.get(key)
    )


def _setting(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_setting, value)) or "nothing"
    # A long text with spaces is a query and not a hash, and two queries may differ in their last word.
    return value if isinstance(value, str) and " " in value else short(value)


def raise_all(kind: type[DistillError], context: str, problems: Sequence[str]) -> None:
    """Raises one error that lists the problems, at most the first `MOST_LISTED`. Returns if there are none."""
    if len(problems) == 1:
        raise kind(f"{context}: {problems[0]}")
    if problems:
        more = [f"  … and {len(problems) - MOST_LISTED:,} more"] if len(problems) > MOST_LISTED else []
        lines = [f"{context}: {len(problems):,} problems", *(f"  - {p}" for p in problems[:MOST_LISTED]), *more]
        raise kind("\n".join(lines))


def limit_reached(error: BaseException) -> str | None:
    """Describes which limit of the machine caused an error, such as disk space or memory, or None if no limit did."""
    for seen in chain_of(error):
        reason = _reason(seen)
        if reason is not None:
            where = f"{seen.filename}: " if isinstance(seen, OSError) and seen.filename else ""
            return f"{where}{reason} and repeat the command: finished work is kept"
    return None


def _reason(error: BaseException) -> str | None:
    # A system error with a number decides alone: its text may mention memory or threads for another reason.
    code = errno_of(error)
    if code is not None or isinstance(error, OSError):
        return REASONS.get(code or 0)
    if is_lost_process(error):
        return GONE
    is_memory = isinstance(error, MemoryError) or any(words in str(error).lower() for words in OUT_OF_MEMORY)
    return REASONS[errno.ENOMEM] if is_memory else None
