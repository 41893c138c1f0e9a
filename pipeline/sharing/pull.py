"""``distill pull``: fetches a set, which enters the store only after it has been verified here.

The set is assembled in a staging folder, from identical local files where they exist and from the place otherwise.
Repeating the command continues where it was stopped. The sizes in the record limit each download, and the record itself
has a maximum size. The card is written again here, so that no text from outside gets into it.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline import console
from pipeline.errors import ConfigError, DataError, IntegrityError, raise_all
from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import is_plain, link_or_copy, locked, make_folder, require_space, sha256
from pipeline.query.catalog import CATALOG_FILE
from pipeline.record_file import MAX_RECORD_BYTES
from pipeline.sets.files import bytes_problem
from pipeline.sets.open import load_set_tokenizer
from pipeline.sets.record import FILE_NAME, SetRecord, parse_set_record, read_set_record
from pipeline.sets.record_parts import Shard
from pipeline.sets.set_settings import PullSettings
from pipeline.sets.write import finish_set
from pipeline.sharing import hub
from pipeline.sharing.push import JOURNAL
from pipeline.sharing.remote_folder import Place, all_at_once, open_place, other_files, paths_of
from pipeline.text.tokenizer import is_tokenizer

# A folder of the store for sets that have not been verified yet.
FOLDER = ".pull"
RESERVED = {CATALOG_FILE, "augmented", "candidates", "repeated"}  # other files and folders of a store


@dataclass(frozen=True)
class Pulled:
    """The outcome of a pull."""

    root: Path
    record: SetRecord
    fetched: tuple[str, ...]


def pull(settings: PullSettings) -> Pulled:
    """Fetches a set, verifies it and puts it into the store.

    Raises:
        IntegrityError: if it does not match its record. In that case, no part of it is usable.
        ConfigError: if another set has its name here.
        DataError: if the place cannot be reached, or the disk is full.
    """
    place = hub.open_hub(settings.url) if hub.is_hub(settings.url) else open_place(settings.url)
    record = _record_there(place)
    root = settings.store / (settings.name or record.name)
    here = _set_here(root, record, settings.replace)
    # The lock is outside the staging folder, which becomes the set and must not contain it.
    lock = settings.store / FOLDER / f".{root.name}.lock"  # no set's name begins with a dot
    # Equal records are not enough: a local file may be damaged, and pulling again is how a user repairs it.
    if here == record and _is_whole(root, record):
        _forget(lock, root)
        return Pulled(root, here, ())
    make_folder(settings.store / FOLDER)
    with locked(lock, f"{root}: is being pulled by another process. Wait for it, or choose another --name"):
        pulled = _pull(settings, place, record, root)
    # Not empty while other sets are being pulled.
    with suppress(OSError):
        (settings.store / FOLDER).rmdir()
    return pulled


def _forget(lock: Path, root: Path) -> None:
    if lock.exists() or _replaced(lock.parent, root).exists():
        with suppress(DataError), locked(lock, "another pull is running"):
            shutil.rmtree(_replaced(lock.parent, root), ignore_errors=True)
    with suppress(OSError):
        lock.parent.rmdir()


def _replaced(folder: Path, root: Path) -> Path:
    return folder / f".{root.name}.old"


def _is_whole(root: Path, record: SetRecord) -> bool:
    has_others = all((root / name).is_file() for name in other_files(record))
    others = record.signals.hashes().items()
    has_signals = has_others and all(_is_file(root / name, digest) for name, digest in others)
    has_all = has_signals and is_tokenizer(root / TOKENIZER_FILE, record.tokenizer.sha256)
    return has_all and not any(bytes_problem(root / shard.path, shard) for shard in record.shards)


def _pull(settings: PullSettings, place: Place, record: SetRecord, root: Path) -> Pulled:
    rows = sum(shard.bytes or 0 for shard in record.shards)
    # The sizes come from the record and were compared with the remote listing, so a full disk is found before the
    # download.
    require_space(settings.store, rows + sum(other_files(record).values()))
    staging = settings.store / FOLDER / root.name
    for folder in {(staging / name).parent for name in (record.shards[0].path, *other_files(record))}:
        make_folder(folder)
    fetched = _fetch_all(place, record, staging, root)
    # The row checks below rely on the recorded vocabulary size, which is compared with the tokenizer itself here.
    load_set_tokenizer(staging, record.tokenizer)
    verified = finish_set(staging, record, record.scores)
    _put_in_place(staging, root)
    return Pulled(root, verified, tuple(sorted(fetched)))


def _record_there(place: Place) -> SetRecord:
    """Returns the record at the place, after a check of its sizes."""
    content = place.read(FILE_NAME, MAX_RECORD_BYTES)
    if content is None:
        unfinished = place.read(JOURNAL, MAX_RECORD_BYTES) is not None
        reason = "a push to it is running or was stopped" if unfinished else f"not a logit set: it has no {FILE_NAME}"
        raise DataError(f"{place.url}: {reason}")
    record = parse_set_record(content, f"{place.url}/{FILE_NAME}")
    if record.state != "verified":
        raise IntegrityError(f"{place.url}: a set that was never finished (state {record.state!r})")
    sizes = place.sizes(record.shards[0].folder)
    # A partial copy of a set is noticed by its sizes before gigabytes are fetched.
    problems = [
        f"{shard.path}: {_bytes(sizes.get(shard.path))} there, but distill.json has {_bytes(shard.bytes)}"
        for shard in record.shards
        if shard.bytes is None or sizes.get(shard.path) != shard.bytes
    ]
    raise_all(IntegrityError, f"{place.url}: not the set that its distill.json describes", problems[:20])
    return record


def _set_here(root: Path, record: SetRecord, replace: bool) -> SetRecord | None:
    """Returns the local set of this name, if it exists. Other files and folders are never replaced."""
    if root.name in RESERVED or (root.exists() and not (root / FILE_NAME).exists()):
        raise ConfigError(f"{root}: is not a set. Give the pulled set another --name.")
    if not root.exists():
        return None
    try:
        here = read_set_record(root)
    except IntegrityError:
        if replace:
            return None
        raise
    if here.fingerprint != record.fingerprint and not replace:
        raise ConfigError(
            f"{root}: another set has this name (fingerprint {here.fingerprint[:12]}…, there "
            f"{record.fingerprint[:12]}…). Give the pulled set another --name, or use --replace."
        )
    return here


def _fetch_all(place: Place, record: SetRecord, staging: Path, root: Path) -> list[str]:
    """Brings every file into ``staging``. Returns the paths of the files that were downloaded."""
    checked_later = {staging / path for path in paths_of(record)}
    for path in staging.rglob("*"):
        if path not in checked_later and not path.is_dir():
            path.unlink()
    missing = [shard for shard in record.shards if not _is_here(shard, staging, root)]
    others = other_files(record)

    def fetch(shard: Shard) -> None:
        if place.fetch(shard.path, staging / shard.path, shard.bytes or 0) != shard.sha256:
            # The damaged file is removed, so that repeating the command does not take it for a finished download.
            (staging / shard.path).unlink()
            raise IntegrityError(f"{place.url}/{shard.path}: its SHA-256 is not the one in distill.json")

    transfers: list[Callable[[], object]] = [partial(fetch, shard) for shard in missing]
    for name, digest in record.signals.hashes().items():
        if _is_file(staging / name, digest):
            del others[name]
            continue
        (staging / name).unlink(missing_ok=True)
        if _is_file(root / name, digest):
            link_or_copy(root / name, staging / name)
            del others[name]
    transfers += [partial(place.fetch, name, staging / name, most_bytes) for name, most_bytes in others.items()]
    all_at_once(f"from {place.url}", transfers)
    return [*(shard.path for shard in missing), *others]


def _is_here(shard: Shard, staging: Path, root: Path) -> bool:
    """Returns whether a shard is in the staging folder. A shard that the local set shares is linked there first."""
    if not bytes_problem(staging / shard.path, shard):
        return True
    if not bytes_problem(root / shard.path, shard):
        (staging / shard.path).unlink(missing_ok=True)
        link_or_copy(root / shard.path, staging / shard.path)
        return True
    return False


def _is_file(path: Path, digest: str) -> bool:
    return is_plain(path) and sha256(path) == digest


def _put_in_place(staging: Path, root: Path) -> None:
    """Gives the finished set its name. An existing set of this name is moved away first and removed later."""
    old = _replaced(staging.parent, root)
    shutil.rmtree(old, ignore_errors=True)
    if root.exists():
        # A folder cannot be renamed onto another, so for a moment there is no set. A kill in that moment leaves both
        # folders under `.pull`, and the next pull finishes from the staging folder.
        root.replace(old)
    staging.replace(root)
    shutil.rmtree(old, ignore_errors=True)
    if old.exists():
        console.warn(f"{old}: this older version of {root} could not be removed. Pull again to remove it")


def _bytes(number: int | None) -> str:
    return "nothing" if number is None else f"{number:,} bytes"
