"""The steps of ``distill quickstart``: split, fine-tune, dump, train, evaluate, report; and a judgement.

Every step is an ordinary `distill` command that is printed, so that a user can repeat it, change it or go on from it.
The test split chooses nothing: teacher and student hold training rows out for that.
"""

import hashlib
import importlib.util
import json
import shlex
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from tokenizers import Tokenizer

from distill.apps.app_settings import OwnFile
from distill.apps.baseline import NAME as BASELINE
from distill.apps.cells import run_command
from distill.apps.quickstart.inspect_rows import FEWEST_ROWS, FILE_ROW, Look, counted, look_at, with_scores_of
from distill.apps.systems import WEIGHT_FILES, bytes_of
from distill.apps.word_baseline import NAME as WORD_BASELINE
from pipeline import console
from pipeline.errors import ConfigError, DataError
from pipeline.file_names import FINETUNE_RECORD, RUN_RECORD, TOKENIZER_FILE
from pipeline.files import make_folder, write_atomically, write_text
from pipeline.record_file import read_work_record
from pipeline.sets.record_parts import GOLD
from pipeline.sources import load_source, load_word_source
from pipeline.sources.row_files import open_rows
from pipeline.tasks.task import Task, parse_manifest
from pipeline.training.batches import HELD_OUT as HELD_OUT_SPLIT
from pipeline.training.batches import filled

TEST, HELD_OUT = "test", "0.1"
TEST_SHARE = 0.1
STORE, TEACHER = "logits", "teacher"
MASKS = ("[MASK]", "<mask>")  # of BERT, and of RoBERTa
EPOCHS, MOST_EPOCHS = 3, 20  # of the teacher
# MiniLM-L6 on 400 messages in six skewed classes predicted two labels after 24 steps.
FEWEST_STEPS, ROWS_PER_STEP = 200, 32
LOGITS_SHARE = 1 / 3  # of the time of a training step, whose gradients take twice as long
PAGE = "report.html"
LABELS = "labels.parquet"


@dataclass(frozen=True)
class Found:
    """What a quickstart came to.

    Attributes:
        look: what the file holds.
        num_tested: the rows of the test split that were scored.
        scores: on the test split, of the student, its teacher and a bag of n-grams, by system.
        sizes: bytes of the weights on disk by system, of n-grams with their vocabulary.
        judgements: what a user should do about the scores.
        commands: the next commands.
    """

    look: Look
    num_tested: int
    scores: dict[str, dict[str, float]]
    sizes: dict[str, int]
    judgements: list[str]
    commands: list[str]


def quickstart(config: OwnFile, folder: Path) -> Found:
    """Looks at a file and runs every step; repeated, it goes on from what is finished.

    Raises:
        ConfigError: if a column is not there.
        DataError: if a file cannot be read, or its labels are no labels.
        DistillError: if a step fails.
    """
    look, manifest, splits = _look_and_split(config)
    _refuse_other_encoder(config, folder)
    name = config.task_name
    for what, finding in look.findings.items():
        console.note(f"{what}: {finding}")
    if not config.has_teacher:
        console.note("teacher: none. The student learns from the labels alone, and no further text can be labelled")
    with_page = _can_have(PAGE, "matplotlib", "report")
    with_baseline = _can_have("comparison with a baseline", "sklearn", "sklearn")
    tables = {folder / "data" / name / f"{split}.parquet": _table(look, rows) for split, rows in splits.items()}
    _refuse_other_rows(folder, folder / f"{name}.yaml", manifest, tables)
    make_folder(folder / "data" / name)
    # The commands below are repeatable in this folder.
    console.note(f"$ cd {shlex.quote(str(folder))}")
    write_text(folder / f"{name}.yaml", manifest)
    for path, table in tables.items():
        write_atomically(path, partial(pq.write_table, table))
    source = ["--manifest", f"{name}.yaml", "--data", "data"]
    teacher = _teach(config, folder, look, source) if config.has_teacher else None
    if teacher is None:
        _import_gold(config, folder, look, source, [row for rows in splits.values() for row in rows])
    run = _train(config, folder, look)
    evaluation = json.loads(run_command(["evaluate", run, *["--baseline"] * with_baseline, "--json"], folder))[TEST]
    if with_page:
        run_command(["report", run, "--output", PAGE], folder)
    size = read_work_record(folder / run / RUN_RECORD)["result"]["size"]
    scores, sizes = {"student": evaluation["decided"] or evaluation["gold"]}, {"student": size["bytes"]}
    if teacher is not None:
        scores["teacher"], sizes["teacher"] = evaluation["teacher"], bytes_of(folder / teacher, WEIGHT_FILES)
    if "baseline" in evaluation:
        name = WORD_BASELINE if look.type == "token_labels" else BASELINE
        scores[name], sizes[name] = evaluation["baseline"]["scores"], evaluation["baseline"]["bytes"]
    num_tested = evaluation["rows"]["scored"]
    return Found(look, num_tested, scores, sizes, evaluation["judgements"], next_commands(config, folder, look, run))


