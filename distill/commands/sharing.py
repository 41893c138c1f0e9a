"""``distill push``, ``pull`` and ``join``."""

from distill.commands.command import called, command
from distill.result import Result
from pipeline import console
from pipeline.sharing.config import JoinConfig, PullConfig, PushConfig

SHOWN_ROWS = 10


@command(PushConfig)
def push(config: PushConfig) -> Result:
    """Send a verified set to a folder, an object store or the hub; only what is not there yet travels."""
    from pipeline.sharing.push import push as push_set

    pushed = push_set(config)
    result = Result({"url": pushed.url, "name": pushed.name, "sent": pushed.sent, "kept": pushed.kept})
    pairs = {"set": pushed.name, "files sent": len(pushed.sent), "there already": len(pushed.kept)}
    return result.pairs(pushed.url, pairs)


@command(PullConfig)
def pull(config: PullConfig) -> Result:
    """Fetch a set from where it was pushed, verify it, and put it into the store."""
    from pipeline.sharing.pull import pull as pull_set

    pulled = pull_set(config)
    record = pulled.record
    pairs = {
        "state": record.state,
        "holds": record.contents,
        "teacher": record.teacher.name,
        "rows": record.num_rows,
        "bytes": console.size(record.num_bytes),
        "licence of the texts": record.licence,
        "files fetched": len(pulled.fetched),
    }
    result = Result({"root": str(pulled.root), "state": record.state, "fetched": pulled.fetched})
    return result.pairs(str(pulled.root), pairs)


@command(JoinConfig)
def join(config: JoinConfig) -> Result:
    """Put your own texts beside the logits of a set that was pushed without text."""
    from pipeline.sharing.join import join as join_set
    from pipeline.sharing.join import left_out

    joined = join_set(config, called())
    values = {name: getattr(joined, name) for name in ("matched", "extra", "missing", "other_gold")}
    variants = joined.variants and joined.variants.model_dump(mode="json", exclude={"sample"})
    result = Result({"root": str(joined.root), "state": joined.record.state, **values, "variants": variants})
    rows = [
        [
            split,
            joined.matched.get(split),
            *(_rows(part.get(split)) for part in (joined.extra, joined.missing)),
            _rows(joined.other_gold.get(split)),
        ]
        for split in joined.missing
    ]
    columns = ["split", "matched", "yours alone", "the set's alone", "other gold"]
    result.table(columns, rows, f"{joined.root}: {joined.record.state}")
    for text in left_out(joined.variants):
        result.note(text)
    return result


def _rows(rows: list[int] | list[tuple[int, int]] | None) -> str:
    """How many rows, and the first of them."""
    if not rows:
        return "0"
    shown = ", ".join(str(row) if isinstance(row, int) else "{}:{}".format(*row) for row in rows[:SHOWN_ROWS])
    return f"{len(rows):,}: {shown}{', …' if len(rows) > SHOWN_ROWS else ''}"
