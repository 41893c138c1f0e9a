"""``distill finetune-teacher``, ``augment``, ``teacher-dump`` and ``check``."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from distill.commands.options import command_line, needs_teacher_libraries, takes
from distill.commands.tokens import print_set
from pipeline import console
from pipeline.sets.record_parts import AugmentationRecord
from teacher.augment.config import AugmentConfig
from teacher.config import CheckConfig, DumpCorpus, DumpTask, FinetuneCorpus, FinetuneTask

if TYPE_CHECKING:
    from pipeline.sets.reader import LogitSet

KIND = ("task", "corpus")


@takes(FinetuneTask, FinetuneCorpus, by=KIND)
def finetune_teacher(config: FinetuneTask | FinetuneCorpus) -> None:
    """Fine-tune a BERT for a task, to be its teacher, or as a masked language model on a corpus."""
    config.check()
    needs_teacher_libraries()
    if isinstance(config, FinetuneCorpus):
        from teacher.finetune.masked_words import finetune_mlm

        record = finetune_mlm(config, command_line())
    else:
        from teacher.finetune.classifier import finetune

        record = finetune(config, command_line())
    if not record:
        return
    if config.json_output:
        console.print_json(record)
        return
    best, unit = record["result"]["best"], "step" if isinstance(config, FinetuneCorpus) else "epoch"
    rows = [
        [entry[unit], split, name, value, "best" if entry[unit] == best[unit] else ""]
        for entry in record["result"]["history"]
        for split, metrics in entry["metrics"].items()
        for name, value in metrics.items()
    ]
    if not rows:
        console.note(
            f"{config.output_dir}: the last {unit}'s weights; without gold on dev nothing tells how good they are"
        )
        return
    console.print_table([unit, "split", "metric", "value", ""], rows, title=f"teacher {config.output_dir}")


@takes(AugmentConfig)
def augment(config: AugmentConfig) -> None:
    """Make variants of a task's rows, for a teacher to label; `teacher-dump --augment` does both."""
    config.check()
    needs_teacher_libraries()
    from teacher.augment.run import augment as make_variants

    record = make_variants(config, command_line())
    if record is None:
        return
    if config.json_output:
        console.print_json(record.model_dump(mode="json"))
    else:
        _print_augmentation(record)


@takes(DumpTask, DumpCorpus, by=KIND)
def teacher_dump(config: DumpTask | DumpCorpus) -> None:
    """Write what a teacher says about a task or a corpus, as a logit set."""
    needs_teacher_libraries()
    if isinstance(config, DumpTask):
        from teacher.dump.default_variants import with_default_variants

        config = with_default_variants(config)
    config.check()
    if config.signal == "vectors":
        _dump_vectors(config)
    elif isinstance(config, DumpCorpus):
        _dump_corpus(config)
    else:
        _dump_task(config)


def _dump_task(config: DumpTask) -> None:
    if config.plan:
        from teacher.dump.plan_examples import estimate

        plan = estimate(config)
        if config.augment:
            console.note("every variant that is tried counts as a row; the time to make them is not counted")
        _print_plan(plan, config.json_output)
        return
    from teacher.dump.summary import SPLIT_COLUMNS, split_rows
    from teacher.dump.task import dump_task

    record = dump_task(config, command_line())
    if record is None:
        return
    if config.json_output:
        console.print_json(record.model_dump(mode="json"))
        return
    if record.augmentation:
        _print_augmentation(record.augmentation)
    if record.unlabelled:
        console.print_pairs("unlabelled rows", record.unlabelled.lines())
    root = config.store / record.name
    title = f"{root}: {record.state}, {console.size(record.num_bytes)}"
    console.print_table(SPLIT_COLUMNS, split_rows(record), title=title)
    if record.state == "verified" and record.rows == "examples":
        tell_of_scores(root)


def tell_of_scores(root: Path) -> None:
    """Tells what scores on dev rows are worth: are rows in training, too, and what does a bag of words reach?"""
    from pipeline.sets.reader import open_set

    logit_set = open_set(root)
    _tell_dev_in_train(logit_set)
    _compare_with_words(logit_set)


def _tell_dev_in_train(logit_set: "LogitSet") -> None:
    for row in logit_set.sql("select split, count(*) as n from dev_in_train(examples) group by split order by split"):
        rows = f"{row['n']:,} of {logit_set.record.rows_of(row['split']):,} rows"
        shown = f'`distill sql "from dev_in_train({logit_set.view})"` shows them'
        console.warn(f"{row['split']}: {rows} have the text of a training row, so scores are too high; {shown}")


def _compare_with_words(logit_set: "LogitSet") -> None:
    """Tells what a bag of words reaches on the dev rows, where that takes seconds."""
    from distill.apps.results.bag_of_words import bag_of_words_scores

    for split, scores in bag_of_words_scores(logit_set).items():
        teacher = logit_set.record.scores[split]
        told = ", ".join(f"{name} {value:.4f} (teacher {teacher[name]:.4f})" for name, value in scores.items())
        first = next(iter(scores))
        if teacher[first] > scores[first] or scores[first] == 1:
            console.note(f"{split}: a bag of words, without any teacher, reaches {told}")
        else:
            console.warn(f"{split}: a bag of words does as well as this teacher: {told}; it has little to teach")


def _dump_corpus(config: DumpCorpus) -> None:
    if config.plan:
        from teacher.dump.plan_tokens import estimate_mlm

        _print_plan(estimate_mlm(config), config.json_output)
        return
    from teacher.dump.tokens import dump_mlm

    record = dump_mlm(config, command_line())
    if record is not None:
        print_set(record, config.json_output)


def _dump_vectors(config: DumpTask | DumpCorpus) -> None:
    if config.plan:
        from teacher.dump.plan_sentences import estimate_vectors

        _print_plan(estimate_vectors(config), config.json_output)
        return
    from teacher.dump.sentences import dump_vectors

    record = dump_vectors(config, command_line())
    if record is not None:
        print_set(record, config.json_output)


def _print_augmentation(record: AugmentationRecord) -> None:
    console.print_pairs("variants", record.lines())
    rows = [
        [f"{row.source_row}:{row.variant}", row.origin, " | ".join(row.original), " | ".join(row.text)]
        for row in record.sample
    ]
    console.print_table(["row", "origin", "original", "variant"], rows)


def _print_plan(plan: Any, json_output: bool) -> None:
    if json_output:
        console.print_json(plan.values())
        return
    shown = {
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
    }
    console.print_pairs("plan", shown)


@takes(CheckConfig)
def check(config: CheckConfig) -> None:
    """Ask a set's teacher again about a sample of its rows; exit code 0 if it says what is stored, 1 if not."""
    needs_teacher_libraries()
    from teacher.check import check as check_set

    checked = check_set(config)
    if config.json_output:
        console.print_json(asdict(checked) | {"passed": checked.passed})
    else:
        rows = [
            [name, part.largest, part.mean, *part.fidelity.values()]
            for name, part in (("two runs now", checked.live), ("now and stored", checked.stored))
        ]
        columns = ["", "largest difference", "mean", *(name.replace("_", " ") for name in checked.live.fidelity)]
        console.print_table(columns, rows, title=f"{config.logits}: {checked.rows:,} rows")
        if not checked.same_weights:
            console.warn("the teacher's weights are not those that the set names")
        row = "{}:{}:{}".format(*checked.worst_row)
        verdict = "the teacher says what is stored" if checked.passed else f"it does not say what is stored, see {row}"
        console.note(f"{verdict} (differences up to {checked.tolerance:.2g} are allowed)")
    if not checked.passed:
        raise typer.Exit(1)
