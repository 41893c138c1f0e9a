"""What can go wrong for a user, as one small exception tree.

Every message says what is wrong, with the value, where (file, row, flag), and what to do about it. The command line
prints them without a traceback and exits with the code of their kind. Errors of the system and of libraries are told
apart here, too: what time may mend, and which limit of the machine was reached.
"""

import errno
import re
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import ClassVar

MOST_LISTED = 50
PASSING_NAMES = "EAGAIN EBUSY EDQUOT EHOSTDOWN EHOSTUNREACH EIO ENETDOWN ENETUNREACH ENOSPC ENOTCONN ESTALE ETIMEDOUT"
PASSING = {getattr(errno, name) for name in PASSING_NAMES.split() if hasattr(errno, name)}  # Windows has not all
OF_RUST = re.compile(r"\(os error (\d+)\)")  # how libraries in Rust tell of the system's errors
REFUSED_STATUS = {401, 403}  # of HTTP: who asks may not, or is not known
LOST_PROCESS = ("gloo/transport", "remote process exited")  # how torch.distributed says so, in a RuntimeError
PASSING_STATUS = {408, 429, 500, 502, 503, 504}  # of HTTP: a server that has too much to do, or is not well
REASONS = {
    errno.EACCES: "no permission; change its permissions, or choose another place",
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk's quota is used up; free some space",
    errno.EROFS: "the disk is read-only; make it writable, or choose another folder",
    errno.EIO: "the disk does not answer as it should; look at it, or choose another folder",
    errno.EMFILE: "this process may open no more files; raise `ulimit -n`",
    errno.ENFILE: "the system may open no more files; end other programs",
    errno.ENAMETOOLONG: "the name is too long for the disk; choose a shorter one",
    errno.ENOMEM: "no memory is left; choose smaller batches, or end other programs",
}
GONE = "another process of this command is gone, so this one ends, too; see what that one said"
# in a RuntimeError of torch and of Python's threads
OUT_OF_MEMORY = (
    *("allocate memory", "enough memory", "out of memory", "bad_alloc", "create a primitive"),
    *("new thread", "resource temporarily unavailable"),  # the latter of gloo, which starts one
)


class DistillError(Exception):
    """Base of all errors that a user can mend.

    Attributes:
        exit_code: of a command that ends with it.
    """

    exit_code: ClassVar = 2


class ConfigError(DistillError):
    """A flag, a manifest or a recipe is wrong."""


class DataError(DistillError):
    """The user's data cannot be used as it is, or cannot be written."""


class PassingError(DataError):
    """What time may mend: a full disk, a lost connection. Repeating the command later is worth it."""

    exit_code = 75  # EX_TEMPFAIL


class IntegrityError(DistillError):
    """A logit set or a run on disk is damaged or incomplete."""


class FingerprintMismatchError(DistillError):
    """What lies on disk was made with other settings than those asked for."""


class TeacherError(DistillError):
    """The teacher does not fit the task, or says things it cannot mean."""


class MissingDependencyError(DistillError):
    """A package is needed that is not installed."""


class QueryError(DistillError):
    """A SQL query was refused or failed."""


def chain_of(error: BaseException) -> list[BaseException]:
    """An error and those that it was raised from, or while which it was, the last one first."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return chain


def passes(error: BaseException) -> bool:
    """Whether an error, or one that it was raised from, is of the kind that time mends."""
    chain = chain_of(error)
    if any(type(link).__name__ == "OfflineModeIsEnabled" for link in chain):  # the hub's: a setting, not a fault
        return False
    kinds = (ConnectionError, TimeoutError, socket.gaierror)
    return any(
        isinstance(link, kinds) or errno_of(link) in PASSING or _status(link) in PASSING_STATUS or is_lost_process(link)
        for link in chain
    )


def errno_of(error: BaseException) -> int | None:
    """The number of the system's error that an error is, or that a library tells of in words; None if it is of none."""
    if isinstance(error, OSError):
        return error.errno
    found = OF_RUST.search(str(error))
    return int(found[1]) if found else None


def is_refused(error: BaseException) -> bool:
    """Whether an error is, or was raised from, the answer of an HTTP server that does not let us in."""
    return any(_status(link) in REFUSED_STATUS for link in chain_of(error))


def is_lost_process(error: BaseException) -> bool:
    """Whether an error is that another of the processes that a launcher has started is gone, or does not answer."""
    by_name = type(error).__name__ in {"DistNetworkError", "DistStoreError"}
    return by_name or any(words in str(error) for words in LOST_PROCESS)


def _status(error: BaseException) -> int | None:
    """What an HTTP server has said, by an error of aiohttp, urllib, gcsfs or httpx; None of any other error."""
    sources = ((error, "status"), (getattr(error, "response", None), "status_code"), (error, "code"))
    numbers = (getattr(source, name, None) for source, name in sources)
    return next((number for number in numbers if isinstance(number, int)), None)


def unless_passing(kind: type[DistillError], cause: BaseException) -> type[DistillError]:
    """The kind of error to raise from a cause: the given one, or `PassingError` if time may mend the cause."""
    return PassingError if passes(cause) else kind


def did_you_mean(name: str, known: Iterable[str], taken: Collection[str] = ()) -> str:
    """Says which known name a wrong one resembles, and which names there are; one that is ``taken`` is not meant."""
    names = sorted(known)
    close = get_close_matches(name.lower(), [other for other in names if other not in taken], n=1)
    suggestion = f"did you mean {close[0]!r}? Known" if close else "known"
    return f"{suggestion}: {', '.join(names) or 'none'}."


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Says why a file cannot be read."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return f"cannot be read: {error.strerror or error if isinstance(error, OSError) else error}"


def short(value: object) -> str:
    """A setting's value for people; of hashes the beginning."""
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 40 else text[:12] + "…"


def setting_changes(
    there: Mapping[str, object], now: Mapping[str, object], show: Callable[[object], str] = repr
) -> str:
    """Lists the settings in which what lies on disk differs from what is asked for, a line each; empty if none."""
    return "\n".join(
        f"  - {key}: {show(there.get(key))} there, {show(now.get(key))} now"
        for key in sorted(there.keys() | now.keys())
        if there.get(key) != now.get(key)
    )


def raise_all(kind: type[DistillError], context: str, problems: Sequence[str]) -> None:
    """Raises one error that lists every problem, of very many the first; returns if there are none."""
    if len(problems) == 1:
        raise kind(f"{context}: {problems[0]}")
    if problems:
        more = [f"  … and {len(problems) - MOST_LISTED:,} more"] if len(problems) > MOST_LISTED else []
        lines = [f"{context}: {len(problems):,} problems", *(f"  - {p}" for p in problems[:MOST_LISTED]), *more]
        raise kind("\n".join(lines))


def limit_reached(error: BaseException) -> str | None:
    """Says which limit of the machine an error, or one that it was raised from, is about; None if it is about none."""
    for seen in chain_of(error):
        reason = _reason(seen)
        if reason is not None:
            where = f"{seen.filename}: " if isinstance(seen, OSError) and seen.filename else ""
            return f"{where}{reason} and repeat the command: what is finished is kept"
    return None


def _reason(error: BaseException) -> str | None:
    code = errno_of(error)
    if code is not None or isinstance(error, OSError):
        return REASONS.get(code or 0)
    if is_lost_process(error):
        return GONE
    is_memory = isinstance(error, MemoryError) or any(words in str(error).lower() for words in OUT_OF_MEMORY)
    return REASONS[errno.ENOMEM] if is_memory else None
