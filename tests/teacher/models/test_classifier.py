import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    AlbertConfig,
    AutoTokenizer,
    BertForSequenceClassification,
    DebertaV2Config,
    ElectraConfig,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedConfig,
    RobertaConfig,
    T5Config,
)

from pipeline.errors import ConfigError, DataError, TeacherError
from pipeline.file_names import FINETUNE_RECORD
from pipeline.tasks.target import Target
from pipeline.tasks.task import Bins, DefaultTeacher, Task
from teacher.models.classifier import Teacher, load_teacher, new_classifier
from teacher.models.loaded import load_tokenizer, weights_sha256
from tests.helpers.messages import naming
from tests.helpers.word_tasks import MakeTask, MakeTeacher

LABELS = ("ash", "birch", "cedar")


def load(task: Task, name: Path | str, labels: tuple[str, ...] = (), max_seq_length: int = 32) -> Teacher:
    return load_teacher(task, str(name), None, labels, max_seq_length)


@pytest.fixture
def task(word_task: MakeTask) -> Task:
    return word_task(LABELS)


@pytest.mark.parametrize(
    ("id2label", "order"),
    [
        (["ash", "birch", "cedar"], (0, 1, 2)),
        (["cedar", "ash", "birch"], (1, 2, 0)),
        (["CEDAR", "Ash", "bIRCH"], (1, 2, 0)),
        (["LABEL_0", "LABEL_1", "LABEL_2"], (0, 1, 2)),
        (["label_0", "label_1", "label_2"], (0, 1, 2)),
    ],
)
def test_order_by_the_config(
    task: Task, word_teacher: MakeTeacher, id2label: list[str], order: tuple[int, ...]
) -> None:
    assert load(task, word_teacher((0, 1, 2), id2label)).order == order


def test_a_config_that_numbers_its_labels_in_two_ways_is_refused(task: Task, word_teacher: MakeTeacher) -> None:
    folder = word_teacher((0, 1, 2), list(LABELS))
    config = json.loads((folder / "config.json").read_text())
    config["label2id"] = dict(zip(LABELS, (2, 0, 1), strict=True))
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(TeacherError, match=naming("id2label", "label2id", "--teacher-labels")):
        load(task, folder)
    assert load(task, folder, tuple(LABELS)).order == (0, 1, 2)


def test_order_by_the_flag_goes_before_all_else(task: Task, word_teacher: MakeTeacher) -> None:
    folder = word_teacher((0, 1, 2), ["ash", "birch", "cedar"])
    default = task.model_copy(update={"teacher": DefaultTeacher(model=str(folder), labels=("birch", "ash", "cedar"))})
    teacher = load(default, folder, ("cedar", "ash", "birch"))
    assert (teacher.labels, teacher.order) == (("cedar", "ash", "birch"), (1, 2, 0))


def test_order_by_the_manifest_for_its_own_teacher_only(task: Task, word_teacher: MakeTeacher) -> None:
    folder, other = word_teacher((0, 1, 2)), word_teacher((0, 1, 2), name="other")
    default = task.model_copy(update={"teacher": DefaultTeacher(model=str(folder), labels=("cedar", "ash", "birch"))})
    assert load(default, folder).order == (1, 2, 0)
    assert load(default, other).order == (0, 1, 2)


@pytest.mark.parametrize("id2label", [["x", "y", "z"], ["ash", "birch", "z"], ["ash", "ASH", "birch"]])
def test_names_that_are_not_the_tasks_are_refused(task: Task, word_teacher: MakeTeacher, id2label: list[str]) -> None:
    folder = word_teacher((0, 1, 2), id2label)
    named = (", ".join(id2label), "ash, birch, cedar", "--teacher-labels")
    with pytest.raises(TeacherError, match=naming(*named)):
        load(task, folder)
    assert load(task, folder, LABELS).order == (0, 1, 2)


@pytest.mark.parametrize(
    ("id2label", "said"),
    [({"1": "ash", "2": "birch", "3": "cedar"}, "LABEL_0, ash, birch"), ({"0": 7, "1": 8, "2": 9}, "7, 8, 9")],
)
def test_odd_names_of_a_config_are_told(
    task: Task, word_teacher: MakeTeacher, id2label: dict[str, object], said: str
) -> None:
    folder = word_teacher((0, 1, 2))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"id2label": id2label}))
    with pytest.raises(TeacherError, match=naming("teacher: ", said, "'words'", "--teacher-labels")):
        load(task, folder)
    assert load(task, folder, LABELS).order == (0, 1, 2)


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        (("ash", "bich", "cedar"), "'bich'"),
        (("ASH", "bich", "cedar"), "'bich'"),
        (("ash", "ash", "birch"), "ash, birch, cedar"),
        (("ash", "birch"), "ash, birch, cedar"),
    ],
)
def test_wrong_teacher_labels_are_refused(
    task: Task, word_teacher: MakeTeacher, flag: tuple[str, ...], named: str
) -> None:
    with pytest.raises(ConfigError, match=naming("--teacher-labels: ", named)):
        load(task, word_teacher((0, 1, 2)), flag)


