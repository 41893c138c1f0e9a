"""Sets of tokens and pretrained students of every format version there has been must stay readable."""

import json
from pathlib import Path

import pytest

from pipeline.logit_set.record import TokensRecord
from pipeline.logit_set.token_reader import open_tokens
from pipeline.logit_set.verify import verify_shards
from student.pretrain.evaluate import evaluate_mlm
from student.pretrain.model import MlmStudent

FORMATS = sorted((Path(__file__).parent / "fixtures" / "formats").glob("tokens-v*"))
CODECS = ("dense", "hidden", "sampled", "topk")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_a_set_and_a_student_still_say_the_same(folder: Path, codec: str) -> None:
    """The student's loss on a set depends on every number that is stored in either."""
    token_set = open_tokens(folder / codec)
    verify_shards(token_set.root, token_set.record)
    scores = evaluate_mlm(MlmStudent.load(folder / "run"), token_set, "validation")
    expected = json.loads((folder / "expected.json").read_text())[codec]
    assert scores == pytest.approx(expected, rel=1e-2)  # bf16 here, float32 there


def test_there_is_a_fixture_of_every_version() -> None:
    versions = {json.loads((folder / "sampled" / "distill.json").read_text())["format_version"] for folder in FORMATS}
    assert versions == {TokensRecord.model_fields["format_version"].default}
