"""Limits of the machine, or the end of a neighbour, in plain words: no mistake of the code, and none of the user's."""

import errno

from pipeline.errors import chain_of, errno_of, is_lost_process

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
# how torch and Python's threads say so, in a RuntimeError
OUT_OF_MEMORY = (
    *("allocate memory", "enough memory", "out of memory", "bad_alloc", "create a primitive"),
    *("new thread", "resource temporarily unavailable"),  # the latter of gloo, which starts one
)


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