def test_stated_labels_may_be_written_as_the_teacher_writes_them(task: Task, word_teacher: MakeTeacher) -> None:
    teacher = load(task, word_teacher((0, 1, 2)), ("CEDAR", "Ash", "birch"))
    assert (teacher.labels, teacher.order) == (("cedar", "ash", "birch"), (1, 2, 0))


def test_what_a_teacher_says_itself_may_be_stated_and_is_the_same_teacher(
    task: Task, word_teacher: MakeTeacher
) -> None:
    folder = word_teacher((1, 2, 0))
    config = json.loads((folder / "config.json").read_text())
    names = {"0": "CEDAR", "1": "Ash", "2": "birch"}
    (folder / "config.json").write_text(json.dumps(config | {"id2label": names}))
    own = load(task, folder)
    assert (own.labels, own.order) == (("CEDAR", "Ash", "birch"), (1, 2, 0))
    for flag in (("CEDAR", "Ash", "birch"), ("cedar", "ash", "birch")):
        stated = load(task, folder, flag)
        assert (stated.labels, stated.order) == (own.labels, own.order)
    other = load(task, folder, ("ASH", "cedar", "birch"))
    assert (other.labels, other.order) == (("ash", "cedar", "birch"), (0, 2, 1))


def test_another_number_of_outputs_is_refused(word_task: MakeTask, word_teacher: MakeTeacher) -> None:
    folder = word_teacher((0, 1, 2))
    with pytest.raises(TeacherError, match=naming("3 outputs (LABEL_0", "'words'", "2 (ash, birch)")):
        load(word_task(("ash", "birch")), folder)


@pytest.mark.parametrize(("outputs", "kind"), [(1, "score"), (5, "bins")])
def test_a_score_task_takes_its_score_or_its_bins(
    task: Task, word_teacher: MakeTeacher, outputs: int, kind: str
) -> None:
    bins = Bins(low=1, high=5, width=1)
    score = task.model_copy(update={"type": "regression", "labels": (), "score_range": (0, 5), "bins": bins})
    folder = word_teacher(range(outputs))
    assert load(score, folder).target.kind == kind
    with pytest.raises(ConfigError, match=naming("--teacher-labels: ", kind)):
        load(score, folder, ("ash",))
    with pytest.raises(TeacherError, match=naming("3 outputs", "'words'", "score", "bins")):
        load(score, word_teacher((0, 1, 2)))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(task: Task, word_teacher: MakeTeacher) -> None:
    folder = word_teacher((0, 1, 2))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    size = len(tokenizer)
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(TeacherError, match=naming("teacher: ", size)):
        load(task, folder)


def test_inputs_longer_than_the_model_reads_are_refused(task: Task, word_teacher: MakeTeacher) -> None:
    folder = word_teacher((0, 1, 2))
    assert load(task, folder, max_seq_length=128).target.num_logits == 3
    with pytest.raises(ConfigError, match=naming("--max-seq-length: 129", "teacher", 128)):
        load(task, folder, max_seq_length=129)


def test_an_encoder_without_a_head_is_not_a_teacher(opinion: Task, work: Path) -> None:
    with pytest.raises(TeacherError, match=naming("bert: ", "classifier.weight", "distill finetune-teacher")):
        load(opinion, work / "bert")


@pytest.mark.parametrize("name", ["/nowhere/bert", "./bert"])
def test_a_folder_that_is_not_there_is_named(opinion: Task, name: str) -> None:
    with pytest.raises(DataError, match=naming(f"model {name}: ")):
        load(opinion, name)


@pytest.mark.parametrize("name", ["bert-of-nobody", "nobody/bert"])  # the oldest models of the hub have no owner
def test_a_model_that_the_hub_does_not_have_is_named(opinion: Task, name: str) -> None:
    with pytest.raises(DataError, match=naming(f"model {name}: ", "config")):
        load(opinion, name)


@pytest.mark.parametrize(("removed", "part"), [("config.json", "config"), ("model.safetensors", "weights")])
def test_a_folder_with_a_part_missing_is_named(task: Task, word_teacher: MakeTeacher, removed: str, part: str) -> None:
    folder = word_teacher((0, 1, 2))
    (folder / removed).unlink()
    with pytest.raises(DataError, match=naming(f"model {folder}: ", part)):
        load(task, folder)


def test_a_model_without_its_tokenizer_is_refused(task: Task, word_teacher: MakeTeacher, tmp_path: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(word_teacher((0, 1, 2)))
    model.save_pretrained(tmp_path / "alone")
    with pytest.raises(DataError, match=naming("alone: ", "vocab.txt", "tokenizer.json")):
        load(task, tmp_path / "alone")


@pytest.mark.parametrize("config", [RobertaConfig(), ElectraConfig(), DebertaV2Config(), AlbertConfig(), T5Config()])
def test_other_models_without_their_tokenizers_are_refused(config: PreTrainedConfig, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=naming(f"{tmp_path}: ", "tokenizer.json")):
        load_tokenizer(str(tmp_path), None, config, 32)


@pytest.mark.parametrize("content", ["{}", '{"model": {"type": "WordPiece", "vocab": 7}}', "[1]"])
def test_a_tokenizer_that_the_library_cannot_read_is_named(task: Task, word_teacher: MakeTeacher, content: str) -> None:
    folder = word_teacher((0, 1, 2))
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=naming(f"model {folder}: ", "tokenizer")):
        load(task, folder)


