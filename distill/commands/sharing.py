"""``distill push``, ``pull``, ``verify``, ``card`` and ``join``."""

from distill.commands.options import command_line, takes
from pipeline import console
from pipeline.sharing.config import CardConfig, JoinConfig, PullConfig, PushConfig, VerifyConfig

SHOWN_ROWS = 10


@takes(PushConfig)
def push(config: PushConfig) -> None:
    """Send a verified set to a folder, an object store or the hub; only what is not there yet travels."""
    from pipeline.sharing.push import push as push_set

    pushed = push_set(config)
    if config.json_output:
        console.print_json({"url": pushed.url, "name": pushed.name, "sent": pushed.sent, "kept": pushed.kept})
        return
    console.print_pairs(
        pushed.url, {"set": pushed.name, "files sent": len(pushed.sent), "there already": len(pushed.kept)}
    )


@takes(PullConfig)
def pull(config: PullConfig) -> None:
    """Fetch a set from where it was pushed, verify it, and put it into the store."""
    from pipeline.sharing.pull import pull as pull_set

    pulled = pull_set(config)
    if config.json_output:
        console.print_json({"root": str(pulled.root), "state": pulled.record.state, "fetched": pulled.fetched})
        return
    record = pulled.record
    pairs = {
        "state": record.state,
        "holds": record.what_it_holds,
        "teacher": record.teacher.name,
        "rows": record.num_rows,
        "bytes": console.size(record.num_bytes),
        "licence of the texts": record.licence,
        "files fetched": len(pulled.fetched),
    }
    console.print_pairs(str(pulled.root), pairs)


@takes(VerifyConfig)
def verify(config: VerifyConfig) -> None:
    """Check a set's every file and row against what it says of itself."""
    from pipeline.sharing.verify import verify as verify_set

    record = verify_set(config)
    if config.json_output:
        console.print_json({"name": record.name, "state": record.state, "fingerprint": record.fingerprint})
        return
    rows = [[split, record.rows_of(split), len(record.shards_of(split)), "sound"] for split in record.splits]
    console.print_table(["split", "rows", "files", ""], rows, title=f"{record.name}: {record.state}")


@takes(CardConfig)
def card(config: CardConfig) -> None:
    """Print a set's card, or write it anew."""
    from pipeline.files import remove_temporaries, write_text
    from pipeline.sets.card import CARD_FILE, card_text
    from pipeline.sets.reader import find_set
    from pipeline.sets.record import read_set_record

    root = find_set(config.logits, config.store)
    text = card_text(read_set_record(root))
    if config.write:
        remove_temporaries(root)
        write_text(root / CARD_FILE, text)
        console.note(f"wrote {root / CARD_FILE}")
    else:
        console.print_text(text)


@takes(JoinConfig)
def join(config: JoinConfig) -> None:
    """Put your own texts beside the logits of a set that was pushed without text."""
    from pipeline.sharing.join import join as join_set
    from pipeline.sharing.join import left_out

    joined = join_set(config, command_line())
    if config.json_output:
        values = {name: getattr(joined, name) for name in ("matched", "extra", "missing", "other_gold")}
        variants = joined.variants and joined.variants.model_dump(mode="json", exclude={"sample"})
        console.print_json({"root": str(joined.root), "state": joined.record.state, **values, "variants": variants})
        return
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
    console.print_table(columns, rows, title=f"{joined.root}: {joined.record.state}")
    for note in left_out(joined.variants):
        console.note(note)


def _rows(rows: list[int] | list[tuple[int, int]] | None) -> str:
    """How many rows, and the first of them."""
    if not rows:
        return "0"
    shown = ", ".join(str(row) if isinstance(row, int) else "{}:{}".format(*row) for row in rows[:SHOWN_ROWS])
    return f"{len(rows):,}: {shown}{', …' if len(rows) > SHOWN_ROWS else ''}"
