"""``distill verify``: is a set what it says it is?"""

from pipeline.errors import IntegrityError
from pipeline.sets.reader import find_set, load_set_tokenizer
from pipeline.sets.record import SetRecord, read_set_record
from pipeline.sets.verify import verify_shards
from pipeline.sharing.config import VerifyConfig


def verify(config: VerifyConfig) -> SetRecord:
    """Checks everything that a set says of itself; its state stays as it is.

    Raises:
        IntegrityError: listing everything that is wrong, or if the set was never finished.
    """
    root = find_set(config.set, config.store)
    record = read_set_record(root)
    if record.state != "verified":  # its teacher was not held against gold
        raise IntegrityError(f"{root}: not finished yet; repeat its command to finish it:\n  {record.command}")
    try:
        load_set_tokenizer(root, record.tokenizer)
        verify_shards(root, record)
    except IntegrityError as error:
        raise IntegrityError(
            f"{error}\nfiles that are missing or damaged come back with `distill pull`, or by the set's command:\n"
            f"  {record.command}"
        ) from error
    return record
