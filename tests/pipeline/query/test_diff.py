"""In what two sets differ, by numbers that can be found by hand."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from typer.testing import Result

from pipeline.errors import ConfigError, IntegrityError
from pipeline.query.diff import Diff, diff
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import write_set_record
from pipeline.sets.set_settings import DiffSettings
from pipeline.sets.write import finish_set
from pipeline.tasks.target import make_target
from pipeline.tasks.task import Task
from teacher.dumps import dump
from teacher.finetune.common import save_teacher
from teacher.models.classifier import new_classifier
from teacher.tiny import create_tiny_bert
from tests.helpers.commands import invoke
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS, dump_config
from tests.helpers.joined_sets import Lines, changed_data, joined
from tests.helpers.messages import naming
from tests.helpers.places import send
from tests.helpers.rewritten_shards import rewrite, with_column

LN3 = math.log(3)
NOTHING = {"only_a": 0, "only_b": 0, "other_text": 0, "other_gold": 0, "moved": 0}


def with_logits(logit_set: ExampleSet, folder: Path, *logits: float) -> ExampleSet:
    """A copy in which the teacher has equal predictions for the source rows 24 to 48 of train."""
    copy = ExampleSet.open(Path(shutil.copytree(logit_set.root, folder / logit_set.root.name)))

    def change(table: pa.Table) -> pa.Table:
        return with_column(table, "logits", pa.array([logits] * len(table), table.schema.field("logits").type))

    finish_set(copy.root, rewrite(copy, change), copy.record.scores)
    return ExampleSet.open(copy.root)


def compared(a: Path, b: Path, **flags: Any) -> Diff:
    return diff(DiffSettings(a=str(a), b=str(b), **flags))


def run(*arguments: object) -> Result:
    return invoke("diff", *arguments)


def test_a_set_is_itself(opinion_set: ExampleSet, roles_set: ExampleSet) -> None:
    for logit_set in (opinion_set, roles_set):
        found = compared(logit_set.root, logit_set.root)
        assert found.is_empty
        assert found.settings == {}
        train, validation = found.splits
        assert train == {"split": "train", "both": TRAIN_ROWS, **NOTHING, "largest": 0.0, "agreement": 1.0, "kl": 0.0}
        assert validation["both"] == VALIDATION_ROWS
        for row in found.calibration:
            assert row["accuracy_a"] == pytest.approx(logit_set.record.scores[row["split"]]["accuracy"])


def test_other_logits(opinion_set: ExampleSet, tmp_path: Path) -> None:
    a = with_logits(opinion_set, tmp_path / "a", 0.0, LN3)  # probabilities 1/4, 3/4
    b = with_logits(opinion_set, tmp_path / "b", math.log(7), 0.0)  # 7/8, 1/8
    kl = math.log(2 / 7) / 4 + math.log(6) * 3 / 4
    found = compared(a.root, b.root)
    assert not found.is_empty
    train, validation = found.splits
    assert train == {
        "split": "train",
        "both": 96,
        **NOTHING,
        "moved": 24,
        "largest": pytest.approx(math.log(7)),
        "agreement": 0.75,
        "kl": pytest.approx(kl * 24 / 96),
    }
    assert (validation["moved"], validation["agreement"], validation["kl"]) == (0, 1, 0)
    labels = a.read("train", ("label", "source_row between 24 and 47 as inside")).to_pylist()
    assert [row["label"] for row in found.classes] == ["bad", "good"] * 2
    for number, row in enumerate(row for row in found.classes if row["split"] == "train"):
        inside = [r["inside"] for r in labels if r["label"] == number]
        assert row["n"] == len(inside)
        assert row["agreement"] == pytest.approx(1 - sum(inside) / len(inside))
        assert row["kl"] == pytest.approx(kl * sum(inside) / len(inside))
        assert abs(row["right_a"] - row["right_b"]) == pytest.approx(sum(inside) / len(inside))
    assert compared(a.root, b.root, tolerance=1.95).is_empty
    assert not compared(a.root, b.root, tolerance=1.94).is_empty


def test_other_rows_texts_and_gold(opinion_set: ExampleSet, work: Path, tmp_path: Path) -> None:
    def change(lines: Lines) -> Lines:
        lines[5]["label"] = 1 - lines[5]["label"]
        return [lines[1], lines[0], *lines[2:-3]]

    send(opinion_set.root, str(tmp_path / "blind"), without_text=True)
    other = joined(tmp_path / "blind", work, changed_data(work, tmp_path, train=change), tmp_path).root
    train, validation = compared(opinion_set.root, other).splits
    assert {name: train[name] for name in ("both", *NOTHING)} == {
        "both": TRAIN_ROWS - 5,
        "only_a": 3,
        "only_b": 0,
        "other_text": 2,
        "other_gold": 1,
        "moved": 0,
    }
    assert {name: validation[name] for name in NOTHING} == NOTHING
    (back, _) = compared(other, opinion_set.root).splits
    assert (back["only_a"], back["only_b"], back["other_text"]) == (0, 3, 2)
    assert compared(opinion_set.root, other).settings.keys() == {"source.train"}
    whole = compared(opinion_set.root, tmp_path / "blind")  # the hash of a text is enough
    assert whole.is_empty
    assert whole.settings == {"text": (None, "left out")}


def test_scores_have_no_answers_to_agree_on(ratings: dict[str, ExampleSet], tmp_path: Path) -> None:
    other = with_logits(ratings["score"], tmp_path, 100.0)
    found = compared(ratings["score"].root, other.root)
    rows = ratings["score"].read("train", ("logits",), "source_row between 24 and 47").column("logits").to_pylist()
    train = {"split": "train", "both": 96, **NOTHING, "moved": 24, "largest": 100 - min(row[0] for row in rows)}
    assert found.splits[0] == train
    assert (found.classes, found.calibration) == ([], [])
    bins = compared(ratings["bins"].root, ratings["bins"].root)
    assert (bins.splits[0]["agreement"], bins.classes) == (1, [])


@pytest.fixture(scope="module")
def other_words(opinion: Task, work: Path, tmp_path_factory: pytest.TempPathFactory) -> ExampleSet:
    """The same task by a teacher with another tokenizer."""
    folder = tmp_path_factory.mktemp("other_words")
    files = [path.read_text() for path in (work / "data" / "opinion").iterdir()]  # whose keys are words, too
    create_tiny_bert(folder / "bert", files, hidden_size=32, num_layers=1)
    torch.manual_seed(1)
    teacher = new_classifier(opinion, make_target(opinion), str(folder / "bert"), None, 32)
    save_teacher(teacher.model, teacher.name, None, folder / "teacher")
    dump(dump_config(work, "opinion", folder, model_name_or_path=str(folder / "teacher")), "distill teacher-dump")
    return ExampleSet.open(folder / "opinion")


def test_other_tokenizers_compare_the_texts_themselves(
    opinion_set: ExampleSet, other_words: ExampleSet, tmp_path: Path
) -> None:
    found = compared(opinion_set.root, other_words.root)
    assert found.settings.keys() == {"teacher.weights", "tokenizer"}
    assert [(row["both"], row["other_text"]) for row in found.splits] == [(TRAIN_ROWS, 0), (VALIDATION_ROWS, 0)]
    send(other_words.root, str(tmp_path / "blind"), without_text=True)
    with pytest.raises(ConfigError, match=naming("blind: ", "distill join")):
        compared(opinion_set.root, tmp_path / "blind")


def test_what_cannot_be_compared_is_refused(
    opinion_set: ExampleSet, roles_set: ExampleSet, own_set: ExampleSet, token_store: Path
) -> None:
    with pytest.raises(ConfigError, match=naming("bad, good (opinion)", "different, same (roles)")):
        compared(opinion_set.root, roles_set.root)
    with pytest.raises(ConfigError, match=naming("tokens/topk: ", "distill diff")):
        compared(opinion_set.root, token_store / "topk")
    write_set_record(own_set.root, own_set.record.model_copy(update={"state": "complete"}))
    with pytest.raises(IntegrityError, match=naming("own/opinion: ", "'complete'")):
        compared(opinion_set.root, own_set.root)
    assert compared(opinion_set.root, own_set.root, allow_unverified=True).is_empty
    shutil.copyfile(*(own_set.root / shard.path for shard in own_set.record.shards[2:4]))
    with pytest.raises(IntegrityError, match=r"examples/train-00001-of-00004\.parquet: "):
        compared(opinion_set.root, own_set.root, allow_unverified=True)


def test_exit_codes_and_json(opinion_set: ExampleSet, roles_set: ExampleSet, tmp_path: Path) -> None:
    other = with_logits(opinion_set, tmp_path, 0.0, LN3)
    same = run(opinion_set.root, opinion_set.root)
    assert (same.exit_code, "equal" in same.stderr) == (0, True)
    differ = run(opinion_set.root, other.root, "--json")
    values = json.loads(differ.stdout)
    assert (differ.exit_code, values["same"]) == (1, False)
    assert values["splits"][0]["moved"] == 24
    assert run(opinion_set.root, roles_set.root).exit_code == 2
    assert run("opinion", "opinon", "--store", opinion_set.root.parent).exit_code == 2
    assert run("opinion", "opinion", "--store", opinion_set.root.parent).exit_code == 0
    table = run(opinion_set.root, other.root)
    assert table.exit_code == 1
    assert "differ" in table.stderr
