"""What a cascade hands on is collected, and a set with it trains a student that hands on less."""

import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.verify import verify_shards
from pipeline.sources import collected
from pipeline.sources.collected import Collector, collected_lines
from pipeline.tasks.target import softmax
from pipeline.text.tokenizer import wordpiece
from student.cascade.cascade_file import CascadeRecord, StageRecord, write_cascade
from student.predict.predictor import Predictor
from student.train import train
from teacher.check import check
from teacher.imported.extend_set import extend_set
from teacher.imported.import_settings import CollectedFolder
from teacher.settings import CheckSettings
from tests.helpers.commands import distill, invoke, kill_when
from tests.helpers.dumps import TRAIN_ROWS
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config

NAMES = ("bad", "good")
NEW = [f"the {thing} was {word} ." for thing in ("soup", "wine", "band") for word in ("dull", "fine", "bleak")]


def write(folder: Path, texts: Sequence[Sequence[str]], p_NC: Sequence[Sequence[float]], **flags: bool) -> Path:
    """A folder of collected rows, of which the second stage answered all."""
    one = Collector(folder, flags.get("has_text", True))
    columns = [list(column) for column in zip(*texts, strict=True)]
    stage_N = np.ones(len(texts), dtype=np.int64)
    parts = (columns[0], columns[1] if len(columns) > 1 else None)
    one.add(parts, np.array(p_NC, dtype=np.float32), stage_N, NAMES, ("small", "large"))
    one.close()
    return folder


def some(folder: Path, texts: Sequence[str] = NEW, **flags: bool) -> Path:
    return write(folder, [[text] for text in texts], [[0.25, 0.75]] * len(texts), **flags)


def extended(old: ExampleSet, folder: Path, store: Path, **flags: Any) -> ExampleSet:
    config = CollectedFolder(extend=str(old.root), file=folder, store=store, **flags)
    return ExampleSet.open(extend_set(config, "distill import").root)


def test_only_what_a_later_stage_answered_is_written(tmp_path: Path) -> None:
    one = Collector(tmp_path, has_text=True)
    p_NC = np.array([[0.5, 0.5], [0.25, 0.75], [1, 0]], dtype=np.float32)
    one.add((["a", "b", 'c"\n'], None), p_NC, np.array([0, 1, 2]), NAMES, ("first", "second", "third"))
    one.add((["a"], None), p_NC[:1], np.array([0]), NAMES, ("first", "second", "third"))
    one.close()
    (first, second) = (line for _, line in collected_lines(tmp_path))
    assert (first["sentence1"], first["stage"], first["probabilities"]) == ("b", "second", {"bad": 0.25, "good": 0.75})
    assert (second["sentence1"], second["stage"]) == ('c"\n', "third")


def test_full_files_are_followed_by_others_and_an_unfinished_line_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collected, "FILE_BYTES", 200)
    one = Collector(tmp_path, has_text=True)
    for number in range(6):
        one.add(([f"text {number}"], None), np.array([[0.5, 0.5]]), np.array([1]), NAMES, ("small", "large"))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    assert [line["sentence1"] for _, line in collected_lines(tmp_path)] == [f"text {number}" for number in range(6)]
    with files[0].open("a") as stream:
        stream.write('{"sentence1": "of a killed')
    assert len(list(collected_lines(tmp_path))) == 6
    with files[1].open("a") as stream:
        stream.write("not JSON\n")
    with pytest.raises(DataError, match=naming(files[1].name)):
        list(collected_lines(tmp_path))


@pytest.mark.parametrize("content", ["", '{"sentence1": "of a killed'])
def test_a_folder_without_a_whole_line_is_refused(content: str, opinion_set: ExampleSet, tmp_path: Path) -> None:
    (tmp_path / "collected-1-1.jsonl").write_text(content)
    done = invoke("import", tmp_path, "--extend", opinion_set.root, "--store", tmp_path)
    assert done.exit_code == 2
    assert str(tmp_path) in done.stderr


