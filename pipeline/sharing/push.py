"""``distill push``: sends a set to another place, where readers never see an incomplete set.

The record is sent last. A journal at the destination lists the files that have arrived, so that a stopped push can
continue, and a new version sends only new files.

A set without text stores its logits under hashes, for receivers who have the texts themselves. Token ids are left out
with the texts, because the tokenizer turns them back into text, and so is the sample of augmented rows. Token vectors
stay, because the vocabulary is public, but without token counts. Hidden states can be inverted to recover the text and
are left out. Hashes are not anonymous: anyone who guesses a text can check whether it is in the set.
"""

import hashlib
import json
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import pyarrow.parquet as pq
from pydantic import BaseModel, Field, ValidationError

from pipeline import console
from pipeline.errors import ConfigError, DistillError, IntegrityError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.record_file import MAX_RECORD_BYTES
from pipeline.sets.card import is_open
from pipeline.sets.files import require_shards
from pipeline.sets.open import find_set
from pipeline.sets.record import FILE_NAME, SetRecord, parse_set_record, read_set_record, staged, to_json
from pipeline.sets.set_settings import PushSettings
from pipeline.sets.token_vectors import take_over_token_vectors
from pipeline.sets.write import complete_set, finish_set, start_set, write_shard
from pipeline.sharing import hub
from pipeline.sharing.remote_folder import Place, SetFile, all_at_once, files_of, open_place, paths_of
from pipeline.text.tokenizer import read_tokenizer_json

JOURNAL = "distill.push.json"
# Smaller files are downloaded and compared instead of being sent again.
SMALL_BYTES = 2**20
TEXT_SETTING = "text"  # marks the fingerprint of a set without text
FileHashes = dict[str, str]  # SHA-256 by path inside the set


class Journal(BaseModel):
    """The progress of a push: files that have arrived, and files of the previous set to remove at the end."""

    arrived: FileHashes = Field(default_factory=dict)
    obsolete: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pushed:
    """The outcome of a push: the files that were sent, and those that existed already."""

    url: str
    name: str
    sent: tuple[str, ...]
    kept: tuple[str, ...]


def push(settings: PushSettings) -> Pushed:
    """Sends a verified set to a URL.

    Raises:
        ConfigError: if the place contains another set.
        IntegrityError: if the local set is not verified, or a file was changed.
        DataError: if the place cannot be reached.
    """
    root = find_set(settings.set, settings.store)
    record = read_set_record(root)
    if record.state != "verified":
        raise IntegrityError(f"{root}: state {record.state!r}. Only verified sets can be pushed. See `distill verify`")
    if settings.without_text and record.signals.layer_signals:
        left = " and ".join(signal.title for signal in record.signals.layer_signals)
        console.note(f"{left} are not uploaded, because the text could be recovered from them")
    # The copy without text is a complete set of its own, so the rest of the push needs no special case.
    source = without_text(root, record) if settings.without_text else nullcontext((root, record))
    with source as (folder, sent):
        if sent.has_text and not is_open(sent.licence):
            advice = ", or leave them out with --without-text" if sent.row_format.may_lack_text else ""
            console.warn(
                f"{root}: it is unclear whether its texts may be redistributed (licence: {sent.licence}). Make "
                f"sure that they may{advice}"
            )
        files = files_of(folder, sent)
        if hub.is_hub(settings.url):
            travelled = hub.push(settings, sent, files)
        else:
            travelled = _push(open_place(settings.url), sent, files, settings.replace)
    kept = files.keys() - set(travelled)
    return Pushed(settings.url, root.resolve().name, tuple(sorted(travelled)), tuple(sorted(kept)))


def _push(place: Place, record: SetRecord, files: dict[str, SetFile], replace: bool) -> list[str]:
    content = place.read(FILE_NAME, MAX_RECORD_BYTES)
    journal = _read_journal(place)
    if content is None and journal is None:
        _require_empty(place, record, files)
    old = _other_set(place, content, record, replace) if content else None
    known = _known(place, old, journal, files)
    # Files that arrived in an earlier, stopped push are not sent again.
    missing = [name for name in files if name not in known]
    if not missing and journal is None and content == to_json(record).encode():
        return []
    before = paths_of(old) if old else set()
    obsolete = (before | set(journal.obsolete if journal else ())) - files.keys()
    lock = threading.Lock()

    def note(name: str | None = None) -> None:
        with lock:
            # Several uploads may finish at once. Without the lock, an older journal could overwrite a newer one.
            known.update({name: files[name].sha256} if name else {})
            place.write(JOURNAL, json.dumps({"arrived": known, "obsolete": sorted(obsolete)}).encode())

    def send(name: str) -> None:
        place.send(files[name].path, name)
        note(name)

    # The journal comes before the first file, so that a stopped push is recognized and not mistaken for foreign files.
    note()
    if content and (before & set(missing) or old is None):
        # Without a record the place holds no set. That is safer than a mixture of old and new files for a while.
        place.remove(FILE_NAME)
    all_at_once(f"to {place.url}", [partial(send, name) for name in missing])
    # Only now, when every file has arrived, does the record turn the files into a set.
    place.write(FILE_NAME, to_json(record).encode())
    place.remove_temporaries({str(PurePosixPath(name).parent) for name in (FILE_NAME, *files)})
    # Files of the old version are removed after the new record has arrived: until then a reader may still need them.
    for name in sorted(obsolete & _sizes(place, obsolete).keys()):
        place.remove(name)
    place.remove(JOURNAL)
    return missing


