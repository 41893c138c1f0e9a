"""``distill finetune-teacher``, ``augment``, ``teacher-dump`` and ``check``."""

from dataclasses import asdict

from distill.commands.command import called, command, needs_teacher_libraries
from distill.commands.sets import set_result, warn_about_scores
from distill.result import Result
from pipeline import console
from pipeline.sets.record_parts import AugmentationRecord
from pipeline.training.run_record import Entry
from teacher.augment.methods import AugmentSettings
from teacher.finetune_settings import FinetuneCorpus, FinetuneSettings, FinetuneTasks
from teacher.settings import CheckSettings, DumpSettings


@command(FinetuneSettings)
def finetune_teacher(settings: FinetuneSettings) -> Result:
    """Fine-tune a BERT as the teacher of a task, or as a masked language model on a corpus."""
    needs_teacher_libraries()
    is_corpus = isinstance(settings.learn, FinetuneCorpus)
    if is_corpus:
        from teacher.finetune.masked_words import finetune_mlm

        record = finetune_mlm(settings, called())
    else:
        from teacher.finetune.classifier import finetune

        record = finetune(settings, called())
    if not record:
        return Result()
    best, unit = record["result"]["best"], "step" if is_corpus else "epoch"
    judgements = _judgements(settings, best)
    result = Result(record | {"judgements": judgements})
    for line in judgements:
        result.warn(line)
    rows = [
        [entry[unit], split, name, value, "best" if entry[unit] == best[unit] else ""]
        for entry in record["result"]["history"]
        for split, metrics in entry["metrics"].items()
        for name, value in metrics.items()
    ]
    if not rows:
        return result.note(
            f"{settings.output_dir}: the last {unit}'s weights are saved. Their quality is unknown, because dev "
            f"has no gold"
        )
    return result.table([unit, "split", "metric", "value", ""], rows, f"teacher {settings.output_dir}")


def _judgements(settings: FinetuneSettings, best: Entry) -> list[str]:
    """Returns advice about the best epoch, with the name of the task and the split if there are several tasks."""
    from distill.apps.score_advice import judge, judge_teacher
    from distill.apps.teacher_advice import judged_teachers

    judged = judged_teachers(settings, best)
    if not judged:
        return judge_teacher(best)
    are_several = isinstance(settings.learn, FinetuneTasks)
    return [f"{name}: {line}" if are_several else line for name, parts in judged.items() for line in judge(parts)]


@command(AugmentSettings)
def augment(settings: AugmentSettings) -> Result:
    """Make variants of a task's rows for a teacher to label. `teacher-dump --augment` does both."""
    needs_teacher_libraries()
    from teacher.augment.augment import augment as make_variants

    record = make_variants(settings, called())
    if record is None:
        return Result()
    return _add_variants(Result(record.model_dump(mode="json")), record)


@command(DumpSettings)
def dump_teacher(settings: DumpSettings) -> Result:
    """Run a teacher over a task or a corpus and write its outputs as a logit set."""
    needs_teacher_libraries()
    if settings.plan:
        return _plan(settings)
    from teacher.dumps import dump

    record = dump(settings, called())
    if record is None:
        return Result()
    result = set_result(record, settings.place.store)
    if record.augmentation:
        _add_variants(result, record.augmentation)
    if record.unlabelled:
        result.pairs("unlabelled rows", record.unlabelled.lines())
    if record.state == "verified" and record.kind in ("examples", "token_labels"):
        warn_about_scores(result, settings.place.store / record.name)
    return result


def _plan(settings: DumpSettings) -> Result:
    """Returns the planned size of the set. Nothing is written."""
    from teacher.dumps import open_dump

    plan = open_dump(settings, called()).plan()
    result = Result(plan.values()).pairs(
        "plan",
        {
            "rows": ", ".join(f"{name} {rows:,}" for name, rows in plan.rows.items()),
            "shards": plan.shards,
            "tokens, about": plan.tokens,
            "disk, about": console.size(plan.disk_bytes),
            **{
                f"- {name}": f"{console.size(a_row)} a row, {console.size(size)}"
                for name, (a_row, size) in plan.layer_bytes.items()
            },
            **({"- weights of layers": console.size(plan.init_bytes)} if plan.init_bytes else {}),
            "time, about": f"{plan.seconds:,.0f} s" if plan.seconds else "unknown",
            "memory, about": console.size(plan.memory_bytes) if plan.memory_bytes else "unknown",
        },
    )
    if getattr(settings.rows.signal, "method", None) is not None:
        result.note("every candidate variant counts as a row. The time to make variants is not included")
    return result


def _add_variants(result: Result, record: AugmentationRecord) -> Result:
    rows = [
        [f"{row.source_row}:{row.variant}", row.origin, " | ".join(row.original), " | ".join(row.text)]
        for row in record.sample
    ]
    return result.pairs("variants", record.lines()).table(["row", "origin", "original", "variant"], rows)


@command(CheckSettings)
def check(settings: CheckSettings) -> Result:
    """Run a set's teacher again on a sample of rows. Exit code 1 if its outputs differ from the stored ones."""
    needs_teacher_libraries()
    from teacher.check import check as check_set

    checked = check_set(settings)
    rows = [
        [name, part.largest, part.mean, *part.fidelity.values()]
        for name, part in (("two runs now", checked.live), ("now and stored", checked.stored))
    ]
    columns = ["", "largest difference", "mean", *(name.replace("_", " ") for name in checked.live.fidelity)]
    result = Result(asdict(checked) | {"passed": checked.passed}).failed(not checked.passed)
    result.table(columns, rows, f"{settings.set}: {checked.rows:,} rows")
    if not checked.same_weights:
        result.warn("the teacher's weights differ from those in the set's record")
    row = "{}:{}:{}".format(*checked.worst_row)
    verdict = (
        "the teacher's outputs equal the stored ones"
        if checked.passed
        else f"the teacher's outputs differ from the stored ones, see {row}"
    )
    return result.note(f"{verdict} (differences up to {checked.tolerance:.2g} are allowed)")