def test_after_half_a_line_a_new_file_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk. The half line would otherwise be joined with the next one, and no row could be read."""
    one, write_all = Collector(tmp_path, has_text=True), os.write
    answer = (np.array([[0.5, 0.5]]), np.array([1]), NAMES, ("small", "large"))
    one.add((["whole"], None), *answer)
    monkeypatch.setattr(os, "write", lambda file, data: write_all(file, data[:20]))
    one.add((["half"], None), *answer)
    monkeypatch.undo()
    monkeypatch.setattr(time, "monotonic", lambda: np.inf)
    one.add((["later"], None), *answer)
    assert [line["sentence1"] for _, line in collected_lines(tmp_path)] == ["whole", "later"]


def test_a_fork_writes_a_file_of_its_own(tmp_path: Path) -> None:
    one = Collector(tmp_path, has_text=True)
    answer = (np.array([[0.5, 0.5]]), np.array([1]), NAMES, ("small", "large"))
    one.add((["parent"], None), *answer)
    process = get_context("fork").Process(target=one.add, args=((["child"], None), *answer))
    process.start()
    process.join()
    one.add((["parent again"], None), *answer)
    found = {place.partition(",")[0]: line["sentence1"] for place, line in collected_lines(tmp_path)}
    assert sorted(found.values()) == ["child", "parent again"]


def test_a_full_disk_costs_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = Collector(tmp_path / "gone", has_text=True)
    (tmp_path / "gone").rmdir()
    answer = (np.array([[0.5, 0.5]]), np.array([1]), NAMES, ("small", "large"))
    one.add((["text"], None), *answer)
    assert "--collect" in capsys.readouterr().err


def test_extended_with_and_without_text(work: Path, opinion_set: ExampleSet, tmp_path: Path) -> None:
    new = extended(opinion_set, some(tmp_path / "collected"), tmp_path)
    verify_shards(new.root, new.record)
    rows = new.read("train", ("source_row", "origin", "sentence1", "label", "logits")).to_pylist()
    assert [row["sentence1"] for row in rows[TRAIN_ROWS:]] == NEW
    assert {(row["origin"], row["label"]) for row in rows[TRAIN_ROWS:]} == {("unlabelled", None)}
    logits_NC = np.array([row["logits"] for row in rows])
    np.testing.assert_allclose(softmax(logits_NC[TRAIN_ROWS:]), [[0.25, 0.75]] * len(NEW), rtol=1e-5)
    # They are around the mean of the set's own logits, because a loss between logits sees a constant.
    first = opinion_set.record.shards_of("train")[0].stop
    np.testing.assert_allclose(logits_NC[TRAIN_ROWS:].mean(), logits_NC[:first].mean(), rtol=1e-4)
    old = opinion_set.read("train", ("sentence1", "logits"))
    assert old.equals(new.read("train", ("sentence1", "logits"), f"source_row < {TRAIN_ROWS}"))
    shared = opinion_set.record.shards[0]
    assert (new.root / shared.path).samefile(opinion_set.root / shared.path)
    # The teacher's own rows are checked as before.
    assert check(CheckSettings(set=str(new.root), manifest=work / "opinion.yaml", sample=500)).passed

    folder = some(tmp_path / "hashes", has_text=False)
    assert not any(text in path.read_text() for text in NEW for path in folder.iterdir())
    with pytest.raises(ConfigError, match=naming("--data")):
        extended(opinion_set, folder, tmp_path / "no")
    (tmp_path / "texts.csv").write_text("sentence1\n" + "\n".join(NEW[1:]))
    flags = ("--data", tmp_path / "texts.csv", "--store", tmp_path, "--name", "b")
    result = invoke("import", folder, "--extend", opinion_set.root, *flags, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["added"], found["left_out"]["without_text"]) == (len(NEW) - 1, 1)


def test_repeated_texts_and_copies_of_dev_rows_are_left_out_and_a_second_folder_adds(
    work: Path, opinion_set: ExampleSet, tmp_path: Path
) -> None:
    (known,) = opinion_set.read("train", ("sentence1",), "source_row = 3").to_pydict()["sentence1"]
    (dev,) = opinion_set.read("validation", ("sentence1",), "source_row = 3").to_pydict()["sentence1"]
    one = extended(opinion_set, some(tmp_path / "first", [known, dev, *NEW[:4], NEW[0]]), tmp_path, name="one")
    record = one.record.unlabelled
    assert record is not None
    assert (record.rows, record.found, record.repeated + record.near_dev) == (4, 7, 3)
    two = extended(one, some(tmp_path / "second"), tmp_path, name="two")
    record = two.record.unlabelled
    assert record is not None
    assert (record.rows, record.first_row, record.settings["collected"]) == (len(NEW), TRAIN_ROWS, len(NEW))
    verify_shards(two.root, two.record)
    assert (
        check(CheckSettings(set=str(two.root), manifest=work / "opinion.yaml", sample=500)).rows
        == opinion_set.record.num_rows
    )
    with pytest.raises(DataError, match=naming("first")):
        extended(two, some(tmp_path / "first"), tmp_path, name="three")


def test_a_set_with_variants_is_extended(augmented_set: ExampleSet, tmp_path: Path) -> None:
    new = extended(augmented_set, some(tmp_path / "collected"), tmp_path)
    verify_shards(new.root, new.record)
    assert new.record.num_rows == augmented_set.record.num_rows + len(NEW)


def test_pairs_are_extended_and_other_inputs_and_labels_refused(
    roles_set: ExampleSet, opinion_set: ExampleSet, tmp_path: Path
) -> None:
    names, pairs = roles_set.record.target.names, [["the cook ate .", "nobody ate ."], ["a boy ran .", "a boy sat ."]]
    folder = tmp_path / "pairs"
    one = Collector(folder, has_text=True)
    p_NC = np.full((2, len(names)), 1 / len(names))
    one.add(([a for a, _ in pairs], [b for _, b in pairs]), p_NC, np.ones(2, dtype=np.int64), names, ("s", "l"))
    new = extended(roles_set, folder, tmp_path)
    found = new.read("train", ("sentence1", "sentence2"), "origin = 'unlabelled'").to_pydict()
    assert list(map(list, zip(*found.values(), strict=True))) == pairs
    with pytest.raises(DataError, match=naming("labels")):
        extended(opinion_set, folder, tmp_path)
    with pytest.raises(DataError, match=naming("texts")):
        extended(opinion_set, write(tmp_path / "wrong", pairs, [[0.5, 0.5]] * 2), tmp_path)
    with pytest.raises(DataError, match=naming("add up")):
        extended(opinion_set, write(tmp_path / "sum", [["one"]], [[0.5, 0.9]]), tmp_path)
    with pytest.raises(DataError, match=naming("--collect")):
        extended(opinion_set, tmp_path / "nothing", tmp_path)


def test_killed_and_repeated_is_as_undisturbed(opinion_set: ExampleSet, tmp_path: Path) -> None:
    folder = some(tmp_path / "collected", [f"{text} number {k}" for k in range(40) for text in NEW])
    flags = ("import", folder, "--extend", opinion_set.root, "--rows-per-shard", "10", "--name", "new")
    root = tmp_path / "a" / "new"
    kill_when(distill(*map(str, flags), "--store", str(root.parent)), lambda: len(list(root.glob("*/*.parquet"))) > 9)
    assert invoke(*flags, "--store", root.parent).exit_code == 0
    assert invoke(*flags, "--store", tmp_path / "b").exit_code == 0
    a, b = (ExampleSet.open(tmp_path / name / "new").record for name in "ab")
    assert a.fingerprint == b.fingerprint
    assert [shard.sha256 for shard in a.shards] == [shard.sha256 for shard in b.shards]


def test_a_student_alone_collects_nothing(opinion_run: Path, tmp_path: Path) -> None:
    result = invoke("predict", opinion_run, "a text", "--collect", tmp_path)
    assert result.exit_code == 2
    assert "--collect" in result.stderr
    result = invoke("predict", opinion_run, "a text", "--collect-without-text")
    assert result.exit_code == 2
    result = invoke("serve", opinion_run, opinion_run, "--collect", tmp_path)
    assert result.exit_code == 2
    assert "--collect" in result.stderr


# Three rounds: a teacher that knows all words, and a set that begins with few of them.

GOOD, BAD = ([f"{kind}{number}" for number in range(20)] for kind in ("good", "bad"))
FIRST_WORDS = 4


def sentences(count: int, words: int, seed: int) -> Iterator[tuple[str, int]]:
    """Sentences of three words of one kind, and their labels."""
    draw = random.Random(seed)  # noqa: S311
    for _ in range(count):
        label = draw.randrange(2)
        yield " ".join(draw.choices((BAD, GOOD)[label][:words], k=3)), label


def first_set(folder: Path) -> ExampleSet:
    """A set of sentences of the first words, with the teacher's answers."""
    folder.mkdir()
    rows = {"train": list(sentences(60, FIRST_WORDS, 1)), "validation": list(sentences(30, 20, 2))}
    for split, some_rows in rows.items():
        lines = [json.dumps({"sentence": text, "label": label}) for text, label in some_rows]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    (folder / "words.yaml").write_text(
        "name: words\nversion: 1\ntype: classification\nlabels: [bad, good]\nmetrics: [accuracy]\n"
        "columns: {sentence1: sentence, label: label}\nsplits: {train: null, validation: null}\n"
    )
    answers = [
        {"split": s, "source_row": n, "probabilities": probabilities(y)}
        for s in rows
        for n, (_, y) in enumerate(rows[s])
    ]
    (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, answers)))
    (folder / "tokenizer.json").write_text(wordpiece([*GOOD, *BAD], strip_accents=False).to_str())
    places = ("--manifest", folder / "words.yaml", "--data", folder, "--tokenizer", folder / "tokenizer.json")
    flags = ("--teacher", "words", "--store", folder / "store", "--name", "round-0")
    result = invoke("import", folder / "answers.jsonl", *places, *flags)
    assert result.exit_code == 0, result.stderr
    return ExampleSet.open(folder / "store" / "round-0")