@pytest.mark.parametrize(
    ("file", "part"),
    [("config.json", "config"), ("tokenizer.json", "tokenizer"), ("model.safetensors", "weights")],
)
def test_a_torn_file_is_named(task: Task, word_teacher: MakeTeacher, file: str, part: str) -> None:
    path = word_teacher((0, 1, 2)) / file
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(DataError, match=naming(f"model {path.parent}: ", part)):
        load(task, path.parent)


def test_weights_of_another_shape_are_refused(task: Task, word_teacher: MakeTeacher) -> None:
    folder = word_teacher((0, 1))
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = dict(enumerate(LABELS))
    config["label2id"] = {label: number for number, label in enumerate(LABELS)}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises((DataError, TeacherError), match=r"classifier|weights"):
        load(task, folder)


def test_an_unfinished_teacher_is_refused(task: Task, word_teacher: MakeTeacher) -> None:
    folder = word_teacher((0, 1, 2))
    record = {"state": "running", "command": "distill", "settings": {}}
    (folder / FINETUNE_RECORD).write_text(json.dumps(record))
    with pytest.raises(TeacherError, match=naming("teacher: ", "distill finetune-teacher")):
        load(task, folder)
    (folder / FINETUNE_RECORD).write_text(json.dumps(record | {"state": "finished"}))
    assert load(task, folder).order == (0, 1, 2)


def test_a_new_classifier_names_its_outputs_as_the_task_does(opinion: Task, work: Path, teachers: Path) -> None:
    target = load(opinion, teachers / "opinion").target
    teacher = new_classifier(opinion, target, str(work / "bert"), None, 32)
    assert (teacher.labels, teacher.order) == (("bad", "good"), (0, 1))
    assert teacher.model.config.id2label == {0: "bad", 1: "good"}
    assert teacher.model.classifier.weight.shape == (2, 32)
    with pytest.raises(ConfigError, match=naming("--max-seq-length: 200", "bert", 128)):
        new_classifier(opinion, target, str(work / "bert"), None, 200)


def test_weights_hash_is_that_of_the_weights_not_of_the_files(teachers: Path, tmp_path: Path) -> None:
    shutil.copytree(teachers / "opinion", tmp_path / "one")
    model = BertForSequenceClassification.from_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    again = BertForSequenceClassification.from_pretrained(tmp_path / "many")
    assert weights_sha256(model) == weights_sha256(again)
    with torch.no_grad():
        again.classifier.bias[1] += 1e-6
    assert weights_sha256(model) != weights_sha256(again)


def test_weights_hash_knows_names_shapes_and_types() -> None:
    zeros = {"a": torch.zeros(2, 1)}
    others = [{"b": torch.zeros(2, 1)}, {"a": torch.zeros(1, 2)}, {"a": torch.zeros(2, 1, dtype=torch.int32)}]
    hashes = []
    for buffers in (zeros, *others):
        module = torch.nn.Module()
        for name, tensor in buffers.items():
            module.register_buffer(name, tensor)
        hashes.append(weights_sha256(module))
    assert len(set(hashes)) == 4


def test_a_teacher_of_several_labels_a_row_is_refused(task: Task, word_teacher: MakeTeacher) -> None:
    folder = word_teacher((0, 1, 2))
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"problem_type": "multi_label_classification"}))
    with pytest.raises(TeacherError, match=naming("multi_label_classification", "'words'", "type: multilabel")):
        load(task, folder)
    apart = task.model_copy(update={"type": "multilabel"})
    assert load(apart, folder).target.kind == "labels"
    (folder / "config.json").write_text(json.dumps(content | {"problem_type": "single_label_classification"}))
    with pytest.raises(TeacherError, match=naming("single_label_classification", "'words'")):
        load(apart, folder)


def test_labels_that_differ_in_capitals_keep_a_logit_each(word_task: MakeTask, word_teacher: MakeTeacher) -> None:
    folder = word_teacher((0, 1, 2), ["apple", "pear", "Apple"])
    assert load(word_task(("Apple", "apple", "pear")), folder).order == (2, 0, 1)


def test_a_teacher_that_cannot_find_the_end_of_a_text_is_refused(
    task: Task, word_teacher: MakeTeacher, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(word_teacher((0, 1, 2)))
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 32}
    config = GPT2Config(vocab_size=len(tokenizer), num_labels=3, pad_token_id=None, **sizes)
    model, folder = GPT2ForSequenceClassification(config), tmp_path / "gpt"
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    refused = naming("gpt: ", "config.json", "pad_token_id")
    with pytest.raises(TeacherError, match=refused):
        load(task, folder)
    with pytest.raises(TeacherError, match=refused):
        new_classifier(task, Target(kind="classes", names=LABELS), str(folder), None, 32)
    model.config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    assert load(task, folder).tokens.pad_id == 0
