"""Texts longer than the teacher's maximum, read in windows: against transformers, window by window."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from pipeline.errors import ConfigError, FingerprintMismatchError
from pipeline.query.diff import diff
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord
from pipeline.sets.set_settings import DiffSettings
from pipeline.sets.signals.rows import logits_of
from student.data import load_examples
from teacher.check import check
from teacher.dumps import dump, open_dump
from teacher.settings import CheckSettings
from tests.helpers.dumps import dump_config
from tests.helpers.messages import naming
from tests.helpers.word_tasks import make_louder

SIZE, STRIDE = {"opinion": 6, "roles": 11}, 2
SPLITS = ("train", "validation")


@pytest.fixture(scope="module")
def store(work: Path, teachers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sets ``opinion`` and ``roles`` by windows, and their teachers, loud enough to tell windows apart; read only."""
    folder = tmp_path_factory.mktemp("windows")
    for name in SIZE:
        make_louder(Path(shutil.copytree(teachers / name, folder / name)))
        write(work, folder / "store", folder, name)
    return folder / "store"


def flags(teachers: Path, name: str = "opinion", **changes: Any) -> dict[str, Any]:
    ours = {"model_name_or_path": str(teachers / name), "max_seq_length": SIZE[name], "doc_stride": STRIDE}
    return ours | changes


def write(work: Path, store: Path, teachers: Path, name: str = "opinion", **changes: Any) -> SetRecord:
    record = dump(dump_config(work, name, store, **flags(teachers, name, **changes)), "distill teacher-dump")
    assert record is not None
    return record


@pytest.mark.parametrize("name", ["opinion", "roles"])
def test_logits_are_the_mean_of_those_of_the_windows(name: str, work: Path, store: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(store.parent / name)
    model = AutoModelForSequenceClassification.from_pretrained(store.parent / name).eval()
    rows = ExampleSet.open(store / name).read("validation", ("sentence1", "sentence2", "logits"))
    counts, means = [], []
    for first, second in zip(rows["sentence1"].to_pylist(), rows["sentence2"].to_pylist(), strict=True):
        is_first = second is None or len(first.split()) > len(second.split())
        half = (SIZE[name] - 3) // 2  # words are tokens here
        windows = tokenizer(
            first if is_first else " ".join(first.split()[:half]),
            second and (second if not is_first else " ".join(second.split()[:half])),
            truncation="only_first" if is_first else "only_second",
            max_length=SIZE[name],
            stride=STRIDE,
            return_overflowing_tokens=True,
        )
        with torch.no_grad():
            said = [
                model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0].double().numpy()
                for ids, types in zip(windows["input_ids"], windows["token_type_ids"], strict=True)
            ]
        counts.append(len(said))
        means.append(np.mean(said, axis=0))
    assert min(counts) < max(counts)
    assert max(counts) > 1
    assert np.ptp(means, axis=0).min() > 0.1
    np.testing.assert_allclose(logits_of(rows, 2), means, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["opinion", "roles"])
def test_whole_texts_are_stored_for_the_student(name: str, store: Path, teachers: Path) -> None:
    logit_set = ExampleSet.open(store / name)
    tokenizer = AutoTokenizer.from_pretrained(teachers / name)
    longest = 0
    for split in SPLITS:
        rows = logit_set.read(split, ("sentence1", "sentence2", "ids1", "ids2")).to_pylist()
        first = [row["sentence1"] for row in rows]
        second = None if rows[0]["sentence2"] is None else [row["sentence2"] for row in rows]
        assert [row["ids1"] for row in rows] == tokenizer(first, add_special_tokens=False)["input_ids"]
        longest = max(longest, *map(len, tokenizer(first, second)["input_ids"]))
        assert load_examples(logit_set, split).ids1.lists() == [row["ids1"] for row in rows]
    assert logit_set.record.max_seq_length == longest > SIZE[name]