def probabilities(label: int) -> dict[str, float]:
    return {"bad": 0.95, "good": 0.05} if label == 0 else {"bad": 0.05, "good": 0.95}


def test_in_three_rounds_less_and_less_is_handed_on(tmp_path: Path) -> None:
    logit_set = first_set(tmp_path / "words")
    # The last stage is a student that has seen all words; it stands for the teacher.
    everything = write(
        tmp_path / "everything",
        [[text] for text, _ in sentences(400, 20, 3)],
        [list(probabilities(label).values()) for _, label in sentences(400, 20, 3)],
    )
    flags = {"embedding": "cbow", "matrix_size": None, "vector_size": 16, "num_train_epochs": 20}
    whole = extended(logit_set, everything, logit_set.root.parent, name="whole")
    train(tiny_config(whole.root, tmp_path / "last", **flags), "")
    probe, shares = [text for text, _ in sentences(300, 20, 4)], []
    for number in range(4):
        run, folder = tmp_path / f"run-{number}", tmp_path / f"cascade-{number}"
        train(tiny_config(logit_set.root, run, **flags), "")
        stages = tuple(
            StageRecord(source=str(one), threshold=threshold, cost=1, hashes=Predictor(one).hashes())
            for one, threshold in ((run, 0.7), (tmp_path / "last", None))
        )
        write_cascade(folder, CascadeRecord(stages=stages, timeout=5, chosen={}, measured={}))
        shares.append(np.mean([answer["stage"] != run.name for answer in Predictor(folder)(probe)]))
        file = tmp_path / f"{number}.jsonl"
        file.write_text("".join(json.dumps({"sentence": t}) + "\n" for t, _ in sentences(60, 20, 10 + number)))
        done = invoke(
            "predict", folder, "--file", file, "--manifest", tmp_path / "words/words.yaml",
            "--output", tmp_path / f"{number}.parquet", "--collect", tmp_path / f"collected-{number}",
        )  # fmt: skip
        assert done.exit_code == 0, done.stderr
        logit_set = extended(
            logit_set, tmp_path / f"collected-{number}", logit_set.root.parent, name=f"round-{number + 1}"
        )
    assert shares[0] > shares[1] > shares[2] > shares[3]