def _encoder(config: OwnFile) -> str:
    """Returns the encoder as a step names it, which runs in another folder."""
    folder = Path(config.model_name_or_path)
    return str(folder.resolve()) if folder.is_dir() else config.model_name_or_path


def _refuse_other_encoder(config: OwnFile, folder: Path) -> None:
    """Checks that a folder does not have the steps of another encoder, whose files would be replaced.

    Raises:
        ConfigError: if it does.
    """
    record, used = folder / TEACHER / FINETUNE_RECORD, None
    if record.is_file():
        words = shlex.split(read_work_record(record)["command"])
        used = words[words.index("--model-name-or-path") + 1]
    elif (folder / LABELS).is_file():
        used = "none"
    if used not in (None, _encoder(config)):
        raise ConfigError(
            f"--output-dir {folder}: has a student of {used}, not of {_encoder(config)}. Choose another folder."
        )


def _refuse_other_rows(folder: Path, manifest_path: Path, manifest: str, tables: Mapping[Path, pa.Table]) -> None:
    """Checks that a folder does not have the steps of other rows or columns, whose files would be replaced.

    Raises:
        ConfigError: if it does.
    """
    is_other = manifest_path.is_file() and manifest_path.read_text(encoding="utf-8") != manifest
    there = {path: pq.read_table(path) for path in tables if path.is_file()}
    # Compared as text, where a number that is not a number is equal to itself.
    if is_other or any(str(table.to_pylist()) != str(tables[path].to_pylist()) for path, table in there.items()):
        raise ConfigError(
            f"--output-dir {folder}: has a student of other rows or columns. Choose another folder, or delete this one."
        )


def _look_and_split(config: OwnFile) -> tuple[Look, str, dict[str, list[dict[str, Any]]]]:
    """Checks everything that the user gives before anything is written. Returns the look, the manifest, the splits."""
    look = look_at(config.file, config.texts, config.label, config.columns, config.group)
    if config.test is not None:
        look = with_scores_of(look, config.test)
    manifest = _manifest(config.task_name, look)
    tested, num_unfit = (None, 0) if config.test is None else rows_to_test(look, manifest, config.test)
    if config.unlabelled is not None:
        if look.type == "token_labels":
            raise ConfigError("--unlabelled: teachers label no more sentences of labelled words. Remove the flag.")
        open_rows(config.unlabelled)
    splits = splits_of(look, tested)
    refuse_too_few(config, look, splits)
    return look if config.test is None else _with_left_out(look, splits, num_unfit), manifest, splits


def _train(config: OwnFile, folder: Path, look: Look) -> str:
    """Trains the student. Returns its folder, which has the name of the task, by which servers and reports show it."""
    run = f"runs/{config.task_name}"
    command = ["train-student", "--task", config.task_name, "--store", STORE, *_held_out(config)]
    # Students of labelled words have no n-grams.
    command += ["--ngrams"] if look.type != "token_labels" else []
    command += ["--class-weights", "balanced"] if look.is_skewed else []
    run_command([*command, "--output-dir", run], folder)
    return run


def _can_have(what: str, module: str, extra: str) -> bool:
    """Returns whether a module that only an extra brings is there. Notes what is left out without it."""
    is_there = importlib.util.find_spec(module) is not None
    if not is_there:
        console.note(f"{what}: left out, because it needs {module}: pip install 'distill-offline[{extra}]'")
    return is_there


