"""Where sentence-transformers is installed."""

from pathlib import Path

import numpy as np
import pytest
import torch

from student.predict.predictor import Predictor

library = pytest.importorskip("sentence_transformers", minversion="6")


def test_vectors_are_those_of_the_student_and_stay_so_on_disk(opinion_run: Path, tmp_path: Path) -> None:
    from student.sentence_transformers import StudentModule

    sentences = ["the food was dull .", "", "the wine was perfect , not the music ."] * 3
    expected_NF = Predictor(opinion_run).encode(sentences)
    model = library.SentenceTransformer(modules=[StudentModule(opinion_run)], device="cpu")
    assert model.get_embedding_dimension() == expected_NF.shape[1]
    np.testing.assert_allclose(model.encode(sentences, batch_size=2), expected_NF, atol=1e-5)
    alike = model.similarity(model.encode(sentences[:1]), model.encode(sentences[3:4]))
    torch.testing.assert_close(alike, torch.ones(1, 1))
    model.save(str(tmp_path / "saved"))
    with pytest.raises(ValueError, match="trust_remote_code"):
        library.SentenceTransformer(str(tmp_path / "saved"))
    again = library.SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(again.encode(sentences), expected_NF, atol=1e-5)
