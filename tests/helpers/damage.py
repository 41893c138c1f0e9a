"""Ways to spoil a set that lies here."""

from pathlib import Path

from pipeline.sets.record import changed, read_set_record, write_set_record


def damage(path: Path) -> None:
    """Another byte in the middle of a file, which no other name of it sees."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)


def with_other_bytes(root: Path) -> Path:
    """A finished set of which another version of a library has written the first shard, which then was lost."""
    record = read_set_record(root)
    first, *others = record.shards
    shards = (first.model_copy(update={"sha256": "0" * 64}), *others)
    write_set_record(root, changed(record, shards=shards))
    (root / first.path).unlink()
    return root
