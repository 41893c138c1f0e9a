"""The steps of ``distill quickstart``: split, fine-tune, dump, train, evaluate, report; and a judgement.

Every step is an ordinary `distill` command that is printed, so that a user can repeat it, change it or go on from it.
The test split chooses nothing: teacher and student hold training rows out for that.
"""

import hashlib
import json
import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from distill.apps.app_settings import QuickstartConfig
from distill.apps.quickstart.baseline import Baseline, fit_baseline, has_baseline
from distill.apps.quickstart.look import Look, look_at
from distill.apps.results.systems import bytes_of, read_rows
from distill.apps.steps import run_step
from pipeline import console
from pipeline.errors import ConfigError
from pipeline.files import make_folder, write_atomically, write_text
from pipeline.sets.reader import ExampleSet, open_set

TEST, HELD_OUT = "test", "0.1"
TEST_SHARE = 0.1
STORE = "logits"
SKEWED = 0.6  # from this share of one label on, accuracy hides the others
GOLD = "gold"  # the teacher of a set that has the labels alone


@dataclass(frozen=True)
class Found:
    """What a quickstart came to.

    Attributes:
        look: what the file holds.
        evaluation: of the student's test split, as ``distill evaluate --json`` prints it.
        baseline: the bag of n-grams, or None where there is none for such a task, or scikit-learn is missing.
        sizes: bytes on disk by system.
        judgements: what a user should do about the scores.
        commands: the next commands.
    """

    look: Look
    evaluation: dict[str, Any]
    baseline: Baseline | None
    sizes: dict[str, int]
    judgements: list[str]
    commands: list[str]


def quickstart(config: QuickstartConfig) -> Found:
    """Looks at a file and runs every step; repeated, it goes on from what is finished.

    Raises:
        ConfigError: if a column is not there, or labels of words have no encoder.
        DataError: if the file cannot be read, or its labels are no labels.
        DistillError: if a step fails.
    """
    look, folder, name = look_at(config.file, _texts(config), config.label), config.folder, config.task_name
    if look.type == "token_labels" and not config.has_teacher:
        raise ConfigError(
            "--model-name-or-path none: labels of words cannot be imported. Give an encoder to fine-tune."
        )
    for what, finding in look.findings.items():
        console.note(f"{what}: {finding}")
    make_folder(folder / "data" / name)
    write_text(folder / f"{name}.yaml", _manifest(name, look))
    for split, rows in splits_of(look).items():
        write_atomically(folder / "data" / name / f"{split}.parquet", partial(_write_rows, look, rows))
    _make_set(config, folder, name, look)
    run = "student"
    run_step(folder, "train-student", "--task", name, "--store", STORE, "--held-out", HELD_OUT, "--output-dir", run)
    evaluation = json.loads(run_step(folder, "evaluate", run, "--json"))[TEST]
    run_step(folder, "report", run, "--output", "report.html")
    baseline, sizes = _baseline(folder / STORE / name, look), {"student": bytes_of(folder / run)}
    if config.has_teacher:
        sizes["teacher"] = bytes_of(folder / "teacher")
    judgements = list(judge(look, evaluation, baseline, config.has_teacher))
    return Found(look, evaluation, baseline, sizes, judgements, _next(folder, look))


def _write_rows(look: Look, rows: list[dict[str, Any]], path: Path) -> None:
    pq.write_table(
        pa.Table.from_pylist([{name: row[name] for name in (*look.texts, look.label)} for row in rows]), path
    )


def _texts(config: QuickstartConfig) -> tuple[str, ...]:
    return (config.text,) if config.text2 is None else (config.text, config.text2)


