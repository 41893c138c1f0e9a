"""The folder of a trained run: answers by the file in it, if that was made from the weights that are there."""

import pickle  # noqa: TID251 - what multiprocessing does
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError, IntegrityError
from pipeline.file_names import CONFIG_FILE, STUDENT_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from student.predict.engine_backend import EngineBackend, open_folder
from student.predict.multi_task import MultiTaskPredictor
from student.predict.predictor import Predictor
from student.predict.torch_backend import TorchBackend
from student.train import train
from tests.helpers.commands import invoke
from tests.helpers.engine import needs_engine, torch_predictor
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config

pytestmark = needs_engine
TEXTS = ["the food was lovely .", "", "the wine was 不 awful .", "the food was lovely . " * 40]
WITHOUT_TORCH = """
import sys
from distill import MultiTaskPredictor, Predictor
MultiTaskPredictor(sys.argv[2])(["the food was lovely ."])
Predictor(sys.argv[2] + "/opinion")(["the food was lovely ."])
print(Predictor(sys.argv[1])(["the food was lovely ."])[0]["label"], "torch" in sys.modules)
"""


@pytest.fixture
def run(opinion_run: Path, tmp_path: Path) -> Path:
    """A run that may be changed."""
    return shutil.copytree(opinion_run, tmp_path / "run")


def test_the_file_in_a_folder_answers_as_torch_does(run: Path) -> None:
    predictor, by_torch = Predictor(run), torch_predictor(run)
    assert isinstance(predictor.backend, EngineBackend)
    np.testing.assert_allclose(predictor.logits(TEXTS), by_torch.logits(TEXTS), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(predictor.num_tokens(TEXTS), by_torch.num_tokens(TEXTS))
    assert predictor.info.model_dump() == predictor.info.model_dump() | by_torch.info.model_dump()
    assert (predictor.hashes(), predictor.backend.text_columns()) == (
        by_torch.hashes(),
        by_torch.backend.text_columns(),
    )
    assert predictor.student.config == by_torch.student.config
    assert predictor.reader.read(TEXTS, None, None)[0].lists() == by_torch.reader.read(TEXTS, None, None)[0].lists()


def test_torch_is_not_imported(opinion_run: Path, together: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, opinion_run, together], capture_output=True, text=True, check=True
    )
    assert process.stdout.split()[1] == "False"


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE])
def test_a_file_of_other_weights_is_not_used(run: Path, roles_run: Path, name: str) -> None:
    if name == TOKENIZER_FILE:
        (run / name).write_text((run / name).read_text().replace("food", "foot"))  # both runs have the same
    else:
        shutil.copy(roles_run / name, run / name)
    with pytest.raises(IntegrityError, match=naming(str(run))):
        Predictor(run)


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_a_damaged_file_or_none_leaves_the_weights(run: Path, content: bytes | None) -> None:
    (run / STUDENT_FILE).unlink() if content is None else (run / STUDENT_FILE).write_bytes(content)
    assert type(Predictor(run).backend) is TorchBackend


def test_tasks_have_one_file(together: Path) -> None:
    predictor = MultiTaskPredictor(together, ["score", "opinion"])
    assert [path.parent for path in together.rglob(STUDENT_FILE)] == [together]
    for task, one in predictor.predictors.items():
        assert isinstance(one.backend, EngineBackend)
        for other in (torch_predictor(together / task), Predictor(together, task=task)):
            np.testing.assert_allclose(one.logits(TEXTS), other.logits(TEXTS), rtol=1e-5, atol=1e-5)
            assert one.hashes() == other.hashes()
        assert isinstance(other.backend, EngineBackend)


def test_tasks_whose_weights_have_changed_are_answered_by_torch(together: Path, tmp_path: Path) -> None:
    run = shutil.copytree(together, tmp_path / "together")
    config = run / "opinion" / CONFIG_FILE
    config.write_text(config.read_text() + "\n")
    predictor = MultiTaskPredictor(run, ["opinion", "score"])
    assert {type(one.backend) for one in predictor.predictors.values()} == {TorchBackend}
    expected = MultiTaskPredictor(together, ["opinion", "score"]).logits(TEXTS)
    for task, logits_NC in predictor.logits(TEXTS).items():
        np.testing.assert_allclose(logits_NC, expected[task], rtol=1e-5, atol=1e-5)


def test_the_folder_of_one_task_answers_from_the_runs_file(
    together: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(together, tmp_path / "together")
    (tmp_path / "link").symlink_to(run / "opinion")
    expected_NC = torch_predictor(run / "opinion").logits(TEXTS)
    monkeypatch.chdir(run / "opinion")
    for folder in (run / "opinion", tmp_path / "link", Path()):
        one = Predictor(folder)
        assert isinstance(one.backend, EngineBackend)
        assert (one.backend.path, one.backend.info.name) == (run / STUDENT_FILE, "opinion")
        np.testing.assert_allclose(one.logits(TEXTS), expected_NC, rtol=1e-5, atol=1e-5)
    # Another task's folder of that name, or one that has been trained since, has no part in the file.
    shutil.copytree(run / "opinion", run / "other")
    (run / "opinion" / CONFIG_FILE).write_text((run / "score" / CONFIG_FILE).read_text())
    for name in ("other", "opinion"):
        assert open_folder(run / name, None) is None
    assert open_folder(run / "score", None) is not None


def test_a_predictor_travels_without_its_folder(run: Path) -> None:
    content = pickle.dumps(Predictor(run, costs={"good": 3}))
    expected = Predictor(run, costs={"good": 3})(TEXTS)
    shutil.rmtree(run)
    assert pickle.loads(content)(TEXTS) == expected  # noqa: S301


def test_it_abstains_by_the_folders_certificate(run: Path) -> None:
    with pytest.raises(ConfigError, match=naming("certify", str(run))):
        Predictor(run, abstain=True)
    with pytest.raises(ConfigError, match=naming("costs")):
        Predictor(run, abstain=True, costs={"good": 2})


def test_the_file_is_the_same_each_time_and_goes_elsewhere(opinion_run: Path, store: Path, tmp_path: Path) -> None:
    train(tiny_config(store / "opinion", tmp_path / "again"), "distill train-student --task opinion")
    again = tmp_path / "again" / STUDENT_FILE
    assert again.read_bytes() == (opinion_run / STUDENT_FILE).read_bytes()
    elsewhere = Predictor(again.rename(tmp_path / "mine.distill"))
    assert isinstance(elsewhere.backend, EngineBackend)
    assert elsewhere.backend.folder is None
    assert elsewhere(TEXTS) == Predictor(opinion_run)(TEXTS)


@pytest.mark.parametrize("command", [("evaluate",), ("predict", "a text")])
def test_the_folder_of_a_set_is_named(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "distill.json").write_text("{}")
    done = invoke(command[0], tmp_path, *command[1:])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{tmp_path}: holds a logit set" in done.stderr
