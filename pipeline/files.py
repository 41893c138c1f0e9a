"""Writes files that are either complete or absent, by a temporary name, a flush and a rename. Also their checksums."""

import errno
import glob
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.errors import DataError, DistillError, IntegrityError, PassingError, errno_of, unless_passing

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
TEMPORARY_SUFFIX = ".distill-tmp"
UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}
# The second pattern matches the temporary files that safetensors creates next to the file it writes.
TEMPORARIES = (f".*{TEMPORARY_SUFFIX}", ".tmp??????")


def write_atomically(path: Path, write: Callable[[Path], object], durable: bool = True) -> None:
    """Writes ``path`` through a temporary file next to it, so that no reader sees an incomplete file.

    Args:
        path: the path of the file.
        write: writes the content to the given path.
        durable: flush to the disk before the rename, so that the file survives a power cut too.

    Raises:
        DataError: if the disk is full or the folder cannot be written.
    """
    with atomic_path(path, durable) as temporary:
        write(temporary)


@contextmanager
def library_writes(path: Path) -> Iterator[None]:
    """Turns a library's own write errors for ``path``, a file or a folder, into ours.

    Raises:
        DataError: if the disk is full or the folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error
    except Exception as error:
        # Libraries in Rust (tokenizers, safetensors) raise plain exceptions whose text holds the system's error number.
        code = errno_of(error)
        if code is None:
            raise
        raise write_error(path, OSError(code, os.strerror(code))) from error


@contextmanager
def atomic_path(path: Path, durable: bool = True) -> Iterator[Path]:
    """Yields a temporary path that is renamed to ``path`` if the block succeeds. See `write_atomically`."""
    temporary = _temporary(path)
    try:
        with library_writes(path):
            # An empty file created first shows which permissions the user's umask gives, without changing the umask of
            # all threads.
            temporary.touch()
            mode = stat.S_IMODE(temporary.stat().st_mode)
            # DuckDB refuses an empty file that exists: it has to create its database itself.
            temporary.unlink()
            yield temporary
            # The safetensors library creates files that only their owner can read.
            temporary.chmod(mode)
            if durable:
                _flush(temporary)
            temporary.replace(path)
            if durable:
                _flush_folder(path.parent)
    finally:
        _remove(temporary)


def write_text(path: Path, text: str) -> None:
    """Writes a small UTF-8 file atomically.

    If several jobs finish at the same moment, one may remove another's temporary file as left over. The file is then
    written again.
    """
    write = partial(Path.write_text, data=text, encoding="utf-8")
    try:
        write_atomically(path, write)
    except DataError as error:
        # Only a vanished temporary file is worth a second try. A missing folder or a full disk would fail again.
        if not isinstance(error.__cause__, FileNotFoundError) or not path.parent.is_dir():
            raise
        write_atomically(path, write)


def write_alone(path: Path, write: Callable[[Path], object], durable: bool = True) -> None:
    """Writes a single file into a user's folder atomically, after removing temporary files that killed processes left.

    Args:
        path: the path of the file.
        write: writes the content to the given path.
        durable: see `write_atomically`.

    Raises:
        DataError: if the disk is full or the folder cannot be written.
    """
    try:
        # The lock is taken on the folder's descriptor, so it leaves no lock file behind among the user's files.
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise write_error(path, error) from error
    try:
        _remove_left(path, folder)
        write_atomically(path, write, durable)
    finally:
        os.close(folder)


def write_text_alone(path: Path, text: str) -> None:
    """Writes a UTF-8 text as `write_alone` does."""
    write_alone(path, partial(Path.write_text, data=text, encoding="utf-8"))


def write_text_once(path: Path, text: str) -> None:
    """Writes a small UTF-8 file unless it exists. See `write_once`."""
    write_once(path, text.encode("utf-8"))


def write_once(path: Path, content: bytes) -> None:
    """Writes a small file unless it exists. If several processes write at once, the first one wins."""
    if path.exists():
        return
    temporary = _temporary(path)
    try:
        temporary.write_bytes(content)
        _flush(temporary)
        # link() fails if the name exists, unlike rename(), so the first of several processes wins and no file is
        # replaced.
        with suppress(FileExistsError):
            _link(temporary, path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        _remove(temporary)


def make_folder(path: Path) -> None:
    """Creates a folder and its parents, and makes sure that files can be created in it.

    Raises:
        DataError: if it cannot be created or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Tests write access. The file has no name, so a kill leaves nothing behind.
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise write_error(path, error) from error


