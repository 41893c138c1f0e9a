"""The commands about logit sets: import, verify, diff, recode, push, pull and join."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from distill.commands.command import called, command
from distill.result import Result
from pipeline import console
from pipeline.errors import short
from pipeline.file_names import RUN_RECORD
from pipeline.sets.set_settings import (
    DiffSettings,
    JoinSettings,
    PullSettings,
    PushSettings,
    RecodeSettings,
    VerifySettings,
)
from pipeline.tasks.task import TRAIN
from teacher.imported.import_settings import CollectedFolder, ImportSettings

if TYPE_CHECKING:
    from pipeline.sets.record import SetRecord


HEADS = {"both": "in both", "only_a": "only A", "only_b": "only B", "other_text": "other text"}


@command(ImportSettings)
def import_answers(settings: ImportSettings) -> Result:
    """Make a logit set from predictions of an LLM or any other teacher, or add those of a cascade to a set."""
    if isinstance(settings.source, CollectedFolder):
        return _extended(settings.source)
    from teacher.imported.import_answers import import_answers as write_set

    imported = write_set(settings.source, called())
    record = imported.record
    values = {name: getattr(imported, name) for name in ("unanswered", "unused", "missing")}
    result = Result({"root": str(imported.root), "state": record.state, "scores": record.scores, **values})
    rows = []
    for split, missing in imported.missing.items():
        scores = ", ".join(f"{name} {value:.4f}" for name, value in record.scores.get(split, {}).items())
        rows.append([split, record.rows_of(split), missing, scores])
    title = f"{imported.root}: {record.state}, {console.size(record.num_bytes)}"
    result.table(["split", "rows", "without an answer", "teacher against gold"], rows, title)
    result.note(imported.origin)
    left_out = {
        "rows of the file without an answer": imported.unanswered,
        "answers without a row of the task": imported.unused,
    }
    for what, count in left_out.items():
        if count:
            result.warn(f"{settings.source.file}: {count:,} {what}, left out")
    warn_about_scores(result, imported.root)
    if TRAIN not in record.splits:
        result.warn(f"no row of {TRAIN!r} has an answer, so no student can learn from this set alone")
    return result


def _extended(folder: CollectedFolder) -> Result:
    from teacher.imported.extend_set import extend_set

    extended = extend_set(folder, called())
    record = extended.record
    values = {"root": str(extended.root), "state": record.state, "added": extended.added}
    result = Result(values | {"left_out": extended.left_out})
    reasons = {
        "near_dev": "near copies of dev rows",
        "repeated": "same text as another row",
        "empty": "a sentence has no word",
        "without_text": "text not found",
    }
    left_out = {f"left out: {what}": extended.left_out[name] for name, what in reasons.items()}
    rows = {"rows before": record.rows_of(TRAIN) - extended.added, "rows added": extended.added}
    return result.pairs(f"{extended.root}: {record.state}", rows | left_out)


def warn_about_scores(result: Result, root: Path) -> None:
    """Adds what helps to judge dev scores: dev rows that are also training rows, silent labels, and a baseline."""
    from distill.apps.score_advice import ARE_COPIES, judge, judge_words
    from distill.apps.teacher_advice import judged_set
    from pipeline.sets.kinds import open_set
    from pipeline.sets.kinds.examples import ExampleSet
    from pipeline.sets.kinds.token_labels import TokenLabelSet

    logit_set = open_set(root)
    if isinstance(logit_set, TokenLabelSet):
        for line in judge_words(logit_set):
            result.warn(line)
        return
    assert isinstance(logit_set, ExampleSet), "other kinds have no gold"
    for row in logit_set.sql("select split, count(*) as n from dev_in_train(examples) group by split order by split"):
        rows = f"{row['n']:,} of {logit_set.record.rows_of(row['split']):,} rows"
        query = f'`distill sql "from dev_in_train({logit_set.view})"` shows them'
        result.warn(f"{row['split']}: {rows} {ARE_COPIES}. {query}")
    for split, parts in judged_set(logit_set).items():
        lines = judge(parts)
        for line in lines:
            result.warn(f"{split}: {line}")
        if "baseline" in parts and not lines:
            teacher, scores = parts["teacher"], parts["baseline"]["scores"]
            both = ", ".join(f"{name} {value:.4f} (teacher {teacher[name]:.4f})" for name, value in scores.items())
            result.note(f"{split}: a bag of n-grams without a teacher reaches {both}")


@command(VerifySettings)
def verify(settings: VerifySettings) -> Result:
    """Check every file and row of a set, or whether a run's query selects the same rows and logits today."""
    if is_run(Path(settings.set_or_run)):
        return _reproduced(settings)
    from pipeline.sets.verify import verify as verify_set

    record = verify_set(settings)
    result = Result({"name": record.name, "state": record.state, "fingerprint": record.fingerprint})
    rows = [[split, record.rows_of(split), len(record.shards_of(split)), "sound"] for split in record.splits]
    return result.table(["split", "rows", "files", ""], rows, f"{record.name}: {record.state}")


def is_run(path: Path) -> bool:
    """Whether a folder contains the record of a run."""
    return (path / RUN_RECORD).is_file()


