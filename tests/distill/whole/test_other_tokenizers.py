"""The whole way with teachers that read byte pairs and SentencePiece: masks, SQL, students, predictions, reports."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification

from pipeline.sets.kinds.examples import ExampleSet
from student.data import as_read, load_examples
from student.lessons.examples import student_logits
from student.predict.predictor import Predictor
from tests.helpers.commands import invoke
from tests.helpers.encoders import write_encoder

STUDENT = ("--matrix-size", 3, "--vector-size", 5, "--hidden-size", 8, "--num-train-epochs", 1)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "mask", "space"), [("RoBERTa", "<mask>", "\u0120"), ("ALBERT", "[MASK]", "\u2581")])
def test_from_the_teacher_to_the_report(family: str, mask: str, space: str, work: Path, tmp_path: Path) -> None:
    teacher, store, run = tmp_path / "teacher", tmp_path / "logits", tmp_path / "run"
    texts = (work / "sentences.txt").read_text().splitlines()
    write_encoder(family, AutoModelForSequenceClassification, texts, teacher, num_labels=2)
    dump: tuple[object, ...] = ("--manifest", work / "roles.yaml", "--data", work / "data", "--store", store)
    dump += ("--model-name-or-path", teacher, "--max-seq-length", 48, "--name", "roles")
    dump += ("--augment", "mask-pos", "--pos-probability", 0, "--mask-probability", 0.3, "--num-variants", 1)
    if mask != "[MASK]":
        refused = invoke("teacher-dump", *dump)
        assert refused.exit_code == 2
        assert f"--mask-token {mask}" in refused.stderr
    dumped = invoke("teacher-dump", *dump, "--mask-token", mask)
    assert dumped.exit_code == 0, dumped.output
    logit_set = ExampleSet.open(store / "roles")
    mask_id = Tokenizer.from_str(logit_set.tokenizer_json()).token_to_id(mask)
    query = "select sentence1 || sentence2 as text, ids1 || ids2 as ids from roles where origin = 'mask'"
    rows = json.loads(invoke("sql", query, "--store", store, "--json").stdout)
    assert rows
    assert all(row["text"].count(mask) == row["ids"].count(mask_id) > 0 for row in rows)
    explained = json.loads(invoke("sql", "--explain-row", "roles:train:0", "--store", store, "--json").stdout)
    assert any(token.startswith(space) for token in explained["row"]["tokens1"])
    assert (
        invoke(
            "train-student", "--set", store / "roles", "--output-dir", run, *STUDENT, "--vocabulary", "teacher"
        ).exit_code
        == 0
    )
    predictor = Predictor(run)
    dev = logit_set.read("validation", ("sentence1", "sentence2"))
    said_NC = predictor.logits(dev["sentence1"].to_pylist(), dev["sentence2"].to_pylist())
    examples = as_read(load_examples(logit_set, "validation"), predictor.student.config)
    np.testing.assert_allclose(said_NC, student_logits(predictor.student, examples), atol=1e-5)
    for subject in (store / "roles", run):
        page = tmp_path / f"{subject.name}.html"
        assert invoke("report", subject, "--output", page).exit_code == 0
        assert page.stat().st_size > 1000