def _table(look: Look, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in (*look.texts, look.label, *look.kept)} for row in rows]
    )


def _manifest(name: str, look: Look) -> str:
    """The task's manifest as YAML, with the user's own names of columns."""
    columns = {f"sentence{number}": text for number, text in enumerate(look.texts, start=1)}
    values: dict[str, Any] = {"name": name, "version": 1, "type": look.type}
    values["columns"] = columns | {"label": look.label, "keep": list(look.kept)}
    if look.labels:
        values["labels"] = list(look.labels)
    if look.score_range is not None:
        values["score_range"] = list(look.score_range)
    values |= {"metrics": list(look.metrics), "splits": {"train": None, TEST: None}}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def rows_to_test(look: Look, manifest: str, file: Path) -> tuple[list[dict[str, Any]], int]:
    """Reads a test file of the user's own, whose columns and labels are those of the training rows.

    Returns: Its rows with text and gold, and the number of the others.

    Raises:
        DataError: if a column is missing, a label is unknown, or no row has text and gold.
    """
    task = parse_manifest(Task, manifest, str(file))
    # Its rows are numbered here, and other columns of it may be missing.
    task = task.model_copy(update={"columns": task.columns.model_copy(update={"keep": None})})
    load = load_word_source if look.type == "token_labels" else load_source
    gold = "score" if look.type == "regression" else "label"
    found, rows = [], load(task, file, (TEST,)).splits[TEST].to_pylist()
    for row in rows:
        texts = [row[f"sentence{number}"] for number in range(1, len(look.texts) + 1)]
        if all(texts) and row[gold] is not None:
            own = {look.label: _as_named(look, row[gold]), FILE_ROW: row["source_row"]}
            found.append(dict(zip(look.texts, texts, strict=True)) | own)
    if not found:
        raise DataError(f"--test {file}: no row has text and gold. Fill the column {look.label!r}.")
    return found, len(rows) - len(found)


def _as_named(look: Look, gold: Any) -> Any:
    """Gold with the names of labels in place of their numbers."""
    if isinstance(gold, list):
        return [look.labels[number] for number in gold]
    return gold if look.type == "regression" else look.labels[gold]


def refuse_too_few(config: OwnFile, look: Look, splits: Mapping[str, list[dict[str, Any]]]) -> None:
    """Checks the rows that remain for training and for the test. `look_at` checked the file before it was split.

    Raises:
        DataError: if too few rows or labels remain.
    """
    train, labels = splits["train"], look.label
    advice = "Leave --test out, and a tenth is kept for the test."
    if config.test is not None and not train:
        # With all of its rows taken, the test file is most likely the training file itself.
        taken = f"holds all {len(set(look.keys(look.rows))):,} texts of {config.file}, so none is left to train on"
        raise DataError(f"--test {config.test}: {taken}. {advice}")
    if not splits[TEST]:
        raise DataError(f"{config.file}: has too few different texts for test rows of its own. Give some with --test.")
    place = f"{config.file}: without the rows of {config.test or 'the test'}"
    if len(train) < FEWEST_ROWS:
        raise DataError(f"{place}, {counted(len(train), 'row')} are left. A student needs at least {FEWEST_ROWS}.")
    known = {name for row in train for name in (row[labels] if isinstance(row[labels], list) else [row[labels]])}
    if len(known) < 2:
        raise DataError(f"{place}, all have the label {', '.join(map(str, known))!r}. A student needs at least two.")


def _with_left_out(look: Look, splits: Mapping[str, list[dict[str, Any]]], num_unfit: int) -> Look:
    """The look with the numbers of rows that the test file takes out of training, and that are left out of it."""
    rows, count = len(look.rows), len(look.rows) - len(splits["train"])
    found = {"in the test file, too": f"{counted(count, 'row')} or near copies, left out of training"} if count else {}
    if count > rows / 2:
        more = f"{count:,} of {rows:,} rows, left out of training: only {rows - count:,} rows are left"
        found = {"MOST TRAINING ROWS ARE IN THE TEST FILE": more}
    if num_unfit:
        found["left out of the test"] = f"{counted(num_unfit, 'row')} without text or label"
    return replace(look, findings=look.findings | found)


