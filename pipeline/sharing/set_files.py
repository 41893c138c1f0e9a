"""The files of a set: whether they match its record, which of them are transferred, and several transfers at once."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from pipeline import console
from pipeline.errors import IntegrityError
from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import sha256, write_text
from pipeline.sets.card import CARD_FILE, card_text
from pipeline.sets.files import require_shards
from pipeline.sets.open import find_set, load_set_tokenizer
from pipeline.sets.record import SetRecord, read_set_record
from pipeline.sets.verify import verify_shards
from pipeline.sharing.sharing_settings import VerifySettings
from pipeline.text.tokenizer import MAX_TOKENIZER_BYTES, read_tokenizer_json

# Transfers wait for the network most of the time, so several at once use the bandwidth better.
TRANSFERS_AT_ONCE = 8


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


def verify(settings: VerifySettings) -> SetRecord:
    """Checks every claim of a set's record against its files, and writes its card if that is missing.

    Raises:
        IntegrityError: listing every problem, or if the set was never finished.
    """
    root = find_set(settings.set_or_run, settings.store)
    record = read_set_record(root)
    # The teacher has not been scored on gold labels.
    if record.state != "verified":
        raise IntegrityError(f"{root}: not finished yet. Repeat its command to finish it:\n  {record.command}")
    try:
        load_set_tokenizer(root, record.tokenizer)
        verify_shards(root, record)
    except IntegrityError as error:
        raise IntegrityError(
            f"{error}\nTo restore missing or damaged files, use `distill pull` or repeat the set's command:\n"
            f"  {record.command}"
        ) from error
    if not (root / CARD_FILE).exists():
        write_text(root / CARD_FILE, card_text(record))
    return record