def _manifest(name: str, look: Look) -> str:
    """The task's manifest as YAML, with the user's own names of columns."""
    columns = {f"sentence{number}": text for number, text in enumerate(look.texts, start=1)}
    values: dict[str, Any] = {"name": name, "version": 1, "type": look.type}
    values["columns"] = columns | {"label": look.label}
    if look.labels:
        values["labels"] = list(look.labels)
    if look.score_range is not None:
        values["score_range"] = list(look.score_range)
    values |= {"metrics": list(look.metrics), "splits": {"train": None, TEST: None}}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def splits_of(look: Look) -> dict[str, list[dict[str, Any]]]:
    """Returns rows by split: a tenth of each class for the test, and all copies of a text in one split.

    The order of texts is that of their hashes, so the splits are the same on every machine and in any order of rows.
    """
    groups = defaultdict[tuple[str, ...], list[dict[str, Any]]](list)
    for row in look.rows:
        groups[look.key(row)].append(row)
    strata = defaultdict[str, list[tuple[str, ...]]](list)
    for key, rows in groups.items():
        strata[str(rows[0][look.label]) if look.type == "classification" else ""].append(key)
    tested = set[tuple[str, ...]]()
    for keys in strata.values():
        keys.sort(key=lambda key: hashlib.sha256("\0".join(key).encode("utf-8", "surrogatepass")).digest())
        tested.update(keys[: round(len(keys) * TEST_SHARE) or len(keys) // 2])
    train = [row for key, rows in groups.items() if key not in tested for row in rows]
    return {"train": train, TEST: [row for key, rows in groups.items() if key in tested for row in rows]}


def _make_set(config: QuickstartConfig, folder: Path, name: str, look: Look) -> None:
    """A logit set of a fine-tuned teacher, or of the labels alone."""
    source = ["--manifest", f"{name}.yaml", "--data", "data"]
    if config.has_teacher:
        encoder = Path(config.model_name_or_path)
        start = str(encoder.resolve()) if encoder.is_dir() else config.model_name_or_path
        epochs = ["--num-train-epochs", str(config.num_train_epochs), "--held-out", HELD_OUT]
        run_step(folder, "finetune-teacher", *source, "--model-name-or-path", start, "--output-dir", "teacher", *epochs)
        run_step(folder, "teacher-dump", *source, "--model-name-or-path", "teacher", "--store", STORE)
        return
    write_atomically(folder / "labels.parquet", partial(pq.write_table, pa.Table.from_pylist(_gold_answers(look))))
    run_step(folder, "import", "labels.parquet", *source, "--teacher", GOLD, "--name", name, "--store", STORE)


def _gold_answers(look: Look) -> list[dict[str, Any]]:
    """Gold as the predictions of a teacher. Texts with several labels get their mean."""
    golds = defaultdict[tuple[str, ...], list[Any]](list)
    for row in look.rows:
        golds[tuple(row[name] for name in look.texts)].append(row[look.label])
    return [dict(zip(look.texts, texts, strict=True)) | _answer(look, gold) for texts, gold in golds.items()]


def _answer(look: Look, golds: list[Any]) -> dict[str, Any]:
    if look.type == "regression":
        return {"score": fmean(map(float, golds))}
    held = [set(gold) if isinstance(gold, list) else {gold} for gold in golds]
    return {"probabilities": {name: fmean(name in one for one in held) for name in look.labels}}


def _baseline(root: Path, look: Look) -> Baseline | None:
    logit_set = open_set(root)
    if not isinstance(logit_set, ExampleSet) or not has_baseline(logit_set.record.target):
        return None
    train, test = read_rows(logit_set, "train"), read_rows(logit_set, TEST)
    return fit_baseline(train, test, logit_set.record.target, look.metrics)


def judge(look: Look, evaluation: dict[str, Any], baseline: Baseline | None, has_teacher: bool) -> Iterator[str]:
    """What to do about the scores, in words.

    Args:
        look: what the file holds.
        evaluation: of the test split.
        baseline: the bag of n-grams, if there is one.
        has_teacher: whether the set has more than the labels.
    """
    student, teacher = evaluation[GOLD], evaluation["teacher"]
    for metric in look.metrics:
        if has_teacher and baseline is not None and teacher[metric] < baseline.scores[metric]:
            yield (
                f"The teacher's {metric} is below that of a bag of n-grams ({teacher[metric]:.3f} against "
                f"{baseline.scores[metric]:.3f}). Train it longer (--num-train-epochs), or choose a larger encoder."
            )
        if baseline is not None and student[metric] < baseline.scores[metric]:
            yield (
                f"The student's {metric} is below that of a bag of n-grams ({student[metric]:.3f} against "
                f"{baseline.scores[metric]:.3f}). With so few labels, the bag may be the better choice. "
                f"Unlabelled text "
                "(teacher-dump --unlabelled) helps students most."
            )
    first = look.metrics[0]
    majority = evaluation.get("majority")
    if has_teacher and majority is not None and teacher == majority:
        yield "The teacher gives every row the same label. Train it longer (--num-train-epochs), or change the encoder."
    if has_teacher and student[first] > teacher[first]:
        yield f"The student's {first} is above its teacher's. Improve the teacher before you add text."
    if look.largest_share >= SKEWED:
        yield f"{look.largest_share:.0%} of the rows have one label: judge by macro_f1, not by accuracy."


def _next(folder: Path, look: Look) -> list[str]:
    """The three commands that users want next."""
    texts = shlex.join(["a text"] if len(look.texts) == 1 else ["a text", "another"])
    return [
        f"distill predict {shlex.quote(str(folder / 'student'))} {texts}",
        f"distill serve {shlex.quote(str(folder / 'student'))}",
        "distill teacher-dump --help   # --unlabelled FILE: more text for the teacher to label",
    ]