def splits_of(look: Look, tested: list[dict[str, Any]] | None = None) -> dict[str, list[dict[str, Any]]]:
    """Returns rows by split: a tenth of each class for the test, and each group of rows in one split.

    The order of groups is that of their texts' hashes, so the splits are the same on every machine and in any order of
    rows.

    Args:
        look: what the file holds.
        tested: the test rows, if the user has them. Training rows like them are left out.
    """
    if tested is not None:
        return {"train": look.rows_unlike(tested), TEST: tested}
    keys = look.keys(look.rows)
    groups = defaultdict[int, list[tuple[bytes, dict[str, Any]]]](list)
    for row, key, number in zip(look.rows, keys, look.group_N.tolist(), strict=True):
        groups[number].append((hashlib.sha256("\0".join(key).encode("utf-8", "surrogatepass")).digest(), row))
    strata = defaultdict[str, list[tuple[bytes, int]]](list)
    for number, rows in groups.items():
        first, row = min(rows, key=itemgetter(0))
        strata[str(row[look.label]) if look.type == "classification" else ""].append((first, number))
    splits: dict[str, list[dict[str, Any]]] = {"train": [], TEST: []}
    for stratum in strata.values():
        numbers = [number for _, number in sorted(stratum)]
        sizes = [len(groups[number]) for number in numbers]
        count = round(sum(sizes) * TEST_SHARE) or sum(sizes) // 2
        # The only group of a class is for training.
        is_tested = filled(sizes, count) if len(sizes) > 1 else [False]
        for number, tested_too in zip(numbers, is_tested, strict=True):
            splits[TEST if tested_too else "train"] += [row for _, row in groups[number]]
    return splits


def _teach(config: OwnFile, folder: Path, look: Look, source: Sequence[str]) -> str:
    """Fine-tunes the teacher and stores its logits. Returns its folder."""
    is_new, start = not (folder / TEACHER).exists(), time.perf_counter()
    teacher = _fine_tune(config, folder, look, source)
    record = read_work_record(folder / teacher / FINETUNE_RECORD)
    per_epoch = (time.perf_counter() - start) / len(record["result"]["history"])
    # A resumed training takes less than its time.
    _dump(config, folder, look, source, teacher, per_epoch * LOGITS_SHARE if is_new else None)
    return teacher


def _fine_tune(config: OwnFile, folder: Path, look: Look, source: Sequence[str]) -> str:
    """Fine-tunes the teacher, for twice as many epochs if it misses a label. Returns its folder."""
    command = ["finetune-teacher", *source, "--model-name-or-path", _encoder(config), *_held_out(config)]
    epochs = config.num_train_epochs or usual_epochs(look)
    run_command([*command, "--output-dir", TEACHER, "--num-train-epochs", str(epochs)], folder)
    best = read_work_record(folder / TEACHER / FINETUNE_RECORD)["result"]["best"]["metrics"][HELD_OUT_SPLIT]
    num_missing = int(best.get("labels_in_gold", 0) - best.get("labels_predicted", 0))
    if num_missing <= 0 or config.num_train_epochs is not None:
        return TEACHER
    again = f"{TEACHER}-{2 * epochs}-epochs"
    console.note(f"teacher: never predicts {counted(num_missing, 'label')}, so {2 * epochs} epochs are tried")
    run_command([*command, "--output-dir", again, "--num-train-epochs", str(2 * epochs)], folder)
    return again


