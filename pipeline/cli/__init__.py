"""The command line: parses and calls, nothing else. torch and its friends are imported inside the commands."""

import typer

from pipeline.cli import (
    bench,
    corpora,
    demo,
    diff,
    imported,
    report,
    results,
    sharing,
    sql,
    student,
    tasks,
    teacher,
    tokens,
)

app = typer.Typer(
    name="distill",
    help="Distil BERT offline: write a teacher's logits once, train tiny students from them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(tasks.app, name="tasks")
app.add_typer(corpora.app, name="corpora")
app.command("finetune-teacher")(teacher.finetune_teacher)
app.command("augment")(teacher.augment)
app.command("teacher-dump")(teacher.teacher_dump)
app.command("import")(imported.import_answers)
app.command("check")(teacher.check)
app.command("recode")(tokens.recode)
app.command("budget")(tokens.budget)
app.command("verify")(sharing.verify)
app.command("card")(sharing.card)
app.command("diff")(diff.diff)
app.command("push")(sharing.push)
app.command("pull")(sharing.pull)
app.command("join")(sharing.join)
app.command("index")(sql.index)
app.command("sql")(sql.sql)
app.command("pretrain-student")(student.pretrain_student)
app.command("train-student")(student.train_student)
app.command("sweep")(student.sweep)
app.command("evaluate")(student.evaluate)
app.command("reproduce")(student.reproduce)
app.command("describe")(student.describe)
app.command("export")(student.export)
app.command("predict")(student.predict)
app.command("report")(report.report)
app.command("results")(results.results)
app.command("bench")(bench.bench)
app.command("demo")(demo.demo)