def _reproduced(settings: VerifySettings) -> Result:
    from student.record import reproduce

    compared = reproduce(Path(settings.set_or_run), settings.store, settings.allow_unverified)
    changed = [name for name, values in compared.items() if values["then"] != values["now"]]
    rows = [[name, short(v["then"]), short(v["now"]), v["then"] == v["now"]] for name, v in compared.items()]
    result = Result({"same": not changed, "compared": compared}).failed(bool(changed))
    result.table(["", "then", "now", "same"], rows, settings.set_or_run)
    if changed:
        result.warn(f"not the same today: {len(changed)} of {len(compared)}: {', '.join(changed)}")
    return result


@command(DiffSettings)
def diff(settings: DiffSettings) -> Result:
    """Compare two sets of one task. Exit code 1 if rows, texts, gold or logits differ."""
    from pipeline.query.diff import diff as compare

    difference = compare(settings)
    result = Result(asdict(difference) | {"same": difference.is_empty}).failed(not difference.is_empty)
    if difference.settings:
        rows = [[name, *map(short, values)] for name, values in difference.settings.items()]
        result.table(["setting", "A", "B"], rows)
    tables = {
        "rows": difference.splits,
        "by class": difference.classes,
        "calibration": difference.calibration,
    }
    for title, table in tables.items():
        if table:
            columns = [HEADS.get(name, name.replace("_", " ")) for name in table[0]]
            result.table(columns, [list(row.values()) for row in table], title)
    return result.note("the sets are equal" if difference.is_empty else "the sets differ")


@command(RecodeSettings)
def recode(settings: RecodeSettings) -> Result:
    """Write a set of masked words, or the stored layers of a set, in another codec without the teacher."""
    if settings.plan:
        return _compared(settings)
    from pipeline.sets.recode import recode as recode_set

    return set_result(recode_set(settings, called()))


def set_result(record: "SetRecord", store: Path | None = None) -> Result:
    """Returns the record of a set, with a table of its splits."""
    from pipeline.sets.card import split_table

    result = Result(record.model_dump(mode="json"))
    if record.state == "staged":
        return result.note(f"{record.name}: other jobs still write files. The job with the last one verifies the set")
    signals = " and ".join(map(str, record.signals.stored))
    root = record.name if store is None else store / record.name
    return result.table(*split_table(record), f"{root}: {record.state}, {signals}, {console.size(record.num_bytes)}")


def _compared(settings: RecodeSettings) -> Result:
    from pipeline.sets.recode_plan import compared_codecs

    lines = [asdict(line) for line in compared_codecs(settings)]
    if "layer" in lines[0]:
        columns = ["signal", "layer", "codec", "bytes a row", "set", "lost"]
        rows = [
            [
                *(line["signal"], line["layer"], line["codec"], f"{line['bytes_per_row']:,.0f}"),
                *(console.size(line["set_bytes"]), "-" if line["lost"] is None else f"{line['lost']:.2g}"),
            ]
            for line in lines
        ]
        note = (
            "Bytes per row and for all rows of the set, for each layer. The loss of states is a share of their "
            "variance. The loss of attention and values is the divergence of their softmax in nats. Bases were fitted "
            "to other rows."
        )
    else:
        columns = ["codec", "bytes", "set", "KL", *(f"T={t}" for t in lines[0]["kept_mass"]), "ECE"]
        rows = [
            [
                *(line["codec"], f"{line['bytes_per_position']:,.1f}", console.size(line["set_bytes"])),
                *(f"{line['kl']:.4f}", *(f"{mass:.3f}" if mass else "no" for mass in line["kept_mass"].values())),
                f"{line['calibration_error']:.4f}",
            ]
            for line in lines
        ]
        note = (
            "The columns are: bytes per position over all columns, size of the whole set, divergence of the stored "
            "from the full distribution, stored share of the probability by temperature, and calibration error of the "
            "most probable token. Sampled distributions are unbiased: they differ at single positions but are right "
            "on average, which is enough for a student. Top-k distributions are biased."
        )
    return Result(lines).table(columns, rows).note(note)


SHOWN_ROWS = 10


@command(PushSettings)
def push(settings: PushSettings) -> Result:
    """Copy a verified set to a folder, an object store or the hub. Existing files are skipped."""
    from pipeline.sharing.push import push as push_set

    pushed = push_set(settings)
    result = Result({"url": pushed.url, "name": pushed.name, "sent": pushed.sent, "kept": pushed.kept})
    pairs = {"set": pushed.name, "files sent": len(pushed.sent), "there already": len(pushed.kept)}
    return result.pairs(pushed.url, pairs)


@command(PullSettings)
def pull(settings: PullSettings) -> Result:
    """Download a pushed set, verify it, and add it to the store."""
    from pipeline.sharing.pull import pull as pull_set

    pulled = pull_set(settings)
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


@command(JoinSettings)
def join(settings: JoinSettings) -> Result:
    """Join your own texts with the logits of a set that was pushed without text."""
    from pipeline.sharing.join import join as join_set
    from pipeline.sharing.join import left_out

    joined = join_set(settings, called())
    values = {name: getattr(joined, name) for name in ("matched", "extra", "missing", "other_gold", "copies")}
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
    if joined.copies:
        result.note(f"{joined.copies:,} rows of the set are left out: your data repeat their texts less often")
    for text in left_out(joined.variants):
        result.note(text)
    return result


def _rows(rows: list[int] | list[tuple[int, int]] | None) -> str:
    """Returns the number of rows and the first of them."""
    if not rows:
        return "0"
    shown = ", ".join(str(row) if isinstance(row, int) else "{}:{}".format(*row) for row in rows[:SHOWN_ROWS])
    return f"{len(rows):,}: {shown}{', …' if len(rows) > SHOWN_ROWS else ''}"
