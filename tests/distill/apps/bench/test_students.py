from pathlib import Path

import pytest
import torch

from distill.apps.bench.readers import sentences_for, student_reader, write_default_student
from pipeline.arrays import Ragged
from student.predict.engine_predictor import FolderPredictor, has_engine
from student.predict.predictor import Predictor

CPU = torch.device("cpu")


def test_the_default_student_has_the_papers_encoder_and_predicts(tmp_path: Path) -> None:
    write_default_student(tmp_path)
    predictor = Predictor(tmp_path)
    config = predictor.student.config
    assert (config.matrix_size, config.vector_size, config.bidirectional) == (20, 400, True)
    encoder = 30522 * (400 + 2 * 20 * 20) + 16384 * 32  # of tokens and of pairs of them
    head = 1632 * 128 + 128 + 2 * 128 + 2 * 128 + 2  # an MLP with layer norm
    assert student_reader("student", predictor, CPU).num_parameters == encoder + head
    assert {row["label"] for row in predictor(["baba bebe.", "bibi"])} <= {"yes", "no"}


@torch.inference_mode()
def test_sentences_given_as_ids_become_the_encoders_vectors(opinion_run: Path) -> None:
    predictor = Predictor(opinion_run)
    rows = [[5, 6, 7, 8], [9], [6, 5]]
    encoding = student_reader("student", predictor, CPU).encoding
    assert encoding is not None
    alone = torch.cat([predictor.student.encoder(torch.tensor([row])) for row in rows])
    torch.testing.assert_close(encoding(Ragged.of(rows))(), alone)


@pytest.mark.parametrize("run", ["opinion_run", "roles_run"])
def test_texts_are_read_by_the_predictor(run: str, request: pytest.FixtureRequest) -> None:
    predictor = Predictor(request.getfixturevalue(run))
    second = ["the dog sees the cat"] if predictor.student.config.is_pair else None
    found = student_reader("student", predictor, CPU).predict(["the cat sees the dog"], second)
    assert found == predictor.columns(["the cat sees the dog"], second)


@pytest.mark.skipif(not has_engine(), reason="the engine was not built")
def test_the_new_student_reads_whole_documents_by_the_engine(tmp_path: Path) -> None:
    write_default_student(tmp_path)
    predictor = Predictor(tmp_path)
    assert isinstance(predictor, FolderPredictor)
    texts = sentences_for(predictor).documents
    reader = student_reader("student", predictor, CPU)
    assert reader.max_tokens is not None
    assert reader.max_tokens > texts.num_tokens.max()
    reader.set_threads(1)
    assert predictor._engine.threads == 1
