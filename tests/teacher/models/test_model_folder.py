"""Folders that others have saved: loaded, or refused with what mends them."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

from pipeline.errors import DataError, TeacherError
from pipeline.tasks.task import Task
from teacher.models.batches import collate
from teacher.models.classifier import load_teacher
from teacher.models.encoder import stated_pooling
from teacher.models.loaded import load_config, load_tokenizer, load_weights, require_model_folder, weights_sha256
from tests.helpers.messages import naming


@pytest.fixture
def folder(teachers: Path, tmp_path: Path) -> Path:
    """A classifier, free to be changed."""
    return Path(shutil.copytree(teachers / "opinion", tmp_path / "teacher"))


def test_a_trainer_that_kept_checkpoints_alone_is_told_which(folder: Path, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    trainer = Trainer(model, TrainingArguments(tmp_path / "out", report_to="none", use_cpu=True))
    for step in (20, 100):
        trainer.save_model(str(tmp_path / "out" / f"checkpoint-{step}"))
    with pytest.raises(DataError, match=naming("out: ", "config.json", "out/checkpoint-20, ", "out/checkpoint-100")):
        load_config(str(tmp_path / "out"), None)
    with pytest.raises(DataError, match=naming("config.json", "out/checkpoint-20")):
        load_config(str(tmp_path), None)
    found, missing = load_weights(AutoModelForSequenceClassification, str(tmp_path / "out" / "checkpoint-20"), None)
    assert (weights_sha256(found), missing) == (weights_sha256(model), [])


def test_pickled_weights_are_refused_and_the_command_converts_them(folder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")  # noqa: TID251
    with pytest.raises(DataError, match=naming("teacher: ", "model.safetensors")):
        load_weights(AutoModelForSequenceClassification, str(folder), None)  # whoever comes by another way
    with pytest.raises(DataError, match=naming("teacher: ", "pytorch_model.bin")) as refused:
        require_model_folder(str(folder))
    [program] = re.findall(r'python -c "(.*)"$', str(refused.value))
    assert "BertForSequenceClassification" in program
    exec(program)  # noqa: S102
    require_model_folder(str(folder))
    found, _ = load_weights(AutoModelForSequenceClassification, str(folder), None)
    assert weights_sha256(found) == weights_sha256(model)


@pytest.mark.parametrize("architectures", [["os;import this"], [], None, [7]])
def test_the_command_has_no_words_of_a_config(folder: Path, architectures: object) -> None:
    (folder / "config.json").write_text(json.dumps({"architectures": architectures}))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(DataError, match="import AutoModelForSequenceClassification as Model;"):
        require_model_folder(str(folder))


@pytest.mark.parametrize("alone", [True, False])
def test_an_adapter_is_told_how_to_merge(folder: Path, alone: bool) -> None:
    (folder / "adapter_config.json").write_text("{}")
    if alone:
        (folder / "config.json").unlink()
    with pytest.raises(DataError, match=naming("teacher: ", "num_labels=NUMBER).merge_and_unload")):
        load_config(str(folder), None)


@pytest.mark.parametrize(
    ("modes", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, None),
        (None, None),
    ],
)
def test_pooling_is_what_sentence_transformers_says(
    folder: Path, modes: dict[str, bool] | None, pooling: str | None
) -> None:
    if modes is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    assert stated_pooling(str(folder), None) == pooling


def changed(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_texts_that_are_truncated_on_the_left_are_refused(folder: Path) -> None:
    changed(folder / "tokenizer_config.json", truncation_side="left")
    with pytest.raises(TeacherError, match=naming("truncation_side", "left")):
        load_tokenizer(str(folder), None, load_config(str(folder), None), 16)


def test_weights_that_are_not_finite_are_named(folder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    name = "bert.embeddings.word_embeddings.weight"
    model.get_parameter(name).data[3, 4] = float("nan")
    model.save_pretrained(folder)
    with pytest.raises(TeacherError, match=naming(name)):
        load_weights(AutoModelForSequenceClassification, str(folder), None)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_pointers_of_git_lfs_are_refused(folder: Path, file: str) -> None:
    (folder / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(DataError, match=naming(file, "git lfs pull")):
        load_config(str(folder), None)


def restored(folder: Path, change: Callable[[str, torch.Tensor], tuple[str, torch.Tensor]]) -> None:
    """Saves each of a folder's weights as what a change makes of its name and its numbers."""
    file = folder / "model.safetensors"
    weights = dict(change(key, weight) for key, weight in load_file(file).items())
    file.unlink()  # a new file, since models that are loaded may still read the old one
    save_file(weights, file, {"format": "pt"})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_any_precision_are_read_as_float32(folder: Path, dtype: torch.dtype) -> None:
    before = AutoModelForSequenceClassification.from_pretrained(folder).state_dict()
    restored(folder, lambda key, weight: (key, weight.to(dtype)))
    changed(folder / "config.json", dtype=str(dtype).removeprefix("torch."))
    found, missing = load_weights(AutoModelForSequenceClassification, str(folder), None)
    assert missing == []
    for key, weight in found.state_dict().items():
        assert torch.equal(weight, before[key].to(dtype).to(torch.float32)), key


def test_weights_rounded_to_8_bits_are_refused(folder: Path) -> None:
    restored(folder, lambda key, weight: (key, (weight * 100).to(torch.int8)))
    with pytest.raises(TeacherError, match=naming("teacher: ", "8 bits", "model.safetensors")):
        load_weights(AutoModelForSequenceClassification, str(folder), None)


@pytest.mark.parametrize(
    "rename", [lambda key: key.removeprefix("bert."), lambda key: key.replace("LayerNorm.weight", "LayerNorm.gamma")]
)
def test_other_names_that_transformers_has_for_weights_are_followed(folder: Path, rename: Callable[[str], str]) -> None:
    before = AutoModelForSequenceClassification.from_pretrained(folder)
    restored(folder, lambda key, weight: (rename(key), weight))
    found, missing = load_weights(AutoModelForSequenceClassification, str(folder), None)
    assert (weights_sha256(found), missing) == (weights_sha256(before), [])


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod."])
def test_weights_under_longer_names_are_refused_and_the_command_renames_them(folder: Path, prefix: str) -> None:
    before = AutoModelForSequenceClassification.from_pretrained(folder)
    restored(folder, lambda key, weight: (prefix + key, weight))
    with pytest.raises(TeacherError, match=naming("teacher: ", prefix)) as refused:
        load_weights(AutoModelForSequenceClassification, str(folder), None)
    [program] = re.findall(r'python -c "(.*)"$', str(refused.value))
    exec(program)  # noqa: S102
    found, missing = load_weights(AutoModelForSequenceClassification, str(folder), None)
    assert (weights_sha256(found), missing) == (weights_sha256(before), [])


def test_the_side_of_padding_makes_no_difference(folder: Path, opinion: Task) -> None:
    inputs = []
    for side in ("right", "left"):
        changed(folder / "tokenizer_config.json", padding_side=side)
        teacher = load_teacher(opinion, str(folder), None, (), 32)
        inputs.append(collate(teacher, teacher.reader.tokenize(["the food was dull .", "lovely ."], None, 32)))
    assert inputs[0].keys() == inputs[1].keys()
    assert all(torch.equal(inputs[0][key], inputs[1][key]) for key in inputs[0])
    assert inputs[1]["attention_mask"][1].tolist()[-1] == 0  # on the right, whatever the tokenizer would do