def require_space(folder: Path, num_bytes: int) -> None:
    """Raises PassingError unless the disk of ``folder`` has so many bytes free, so that no work is lost later."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise PassingError(
            f"{folder}: needs about {num_bytes:,} bytes, but its disk has {free:,} left. Free some space."
        )


def remove_temporaries(folder: Path) -> None:
    """Removes temporary files of killed processes in a folder. Call it only when no process writes there."""
    for pattern in TEMPORARIES:
        for path in folder.glob(pattern):
            _remove(path)


def remove_file(path: Path) -> None:
    """Removes a file, if it exists, and temporary files that killed processes left of it.

    No process may be writing it.
    """
    for left in (path, *_temporaries(path)):
        left.unlink(missing_ok=True)


def read_small_file(path: Path, max_bytes: int, may_be_link: bool = False) -> bytes:
    """Reads a plain file that may be untrusted.

    Args:
        path: the file.
        max_bytes: its maximum size.
        may_be_link: whether links are followed, because the hub's client stores its downloads as links.

    Raises:
        FileNotFoundError: if the file does not exist.
        IntegrityError: if it is a link, a device, too large, or cannot be read.
    """
    try:
        # The checks come before the first read: a pipe would block forever, a huge file would fill the memory.
        status = path.stat() if may_be_link else path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise IntegrityError(f"{path}: not a plain file")
        if status.st_size > max_bytes:
            raise IntegrityError(f"{path}: {status.st_size:,} bytes, which is more than the {max_bytes:,} it may have")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(path) from error
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read: {error.strerror or error}") from error


def refuse_lfs_pointer(path: Path) -> None:
    """Raises DataError if a file is a git-lfs pointer, which replaces a large file in a clone without git-lfs."""
    with path.open("rb") as stream:
        if stream.read(len(LFS_POINTER)) == LFS_POINTER:
            raise DataError(f"{path}: is a pointer of git-lfs and not the file itself. Run `git lfs pull`.")


def is_plain(path: Path) -> bool:
    """Returns whether a path is a regular file (no link, device or pipe) in a folder that is not a link."""
    try:
        # A set from another team could link to private files, which `push` would then upload with it.
        return stat.S_ISREG(path.lstat().st_mode) and not path.parent.is_symlink()
    except OSError:
        return False


def link_or_copy(source: Path, path: Path) -> None:
    """Gives a file a second name by a hard link, or by a copy. An existing file of that name is not replaced."""
    try:
        os.link(source, path)
    except FileExistsError:
        return
    except OSError:
        write_atomically(path, lambda temporary: shutil.copyfile(source, temporary))


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_error(path: Path, error: OSError) -> DistillError:
    """Turns an operating system error of a write into a message with a remedy."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        advice = "the disk is full. Free some space and repeat the command: finished work is kept"
    elif error.errno in UNWRITABLE:
        advice = "no permission to write there. Choose another folder or change its permissions"
    else:
        advice = f"{error.strerror or error}. Fix this and repeat the command: finished work is kept"
    return unless_passing(DataError, error)(f"{path}: cannot be written: {advice}")


def is_unwritable(error: DistillError) -> bool:
    """Returns whether an error of a write is about a folder that this user may only read."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in UNWRITABLE


def _temporary(path: Path) -> Path:
    # A random name, not the process number: in containers that share a folder every process may be number 1.
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")


def _temporaries(path: Path) -> list[Path]:
    """Returns the temporary files of ``path``, and the write-ahead logs that DuckDB creates next to them."""
    return list(path.parent.glob(f".{glob.escape(path.name)}.*{TEMPORARY_SUFFIX}*"))


def _remove_left(path: Path, folder: int) -> None:
    """Removes temporary files of ``path`` unless another process writes there.

    The folder is locked until it is closed.
    """
    import fcntl

    # Another process is writing, or the file system has no locks.
    with suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in _temporaries(path):
            _remove(left)
    with suppress(OSError):
        # While this process writes it holds a shared lock, so others can write too but nobody gets the exclusive lock
        # to clean.
        fcntl.flock(folder, fcntl.LOCK_SH)


def _link(source: Path, path: Path) -> None:
    """Gives a file its name unless the name is taken."""
    try:
        os.link(source, path)
    except FileExistsError:
        raise
    except OSError:  # Some network file systems have no hard links. Mode "x" also fails if the name exists.
        with path.open("xb") as stream:
            stream.write(source.read_bytes())


def _remove(temporary: Path) -> None:
    """Removes a temporary file. A failure here must not replace the original error."""
    with suppress(OSError):
        temporary.unlink()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(folder: Path) -> None:
    """Flushes a folder's entries to the disk, where the file system supports that."""
    try:
        _flush(folder)
    except OSError as error:
        # Some network file systems and shared folders of virtual machines answer fsync on a folder with these two
        # errors.
        if error.errno not in {errno.EBADF, errno.EINVAL}:
            raise


@contextmanager
def locked(lock: Path, busy: str) -> Iterator[None]:
    """Holds a lock file. The operating system releases the lock if the process dies.

    Raises:
        DataError: with the text ``busy`` if another process holds the lock, or if the file cannot be written.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(lock, timeout=0))
        except Timeout as error:
            raise DataError(busy) from error
        except OSError as error:
            raise write_error(lock, error) from error
        yield
        _remove(lock)