def _require_empty(place: Place, record: SetRecord, files: Iterable[str]) -> None:
    """Refuses a place with other files but no set, so that no other data are overwritten or removed."""
    folders = {str(PurePosixPath(name).parent) for name in files} - {"."}
    taken = sorted((place.sizes("").keys() & set(files)) | {name for folder in folders for name in place.sizes(folder)})
    if taken:
        raise ConfigError(
            f"{place.url}: contains {taken[0]}, but no set and no stopped push. Choose a place for only this "
            f"set, such as {place.url}/{record.name}"
        )


def _read_journal(place: Place) -> Journal | None:
    """Returns the journal of a stopped push. An unreadable journal counts as empty."""
    content = place.read(JOURNAL, MAX_RECORD_BYTES)
    if content is None:
        return None
    try:
        return Journal.model_validate_json(content)
    except ValidationError:
        return Journal()


def _other_set(place: Place, content: bytes, record: SetRecord, replace: bool) -> SetRecord | None:
    """Returns the record of the set at the destination, or None if it cannot be read and --replace is given."""
    try:
        old = parse_set_record(content, f"{place.url}/{FILE_NAME}")
    except DistillError:
        if replace:
            return None
        raise
    if old.fingerprint != record.fingerprint and not replace:
        raise ConfigError(
            f"{place.url}: contains another set, {old.name!r} of {old.teacher.name} ({old.fingerprint[:12]}…). "
            "Choose another URL, or use --replace."
        )
    return old


def _known(place: Place, old: SetRecord | None, journal: Journal | None, files: dict[str, SetFile]) -> FileHashes:
    """Returns the files at the destination that match the record or the journal there."""
    hashes: FileHashes = {shard.path: shard.sha256 or "" for shard in old.shards} if old else {}
    hashes |= old.signals.hashes() if old else {}
    hashes |= journal.arrived if journal else {}
    sizes = _sizes(place, files)
    same = {name for name, file in files.items() if sizes.get(name) == file.num_bytes}
    for name in same - hashes.keys():
        content = place.read(name, files[name].num_bytes) if files[name].num_bytes < SMALL_BYTES else None
        hashes[name] = hashlib.sha256(content or b"").hexdigest()
    # Equal size alone proves nothing: a file counts as present only if its recorded hash is equal as well.
    return {name: files[name].sha256 for name in same if hashes[name] == files[name].sha256}


def _sizes(place: Place, names: Iterable[str]) -> dict[str, int]:
    """Returns the sizes of the files at the destination in the folders of some paths."""
    folders = {str(PurePosixPath(name).parent) for name in names}
    return {
        name: size for folder in sorted(folders) for name, size in place.sizes("" if folder == "." else folder).items()
    }


@contextmanager
def without_text(root: Path, record: SetRecord) -> Iterator[tuple[Path, SetRecord]]:
    """Yields a copy of a set without its texts, in a temporary folder that is removed after the block.

    Raises:
        ConfigError: if the set requires its text.
        IntegrityError: if a shard does not match the record.
    """
    if not record.row_format.may_lack_text:
        raise ConfigError(f"{root}: contains {record.contents}. Without text, no rows would be left")
    if not record.has_text:
        raise ConfigError(f"{root}: has no text. Push it without --without-text")
    # The copy gets new hashes, which would hide damage.
    require_shards(root, record, record.shards)
    with tempfile.TemporaryDirectory(prefix="distill-") as folder:
        copy = Path(folder) / record.name
        tokenizer = read_tokenizer_json(root / TOKENIZER_FILE, record.tokenizer.sha256)
        blind = start_set(copy, _staged(record), tokenizer)
        for old, new in zip(record.shards, blind.shards, strict=True):
            names = blind.arrow_schema().names
            table = pq.read_table(root / old.path, columns=names, partitioning=None).replace_schema_metadata(None)
            write_shard(copy, blind, new, [table])
        finished = finish_set(copy, complete_set(copy, blind), record.scores)
        yield copy, take_over_token_vectors(root, record, copy, finished)


def _staged(record: SetRecord) -> SetRecord:
    variants = record.augmentation
    return staged(
        record.settings | {TEXT_SETTING: "left out"},
        record.command,
        base=record,
        created=record.created,
        has_text=False,
        augmentation=variants.model_copy(update={"sample": ()}) if variants else None,
        shards=tuple(shard.unmeasured().model_copy(update={"version": None}) for shard in record.shards),
        versions_before=(),
    )
