"""Students of every kind of teacher in their own vocabulary, from the dump to the engine's file and the HTML file."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save
from transformers import AutoModelForSequenceClassification

from pipeline.file_names import RUN_RECORD, STUDENT_FILE
from pipeline.record_file import read_work_record
from pipeline.sets.kinds.examples import ExampleSet
from student.export.engine_file import METADATA, engine_tensors
from student.export.html_file import stored_student, write_html
from student.export.int8_rounding import CoarseRounding
from student.model.config_file import read_task_config
from student.predict.predictor import Predictor
from tests.helpers.commands import invoke
from tests.helpers.encoders import write_encoder
from tests.helpers.engine import folder_by_torch, torch_predictor
from tests.helpers.node import PROGRAM, running_node

STUDENT = ("--matrix-size", 3, "--vector-size", 5, "--hidden-size", 8, "--num-train-epochs", 1)
FAMILIES = ("RoBERTa", "ModernBERT", "DeBERTa-v3", "XLM-R", "ELECTRA", "ALBERT")


def dumped(family: str, work: Path, folder: Path) -> Path:
    """Dumps the logits of a tiny random teacher of pairs. Returns the set."""
    texts = (work / "sentences.txt").read_text().splitlines()
    write_encoder(family, AutoModelForSequenceClassification, texts, folder / "teacher", num_labels=2)
    command: tuple[object, ...] = ("--manifest", work / "roles.yaml", "--data", work / "data", "--store", folder)
    command += ("--model-name-or-path", folder / "teacher", "--max-seq-length", 48, "--name", "roles")
    result = invoke("teacher-dump", *command, "--augment", "none", "--no-token-vectors")
    assert result.exit_code == 0, result.output
    return folder / "roles"


def answered(work: Path, folder: Path) -> Path:
    """Imports the answers of a teacher without a tokenizer, as those of an LLM. Returns the set."""
    source = ("--manifest", work / "roles.yaml", "--data", work / "data", "--store", folder)
    rows = [{"split": "train", "source_row": row, "logits": [row % 3, 1]} for row in range(90)]
    (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = invoke("import", folder / "answers.jsonl", *source, "--teacher", "llm", "--name", "roles")
    assert result.exit_code == 0, result.output
    return folder / "roles"


def written_page(predictor: Any, page: Path) -> Any:
    """Writes the HTML file of a student. Returns it with the rounded numbers of the file."""
    student, tokenizer = predictor.student, predictor.reader.tokenizer
    counts = CoarseRounding(np.arange(student.config.vocabulary_size))
    tensors, metadata = engine_tensors({"roles": (student, page.parent)}, tokenizer, "int8", "int8", counts)
    write_html(save(tensors, {METADATA: metadata[METADATA]}), "roles", page)
    return SimpleNamespace(student=stored_student(student, tensors), reader=predictor.reader)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*FAMILIES, "an LLM"])
def test_the_student_of_any_teacher_gets_every_kind_of_file(family: str, work: Path, tmp_path: Path) -> None:
    logits = answered(work, tmp_path) if family == "an LLM" else dumped(family, work, tmp_path)
    run, page = tmp_path / "run", tmp_path / "page.html"
    trained = invoke("train-student", "--set", logits, "--output-dir", run, *STUDENT)
    assert trained.exit_code == 0, trained.output
    assert (run / STUDENT_FILE).is_file()
    rows = ExampleSet.open(logits).read("train", ("sentence1", "sentence2")).slice(0, 20)
    texts = [rows.column(name).to_pylist() for name in ("sentence1", "sentence2")]
    by_torch = torch_predictor(run)
    np.testing.assert_allclose(Predictor(run).logits(*texts), folder_by_torch(by_torch, *texts), atol=1e-4)
    rounded = written_page(by_torch, page)
    if PROGRAM is not None:
        with running_node() as node:
            logits_NC = np.array(node.ask(page, list(zip(*texts, strict=True)))["logits"])
        np.testing.assert_allclose(logits_NC, folder_by_torch(rounded, *texts), atol=1e-4)
    for command in (("evaluate", run), ("report", run, "--output", tmp_path / "report.html")):
        result = invoke(*command)
        assert result.exit_code == 0 or "no dev split" in result.stderr, result.output


@pytest.mark.slow
def test_the_vocabulary_is_the_asked_one(work: Path, tmp_path: Path) -> None:
    logits = dumped("RoBERTa", work, tmp_path)
    tokens = {}
    for asked in ("teacher", "shipped", "300"):
        run = tmp_path / asked
        result = invoke("train-student", "--set", logits, "--output-dir", run, *STUDENT, "--vocabulary", asked)
        assert result.exit_code == 0, result.output
        assert (run / STUDENT_FILE).is_file() == (asked != "teacher")
        tokens[asked] = read_task_config(run / "config.json").vocabulary_size
        assert read_work_record(run / RUN_RECORD)["settings"]["vocabulary"] == asked
    assert tokens["shipped"] == 30522
    assert tokens["300"] <= 300
    assert tokens["teacher"] not in (tokens["shipped"], tokens["300"])