def _dump(
    config: OwnFile, folder: Path, look: Look, source: Sequence[str], teacher: str, seconds: float | None
) -> None:
    """Stores the teacher's logits for all rows, for their variants, and for more text.

    Args:
        config: the file and its flags.
        folder: the folder of all steps.
        look: what the file holds.
        source: the flags that name manifest and data.
        teacher: the teacher's folder.
        seconds: about how long one variant of each row takes, None if unknown.
    """
    command = ["teacher-dump", *source, "--model-name-or-path", teacher, "--name", config.task_name, "--store", STORE]
    # Labels of words belong to their rows alone.
    if config.num_variants and look.type != "token_labels":
        takes = "" if seconds is None else f", in about {max(1, round(config.num_variants * seconds / 60))} min"
        console.note(
            f"variants: the teacher also labels up to {config.num_variants * len(look.rows):,} variants of the rows, "
            f"{config.num_variants} for each{takes}. --num-variants 0 leaves them out"
        )
        command += ["--augment", "mask-pos", "--num-variants", str(config.num_variants)]
        tokenizer = Tokenizer.from_file(str(folder / teacher / TOKENIZER_FILE))
        known = [mask for mask in MASKS if tokenizer.token_to_id(mask) is not None]
        command += ["--mask-token", (known or MASKS)[0]]
        if not _can_have("variants with other words of the same part of speech", "textblob", "augment"):
            command += ["--pos-probability", "0"]
    if config.unlabelled is not None:
        command += ["--unlabelled", str(config.unlabelled.resolve())]
    run_command(command, folder)


def _import_gold(
    config: OwnFile, folder: Path, look: Look, source: Sequence[str], rows: Sequence[dict[str, Any]]
) -> None:
    """Makes a logit set of the labels of all rows alone, those of the test included."""
    answers = pa.Table.from_pylist(_gold_answers(look, rows))
    write_atomically(folder / LABELS, partial(pq.write_table, answers))
    name = ["--name", config.task_name, "--store", STORE]
    run_command(["import", LABELS, *source, "--teacher", GOLD, *name], folder)


def _held_out(config: OwnFile) -> list[str]:
    """The flags with which a teacher and its student hold out the same rows."""
    return ["--held-out", HELD_OUT, *(["--group", config.group] if config.group is not None else [])]


def usual_epochs(look: Look) -> int:
    """Returns 3 epochs, or more for few rows, whose three epochs are too few steps to predict every label."""
    return max(EPOCHS, min(MOST_EPOCHS, ceil(FEWEST_STEPS * ROWS_PER_STEP / len(look.rows))))


def _gold_answers(look: Look, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gold as the predictions of a teacher. Texts with several labels get their mean."""
    copies = defaultdict[str, list[dict[str, Any]]](list)
    for row in rows:
        copies[json.dumps([row[name] for name in look.texts])].append(row)
    return [
        {name: same[0][name] for name in look.texts} | _answer(look, [row[look.label] for row in same])
        for same in copies.values()
    ]


def _answer(look: Look, golds: list[Any]) -> dict[str, Any]:
    if look.type == "regression":
        return {"score": fmean(map(float, golds))}
    if look.type == "token_labels":
        by_word = zip(*golds, strict=True)
        return {"probabilities": [[fmean(name == one for one in word) for name in look.labels] for word in by_word]}
    held = [set(gold) if isinstance(gold, list) else {gold} for gold in golds]
    return {"probabilities": {name: fmean(name in one for one in held) for name in look.labels}}


def next_commands(config: OwnFile, folder: Path, look: Look, run: str) -> list[str]:
    """Returns the commands that users want next. The last one is likely to raise the student's score."""
    student = shlex.quote(str(folder / run))
    texts = shlex.join(["a text"] if len(look.texts) == 1 else ["a text", "another"])
    columns = [part for flag, name in zip(("--text", "--text2"), look.texts, strict=False) for part in (flag, name)]
    again = ["distill", "quickstart", str(config.file), *columns, "--label", look.label]
    again += ["--test", str(config.test)] if config.test is not None else []
    again += ["--group", config.group] if config.group is not None else []
    if not config.has_teacher:
        flags, why = f"{folder}-teacher --model-name-or-path ENCODER", "fine-tune a teacher first"
    elif look.type == "token_labels" or config.unlabelled is not None:
        flags, why = f"{folder}-larger --model-name-or-path ENCODER", "with a larger encoder"
    else:
        encoder = shlex.quote(config.model_name_or_path)
        flags, why = f"{folder}-more --model-name-or-path {encoder} --unlabelled FILE", "with more text"
    better = f"{shlex.join(again)} --output-dir {flags}   # {why}"
    return [f"distill predict {student} {texts}", f"distill serve {student}", better]
