from pathlib import Path

import pytest
import torch

from student.export.onnx_file import write_onnx
from tests.helpers.onnx_files import run_onnx
from tests.helpers.toy_berts import SENTENCES, bert_student
from tests.helpers.toy_students import padded


@pytest.mark.slow
def test_a_bert_as_onnx_takes_any_length_and_knows_padding(tmp_path: Path) -> None:
    made = bert_student(is_pair=True)
    assert write_onnx(made, tmp_path / "x.onnx") < 1e-5
    for sentences in ([[2, 5, 3, 4, 3]], [SENTENCES[0], SENTENCES[2]], [SENTENCES[4], [2] * 16]):
        expected = made(padded(sentences)).detach()
        torch.testing.assert_close(run_onnx(tmp_path / "x.onnx", padded(sentences)), expected, rtol=1e-4, atol=1e-5)