def test_card_and_notes_tell_what_was_read(store: Path) -> None:
    single, pairs = (ExampleSet.open(store / name) for name in SIZE)
    card = " ".join((single.root / "README.md").read_text().split())
    assert "windows of 6 tokens" in card
    assert "- nothing unusual" in card
    rows = pairs.read("train", ("ids1", "ids2")).to_pylist() + pairs.read("validation", ("ids1", "ids2")).to_pylist()
    half = (SIZE["roles"] - 3) // 2
    cut = sum(min(len(row["ids1"]), len(row["ids2"])) > half for row in rows)
    assert cut
    assert pairs.record.notes[-1].startswith(f"of {cut} of 136 rows")


def test_check_asks_by_windows_too(work: Path, store: Path) -> None:
    found = check(CheckSettings(set=str(store / "opinion"), manifest=work / "opinion.yaml", sample=1000))
    assert found.passed
    assert found.stored.largest < 1e-5


def test_another_stride_is_another_set(work: Path, store: Path, tmp_path: Path) -> None:
    shutil.copytree(store / "opinion", tmp_path / "opinion")
    for changes, told in (({"doc_stride": 1}, "1"), ({"doc_stride": None}, "nothing")):
        with pytest.raises(FingerprintMismatchError, match=naming("doc_stride: 2", told)):
            write(work, tmp_path, store.parent, **changes)
    config = dump_config(work, "opinion", tmp_path, name="other", **flags(store.parent, doc_stride=1))
    other = dump(config, "distill teacher-dump")
    found = diff(DiffSettings(a=str(store / "opinion"), b=str(tmp_path / "other"), store=store))
    assert found.settings == {"doc_stride": (2, 1)}
    assert max(split["moved"] for split in found.splits) > 0
    assert other
    assert other.max_seq_length == ExampleSet.open(store / "opinion").record.max_seq_length


def test_a_lost_shard_is_written_again_to_the_byte(work: Path, store: Path, tmp_path: Path) -> None:
    whole = ExampleSet.open(Path(shutil.copytree(store / "roles", tmp_path / "roles"))).record
    (tmp_path / "roles" / whole.shards[-1].path).unlink()
    assert write(work, tmp_path, store.parent, "roles") == whole


def test_the_plan_counts_the_tokens_of_all_windows(work: Path, store: Path, tmp_path: Path) -> None:
    for name, logit_set in ((name, ExampleSet.open(store / name)) for name in SIZE):
        planned = open_dump(dump_config(work, name, tmp_path, **flags(tmp_path / "nowhere", name)), "plan").plan()
        assert 0.7 < planned.tokens / tokens_of_windows(logit_set, SIZE[name]) < 1.5


def tokens_of_windows(logit_set: ExampleSet, size: int) -> int:
    total = 0
    for split in SPLITS:
        for row in logit_set.read(split, ("ids1", "ids2")).to_pylist():
            specials = 2 if row["ids2"] is None else 3
            short, long = sorted([len(row["ids1"]), len(row["ids2"] or [])])
            while short + long + specials > size:
                short = min(short, (size - specials) // 2)
                total += size
                long -= size - specials - short - STRIDE
                if long <= STRIDE:
                    break
            else:
                total += short + long + specials
    return total


def test_what_does_not_go_with_windows_is_refused(work: Path, store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--doc-stride", "states", "attention", "--keep")):
        dump_config(work, "opinion", tmp_path, **flags(store.parent, states="1", attention="1"))
    with pytest.raises(ConfigError, match=naming("--doc-stride: ", "--signal logits")):
        dump_config(work, "opinion", tmp_path, **flags(store.parent, signal="vectors"))
    wide = dump_config(work, "opinion", tmp_path, **flags(store.parent, doc_stride=4))
    for act in (partial(dump, wide, "distill teacher-dump"), lambda: open_dump(wide, "plan").plan()):
        with pytest.raises(ConfigError, match=naming("--doc-stride: 4", "window of 6")):
            act()
    assert not list(tmp_path.rglob("*.json"))
