"""A set's local or remote folder at any URL that `fsspec` supports, with errors in plain words.

The module also lists which files of a set are transferred, and runs several transfers at once.
"""

import hashlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline import console
from pipeline.errors import (
    ConfigError,
    DataError,
    DistillError,
    IntegrityError,
    MissingDependencyError,
    PassingError,
    is_refused,
    passes,
)
from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import remove_temporaries, sha256, write_atomically
from pipeline.sets.card import CARD_FILE
from pipeline.sets.files import require_shards
from pipeline.sets.record import SetRecord
from pipeline.text.tokenizer import MAX_TOKENIZER_BYTES, read_tokenizer_json

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
CHUNK_BYTES = 2**22
# By name, because importing botocore or gcsfs takes a second and they may not be installed. Errors that are not
# OSErrors, by module.
TRANSPORT_ERRORS = {
    "aiohttp": ("ClientError",),
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "gcsfs.retry": ("HttpError",),
    "google.auth.exceptions": ("GoogleAuthError",),
    "httpx": ("HTTPError",),
    "httpx2": ("HTTPError",),
}
# Transient errors among them that are not ConnectionErrors or TimeoutErrors.
PASSING_ERRORS = {
    "aiohttp": ("ClientConnectionError", "ClientPayloadError"),
    "botocore.exceptions": ("HTTPClientError", "IncompleteReadError"),
    "httpx": ("NetworkError", "RemoteProtocolError", "TimeoutException"),
    "httpx2": ("NetworkError", "RemoteProtocolError", "TimeoutException"),
}
# Transfers wait for the network most of the time, so several at once use the bandwidth better.
TRANSFERS_AT_ONCE = 8


@dataclass(frozen=True)
class Place:
    """A local or remote folder. ``root`` is its path in the file system ``fs``."""

    url: str
    fs: Any
    root: str

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Reads a small file. None if it does not exist.

        Raises:
            IntegrityError: if it is larger than ``max_bytes``.
            DataError: if the place cannot be reached.
        """
        with self._reported():
            try:
                with self._open(name) as stream:
                    # One byte more than allowed shows that a file is too large without reading all of it.
                    content: bytes = stream.read(max_bytes + 1)
            except FileNotFoundError as error:
                _require_answered(error)
                return None
        if len(content) > max_bytes:
            raise IntegrityError(f"{self.url}/{name}: larger than the allowed {max_bytes:,} bytes")
        return content

    def sizes(self, folder: str) -> dict[str, int]:
        """Returns the sizes of the files of a folder, by their path inside the set.

        Empty if there is no such folder.
        """
        with self._reported():
            # fsspec caches listings, and another process may have pushed or removed files in the meantime.
            self.fs.invalidate_cache()
            try:
                entries = self.fs.ls(self._path(folder).rstrip("/"), detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
            start = f"{folder}/" if folder else ""
            return {start + Path(e["name"]).name: self._size(e) for e in entries if e["type"] == "file"}

    def fetch(self, name: str, target: Path, max_bytes: int) -> str:
        """Downloads a file atomically. Returns its SHA-256.

        Raises:
            IntegrityError: if it is missing, or has more than ``max_bytes``.
            DataError: if the place cannot be reached or the disk cannot be written.
        """
        # Hashing while downloading saves a second pass over files of gigabytes.
        digest = hashlib.sha256()

        def write(temporary: Path) -> None:
            with temporary.open("wb") as sink:
                for chunk in self._chunks(name, max_bytes):
                    digest.update(chunk)
                    sink.write(chunk)

        write_atomically(target, write)
        return digest.hexdigest()

    def send(self, source: Path, name: str) -> None:
        """Uploads a file atomically."""
        with self._reported():
            if isinstance(self.fs, LocalFileSystem):
                target = Path(self._path(name))
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(target, lambda temporary: shutil.copyfile(source, temporary))
            else:  # object stores show an object only once its upload is complete
                self.fs.put_file(str(source), self._path(name))

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file atomically."""
        with self._reported():
            if isinstance(self.fs, LocalFileSystem):
                target = Path(self._path(name))
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(target, lambda temporary: temporary.write_bytes(content))
            else:
                self.fs.pipe_file(self._path(name), content)

    def remove(self, name: str) -> None:
        """Removes a file."""
        with self._reported():
            self.fs.rm_file(self._path(name))

    def remove_temporaries(self, folders: Iterable[str]) -> None:
        """Removes temporary files of killed processes in folders of the set. Only local folders can have them."""
        for folder in folders if isinstance(self.fs, LocalFileSystem) else ():
            remove_temporaries(Path(self._path(folder)))

    def _size(self, entry: Mapping[str, Any]) -> int:
        # Listings of HTTP servers contain no sizes, so each file needs a request of its own.
        size = entry["size"] if entry["size"] is not None else self.fs.size(entry["name"])
        if size is None:
            raise DataError(f"{entry['name']}: its server does not report its size. Copy the set by other means")
        return int(size)

    def _chunks(self, name: str, max_bytes: int) -> Iterator[bytes]:
        total = 0
        with self._reported():
            try:
                with self._open(name) as stream:
                    while chunk := stream.read(CHUNK_BYTES):
                        # Counted here, because the size that a server reports may be wrong.
                        total += len(chunk)
                        if total > max_bytes:
                            raise IntegrityError(f"{self.url}/{name}: has more than the allowed {max_bytes:,} bytes")
                        yield chunk
            except FileNotFoundError as error:
                _require_answered(error)
                raise IntegrityError(f"{self.url}/{name}: missing") from error

    def _open(self, name: str) -> Any:
        path = Path(self._path(name))
        if isinstance(self.fs, LocalFileSystem) and path.exists() and not path.is_file():
            # Opening a named pipe would block forever.
            raise IntegrityError(f"{path}: not a plain file")
        return self.fs.open(self._path(name), "rb")

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except transport_errors() as error:
            raise unreachable(self.url, error) from error


