"""A fifth kind of rows is a file for each stage and one for both: its sets are dumped, checked, queried, trained from.

The commands are those of the product, and nothing in them names the kind; it is entered into the tables by name alone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import distill
from pipeline.errors import ConfigError, IntegrityError
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import ExampleSet
from student import lessons as student_kinds
from student.model import architecture, student
from student.predict.predictor import Predictor
from teacher import dumps as teacher_kinds
from tests.helpers.messages import naming
from tests.helpers.toy_kind import SpanSet, known
from tests.helpers.toy_kind_student import SpanConfig, SpanKind, SpanStudent, span_inputs
from tests.helpers.toy_kind_teacher import SpansDump

SIZES: dict[str, Any] = {
    "matrix_size": 3,
    "vector_size": 5,
    "hidden_size": 8,
    "num_train_epochs": 3,
    "learning_rate": 0.01,
}


@pytest.fixture(scope="module")
def _spans() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        known(patch)
        patch.setitem(student_kinds.KINDS, "spans", SpanKind())
        patch.setitem(architecture.CONFIGS, "spans", SpanConfig)
        patch.setitem(student.STUDENTS, "spans", SpanStudent)
        yield


@pytest.fixture(scope="module")
def spans(_spans: None, work: Path, teachers: Path, tmp_path_factory: pytest.TempPathFactory) -> SpanSet:
    """A verified set of the spans of the opinions; read only."""
    store = tmp_path_factory.mktemp("spans")
    with pytest.MonkeyPatch.context() as patch:  # undone at once, as other fixtures dump tasks as examples
        patch.setitem(teacher_kinds.OF_TASKS, "classification", SpansDump)
        record = distill.dump_teacher(
            manifest=work / "opinion.yaml",
            data=work / "data",
            model_name_or_path=str(teachers / "opinion"),
            store=store,
            max_seq_length=32,
            rows_per_shard=25,
            token_vectors=False,
        )
    assert record.values["state"] == "verified"
    opened = distill.open_set(store / "opinion")
    assert isinstance(opened, SpanSet)
    return opened


@pytest.fixture(scope="module")
def run(spans: SpanSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student of the spans; read only."""
    folder = tmp_path_factory.mktemp("run") / "spans"
    distill.train_student(set=str(spans.root), output_dir=folder, **SIZES)
    return folder


def test_the_teacher_reads_the_spans_alone(spans: SpanSet, teachers: Path) -> None:
    reference = AutoModelForSequenceClassification.from_pretrained(teachers / "opinion").eval()
    tokenizer = AutoTokenizer.from_pretrained(teachers / "opinion")
    rows = spans.read("validation")
    for inside, sentence, logits_C in zip(rows.inside.lists(), rows.ids.lists(), rows.teacher_NC, strict=True):
        assert inside == sentence[:-1]
        ids = [tokenizer.cls_token_id, *inside, tokenizer.sep_token_id]
        with torch.no_grad():
            wanted_C = reference(torch.tensor([ids])).logits[0].numpy()
        np.testing.assert_allclose(logits_C, wanted_C, atol=1e-5)


def test_the_set_is_verified_and_queried(spans: SpanSet, opinion_set: ExampleSet) -> None:
    assert distill.verify(set_or_run=str(spans.root)).exit_code == 0
    query = (
        "select split, count(*) as n, avg(stop - start) as length, avg(label) as gold from {} group by all order by 1"
    )
    wanted = opinion_set.sql(query.format("examples").replace("stop - start", "len(ids1) - 1"))
    found = distill.sql(query=query.format("opinion"), store=spans.root.parent)
    assert found.values == [dict(row) for row in wanted]


def test_a_student_learns_from_it_and_is_scored(spans: SpanSet, run: Path) -> None:
    record = read_record(run / "run.json")
    losses = [entry["loss"] for entry in record["result"]["history"]]
    assert losses[-1] < losses[0]
    rows = spans.read("validation")
    with torch.inference_mode():
        logits_NC = SpanStudent.load(run)(*span_inputs(rows)).numpy()
    agreement = (logits_NC.argmax(axis=1) == rows.teacher_NC.argmax(axis=1)).mean()
    evaluation = distill.evaluate(run=run).values["validation"]
    assert evaluation == record["result"]["evaluation"]["validation"] | {"judgements": evaluation["judgements"]}
    assert evaluation["gold"] == record["result"]["best"]["metrics"]["validation"]
    assert evaluation["fidelity"]["agreement"] == pytest.approx(agreement)


def test_its_run_is_described_reproduced_and_repeated(spans: SpanSet, run: Path, tmp_path: Path) -> None:
    described = distill.describe(set_or_run=str(run)).values
    assert described["parameters"]["total"] == sum(p.numel() for p in SpanStudent.load(run).parameters())
    assert distill.verify(set_or_run=str(run)).exit_code == 0
    again = distill.train_student(set=str(spans.root), output_dir=tmp_path / "again", **SIZES).values
    assert again["result"] == read_record(run / "run.json")["result"]
    held_out = distill.train_student(set=str(spans.root), output_dir=tmp_path / "held", held_out=0.25, **SIZES).values
    assert held_out["settings"]["rows_held_out"] == 24


def test_its_set_and_its_run_have_pages(spans: SpanSet, run: Path, tmp_path: Path) -> None:
    for what in (spans.root, run):
        page = tmp_path / f"{what.name}.html"
        assert distill.report(set_or_run=str(what), output=page).exit_code == 0
        assert "opinion" in page.read_text()


def test_what_is_for_other_kinds_refuses_it(spans: SpanSet, run: Path, opinion_set: ExampleSet) -> None:
    with pytest.raises(ConfigError, match=naming("--set")):
        distill.train_student(set=(str(spans.root), str(spans.root)), output_dir=run.parent / "two", **SIZES)
    with pytest.raises(ConfigError, match=naming(str(opinion_set.root), "spans")):
        SpanSet.open(opinion_set.root)
    with pytest.raises(ConfigError, match=naming(str(spans.root))):
        distill.pretrain_student(set=str(spans.root), output_dir=run.parent / "pretrained")
    with pytest.raises(IntegrityError, match=naming(str(run))):
        Predictor(run)
