"""``distill export``: writes a student in other formats or with smaller tables, and measures its accuracy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import save

from pipeline import console
from pipeline.arrays import Ints
from pipeline.errors import ConfigError, DataError, DistillError, FingerprintMismatchError, IntegrityError, raise_all
from pipeline.file_names import RUN_RECORD, TOKENIZER_FILE, WEIGHTS_FILE
from pipeline.files import make_folder, remove_temporaries, sha256
from pipeline.query.mixture import open_sets
from pipeline.record_file import Record, read_work_record, write_record
from pipeline.text.tokenizer import load_tokenizer
from pipeline.training.run_record import text_columns
from student.data import as_read, load_chosen
from student.encoders.matrices import MatrixEncoder, matrix_encoder
from student.evaluate import Evaluation, dev_examples, open_evaluated
from student.export.engine_file import METADATA, engine_problems, engine_tensors, write_engine_file
from student.export.html_file import stored_student, write_html
from student.export.int8_rounding import CoarseRounding
from student.export.onnx_file import check_exportable, write_onnx
from student.lessons import KINDS
from student.model.card import CARD_FILE, card_text
from student.model.student import Student, TaskStudent, bytes_on_disk, load_student, num_bytes, num_parameters
from student.model.tables import SmallDtype, SmallTable, TokenTable
from student.model.weights import encoder_checksum
from student.predict.multi_task import tasks_in
from student.run_settings import ExportSettings
from student.trained_sets import trained_sets
from student.vocabulary import as_run_reads

T = TypeVar("T", bound=TaskStudent)


def export(config: ExportSettings) -> dict[str, Any]:
    """Writes the files that the flags name, and measures them on the dev splits of the student's logit set.

    Returns: ``bytes`` of the weights, or of the HTML file, and ``scores`` per split and metric, each ``before`` and
        ``after``. Without a set, there are no scores. ``onnx``: the file's ``bytes`` and the largest ``difference`` of
        a logit from torch.

    Raises:
        ConfigError: if the flags name nothing to write or do not fit the run.
        FingerprintMismatchError: if the output folder contains something else.
        IntegrityError: if the run is damaged, or the ONNX file's logits differ from the student's.
    """
    tasks = tasks_in(config.run)
    if tasks:
        return _export_tasks(config, tasks)
    student, record = load_student(config.run), read_work_record(config.run / RUN_RECORD)
    raise_all(ConfigError, "wrong flags", _problems(config, student, record))
    if config.onnx is not None:
        check_exportable(student)
    if config.html is not None:
        return _export_html(config.html, config, student, record)
    if config.file is not None:
        name = student.config.task
        return _export_file(config.file, config, {name: student}, {name: config.run})
    tables = config.tables or student.config.table_dtype
    record["exported"] = {"from_sha256": sha256(config.run / WEIGHTS_FILE), "tables": tables}
    # The folder is checked before the evaluation, which takes minutes on a large dev split.
    if config.output_dir is not None:
        _check_folder(config.output_dir, record)
    # Scores before and after come from the same rows, so their difference is the effect of rounding alone.
    exported = student
    if tables != "float32" and tables != student.config.table_dtype:
        exported = with_small_tables(student, tables)
    rows = _dev_rows(config, student, record)
    scores, after = _scores(student, exported, rows)
    before = bytes_on_disk(student, config.run)
    result: dict[str, Any] = {"scores": scores}
    result["bytes"] = {"before": before, "after": before if exported is student else num_bytes(exported)}
    if config.onnx is not None:
        make_folder(config.onnx.parent)
        difference = write_onnx(exported, config.onnx)
        result["onnx"] = {"bytes": config.onnx.stat().st_size, "difference": difference}
    if config.output_dir is not None:
        # The exported run reports the scores of its own weights and not those of the original.
        record["result"]["evaluation"] = after
        record["result"]["size"] = record["result"].get("size", {}) | {"bytes": num_bytes(exported)}
        _write_folder(exported, record, config.output_dir)
    return result


def _export_tasks(config: ExportSettings, tasks: Sequence[str]) -> dict[str, Any]:
    """Writes the students of several tasks as one file.

    Raises:
        ConfigError: for a format of one student, and if they do not share an encoder.
    """
    folders = {task: config.run / task for task in tasks}
    if config.file is None:
        choice = " or ".join(map(str, folders.values()))
        raise ConfigError(f"{config.run}: students of several tasks are exported by --file alone. Or give {choice}")
    record = read_work_record(config.run / RUN_RECORD)
    students = {task: load_student(folder) for task, folder in folders.items()}
    raise_all(ConfigError, "wrong flags", _problems(config, next(iter(students.values())), record))
    if len({encoder_checksum(folder) for folder in folders.values()}) > 1:
        raise ConfigError(f"--file: the students of {config.run} have different encoders. Export each folder")
    return _export_file(config.file, config, students, folders)


def _export_file(
    path: Path, config: ExportSettings, students: Mapping[str, TaskStudent], folders: Mapping[str, Path]
) -> dict[str, Any]:
    first = next(iter(students))
    tokenizer = load_tokenizer(folders[first] / TOKENIZER_FILE, students[first].config.tokenizer_sha256)
    placed = {task: (one, folders[task]) for task, one in students.items()}
    write_engine_file(placed, tokenizer, path, config.table_dtype, config.head_dtype or "float32")
    # The encoder is counted once, as in the file.
    before = bytes_on_disk(students[first], folders[first])
    before += sum((folders[task] / WEIGHTS_FILE).stat().st_size for task in students if task != first)
    return {"scores": {}, "bytes": {"before": before, "after": path.stat().st_size}}


def _export_html(path: Path, config: ExportSettings, student: TaskStudent, record: Record) -> dict[str, Any]:
    tokenizer = load_tokenizer(config.run / TOKENIZER_FILE, student.config.tokenizer_sha256)
    # What the engine cannot compute is reported before the training rows are read.
    raise_all(ConfigError, "--html", engine_problems(student, tokenizer))
    if not isinstance(student, Student):
        raise ConfigError("--html: students of labelled words are not supported. Use --file or --onnx")
    make_folder(path.parent)
    rows = _dev_rows(config, student, record)
    rounding = CoarseRounding(_occurrences(config, student, record))
    placed = {student.config.task: (student, config.run)}
    tensors, metadata = engine_tensors(placed, tokenizer, "int8", "int8", rounding)
    # With one key, because safetensors writes several in any order.
    content = save(tensors, {METADATA: metadata[METADATA]})
    write_html(content, config.run.absolute().name, path, text_columns(config.run) or ())
    scores, _ = _scores(student, stored_student(student, tensors), rows)
    return {
        "scores": scores,
        "bytes": {"before": bytes_on_disk(student, config.run), "after": path.stat().st_size},
    }


def _occurrences(config: ExportSettings, student: Student, record: Record) -> Ints | None:
    """Returns the number of occurrences of each token in the training rows [V], or None if their set is gone."""
    # Counts decide how coarsely a token's row may be rounded. Without the set, all rows are rounded alike.
    settings = record["settings"]
    try:
        stored = open_sets(trained_sets(record, config.store), settings.get("mix"))
        logit_set = as_run_reads(stored, config.run, student.config)
        examples = as_read(load_chosen(logit_set, settings["query"]), student.config)
    except DistillError as error:
        console.warn(
            f"rare tokens are stored as exactly as frequent ones, so the file is larger or less accurate: {error}"
        )
        return None
    tokens = np.concatenate([part.flat for part in examples.sequences])
    return np.bincount(tokens, minlength=student.config.num_tokens)


def _scores(
    student: TaskStudent, exported: TaskStudent, rows: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Evaluation]]:
    """Returns the metrics per split before and after an export, and the evaluation of the exported student.

    The metrics afterwards have their 95 % interval, and the number of scored rows.
    """
    kind = KINDS[student.config.rows]
    before = after = {split: kind.evaluate_split(student, part) for split, part in rows.items()}
    # A pure ONNX export changes no number, so a second evaluation would repeat the first.
    if exported is not student:
        after = {split: kind.evaluate_split(exported, part) for split, part in rows.items()}
    return {
        split: {
            name: {
                "before": value,
                "after": after[split]["gold"][name],
                "after_interval": after[split]["interval"].get(name),
                "rows": e["rows"]["scored"],
            }
            for name, value in e["gold"].items()
        }
        for split, e in before.items()
    }, after


@torch.no_grad()
def with_small_tables(student: T, dtype: SmallDtype) -> T:
    """Returns the same student with the used rows of its tables stored as ``dtype``, for inference only.

    Raises:
        ConfigError: if a number is too large for it.
    """
    # Neutral rows need no storage: all of them share the padding's row.
    used_R, encoder = student.encoder.used_ids(), matrix_encoder(student.encoder)
    # Small tables are stored as they are: rounding them again would change them.
    smaller = {"table_dtype": dtype, "used_rows": len(used_R), "weights": "float32"}
    small = type(student)(student.config.model_copy(update=smaller))
    small.head.load_state_dict(student.head.state_dict())
    small.ngrams = student.ngrams
    small_encoder = matrix_encoder(small.encoder)
    assert small_encoder.rows is not None
    small_encoder.rows.set_tokens(used_R)
    for part, small_part in zip(encoder.parts(), small_encoder.parts(), strict=True):
        _fill(small_part.table, part.table.weight[used_R], dtype)
    if encoder.bigrams is not None and small_encoder.bigrams is not None:
        small_encoder.bigrams.set_pairs(encoder.bigrams.pairs_K2)
        _fill(small_encoder.bigrams.table, encoder.bigrams.table.weight, dtype)
    small.companions = dict(student.companions)
    return small.eval()


def _fill(table: TokenTable, weight_RF: torch.Tensor, dtype: SmallDtype) -> None:
    assert isinstance(table, SmallTable)
    table.fill(weight_RF)
    # float16 overflows above 65,504, and an infinite row would turn every answer into NaN.
    if not table.residual_RF.isfinite().all():
        raise ConfigError(f"--tables {dtype}: the tables contain numbers beyond its range. Use int8.")


def _problems(config: ExportSettings, student: TaskStudent, record: Record) -> list[str]:
    problems = []
    if record["state"] != "finished":
        problems.append(f"{config.run}: not finished. Repeat its command first: {record['command']}")
    others = (config.onnx, config.html, config.output_dir)
    if all(path is None for path in (config.file, *others)):
        problems.append(
            "nothing to write: give --file FILE, --onnx FILE, --html FILE, or --output-dir FOLDER with --tables"
        )
    if config.file is not None and any(value is not None for value in (*others, config.tables)):
        problems.append("--file: uses --table-dtype and --head-dtype. Remove --tables, --onnx, --html and --output-dir")
    if config.file is None and (config.table_dtype or config.head_dtype):
        problems.append("--table-dtype and --head-dtype: apply only to --file. Remove them, or add --file FILE")
    if config.html is not None and (config.onnx is not None or config.output_dir is not None or config.tables):
        problems.append("--html: has its own format of tables. Remove --tables, --onnx and --output-dir")
    if config.tables and not isinstance(student.encoder, MatrixEncoder):
        problems.append(f"--tables: does not support --embedding {student.config.embedding}. --onnx may support it")
    stored, wanted = student.config.table_dtype, config.tables or student.config.table_dtype
    if wanted != stored != "float32":
        problems.append(f"--tables {wanted}: the tables of {config.run} are already stored as {stored}")
    elif config.output_dir is not None and wanted == stored:
        problems.append(
            f"--output-dir: would be a copy, because the tables are {stored}. Choose --tables float16 or int8"
        )
    return problems


def _check_folder(folder: Path, record: Record) -> None:
    path = folder / RUN_RECORD
    exported = read_work_record(path).get("exported") if path.exists() else None
    # Repeating the same export may overwrite its own output. Any other student is left alone.
    if (path.exists() or (folder / WEIGHTS_FILE).exists()) and exported != record["exported"]:
        raise FingerprintMismatchError(f"--output-dir {folder}: contains another student. Choose another folder.")


def _dev_rows(config: ExportSettings, student: TaskStudent, record: Record) -> dict[str, Any]:
    try:
        return dev_examples(
            config.run, student.config, open_evaluated(KINDS[student.config.rows], record, config.set, config.store)
        )
    # The set may be gone, and an export works without it. A set that the user names must exist.
    except (DataError, IntegrityError, FingerprintMismatchError) as error:
        if config.set is not None:
            raise
        console.warn(f"the scores are not measured: {error}")
        return {}


def _write_folder(student: TaskStudent, record: Record, folder: Path) -> None:
    make_folder(folder)
    remove_temporaries(folder)
    # The record is written first, so that a repeated command recognises the folder of a killed export as its own.
    write_record(folder / RUN_RECORD, record)
    card = card_text(student.config, num_parameters(student), num_bytes(student), record)
    student.companions[CARD_FILE] = card.encode()
    student.save_pretrained(folder)