def open_place(url: str) -> Place:
    """Opens a URL or a path of a local folder.

    Raises:
        ConfigError: if the scheme is unknown, or a slash after it is missing.
        MissingDependencyError: if its package is not installed, naming the extra.
    """
    # fsspec takes "s3:bucket/set" for a local path, and the set would silently land in a folder of that name.
    _require_slashes(url)
    scheme = url.partition("://")[0] if "://" in url else "file"
    try:
        # A cached instance would keep credentials and listings of an earlier call in the same process.
        fs, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    except ImportError as error:
        extra = EXTRAS.get(scheme)
        advice = f"pip install 'distill-offline[{extra}]'" if extra else str(error)
        raise MissingDependencyError(f"{url}: {scheme}:// needs another package: {advice}") from error
    except transport_errors() as error:
        raise unreachable(url, error) from error
    except ValueError as error:
        raise ConfigError(f"{url}: not a supported location: {error}") from error
    return Place(url.rstrip("/"), fs, str(root).rstrip("/"))


def _require_slashes(url: str) -> None:
    """Raises ConfigError if a scheme is not followed by two slashes, because fsspec would use a local folder."""
    scheme, _, rest = url.partition(":")
    if rest and not rest.startswith("//") and scheme in fsspec.available_protocols():
        meant = rest if scheme in LocalFileSystem.protocol else rest.lstrip("/")
        raise ConfigError(f"{url}: did you mean {scheme}://{meant}? A folder of this name is ./{url}")


def transport_errors() -> tuple[type[Exception], ...]:
    """Returns the classes of network and storage errors that the file systems in use can raise."""
    return (OSError, *_in_use(TRANSPORT_ERRORS))


def unreachable(url: str, error: Exception) -> DistillError:
    """Returns an error that a place cannot be read or written, with the reasons."""
    reasons = dict.fromkeys(_first_line(e) for e in (error, error.__cause__) if e is not None)
    if is_refused(error):
        advice = "Ask its owner, and check the address, because many servers also refuse access to missing files"
        return DataError(f"{url}: access was refused: {', '.join(reasons)}. {advice}")
    advice = "Repeat the command later: files that arrived are kept"
    kind = PassingError if _passes(error) else DataError
    return kind(f"{url}: cannot be read or written: {', '.join(reasons)}. {advice}")


def _passes(error: Exception) -> bool:
    return any(isinstance(e, _in_use(PASSING_ERRORS)) for e in (error, error.__cause__)) or passes(error)


def _require_answered(error: FileNotFoundError) -> None:
    """Raises the error again unless the file is really missing. fsspec raises it for every failed HTTP request."""
    if _passes(error) or is_refused(error):
        raise error


def _in_use(names: Mapping[str, Sequence[str]]) -> tuple[type[Exception], ...]:
    """Returns the classes with these names in the modules that have been imported."""
    used = [(sys.modules[module], classes) for module, classes in names.items() if module in sys.modules]
    return tuple(getattr(module, name) for module, classes in used for name in classes)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@dataclass(frozen=True)
class SetFile:
    """A file of a set: its local path, size and hash."""

    path: Path
    sha256: str
    num_bytes: int


def other_files(record: SetRecord) -> dict[str, int]:
    """Returns the files of a set besides its shards, record and card, with the maximum size of each."""
    files = {TOKENIZER_FILE: MAX_TOKENIZER_BYTES}
    for signal in record.signals.stored:
        files |= signal.files()
    return files


def paths_of(record: SetRecord) -> set[str]:
    """Returns the paths of a set's shards and of other files of its signals."""
    return {shard.path for shard in record.shards} | record.signals.hashes().keys()


def files_of(root: Path, record: SetRecord) -> dict[str, SetFile]:
    """Returns every file of a set except its ``distill.json``, by its path inside the set.

    Raises:
        IntegrityError: if a shard, the tokenizer, or another file of a signal does not match the record.
    """
    # Checked before the upload: a damaged shard would otherwise be found only by those who pull it.
    require_shards(root, record, record.shards)
    read_tokenizer_json(root / TOKENIZER_FILE, record.tokenizer.sha256)
    files = {name: _measured(root / name) for name in (*other_files(record), CARD_FILE)}
    changed = [name for name, digest in record.signals.hashes().items() if files[name].sha256 != digest]
    if changed:
        raise IntegrityError(f"{root / changed[0]}: its SHA-256 is not the one in distill.json. Repeat the dump.")
    shards = {s.path: SetFile(root / s.path, s.sha256 or "", s.bytes or 0) for s in record.shards}
    return files | shards


def all_at_once(description: str, transfers: Sequence[Callable[[], object]]) -> None:
    """Runs several transfers at once. The first error stops those that have not begun."""
    with console.progress(len(transfers), description) as bar, ThreadPoolExecutor(TRANSFERS_AT_ONCE) as pool:
        futures = [pool.submit(transfer) for transfer in transfers]
        try:
            for future in as_completed(futures):
                future.result()
                bar.advance()
        except BaseException:
            # After an error or Ctrl-C, queued files are no longer sent. Leaving the block still waits for running
            # transfers.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _measured(path: Path) -> SetFile:
    if not path.is_file() or path.is_symlink():
        raise IntegrityError(f"{path}: missing, or not a plain file. `distill verify SET` writes a lost card again")
    return SetFile(path, sha256(path), path.stat().st_size)
