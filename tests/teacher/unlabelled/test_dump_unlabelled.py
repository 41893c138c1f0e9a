"""Sets with unlabelled rows: which rows they get, what is left out and counted, how they are resumed and extended."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, DataError, FingerprintMismatchError
from pipeline.files import sha256
from pipeline.sets.card import card_text
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import read_set_record
from pipeline.sets.record_parts import UnlabelledRecord, fingerprint
from pipeline.sets.signals.rows import logits_of
from pipeline.sets.verify import verify_shards
from teacher.dumps import dump, open_dump
from teacher.dumps.examples import ExamplesJob
from teacher.settings import DumpSettings
from tests.helpers.commands import distill, invoke, kill_when
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS, dump_config
from tests.helpers.messages import naming

NEW = [f"the {thing} was great but the music was {word} ." for thing in ("tea", "rice", "door") for word in "abcd"]


def texts_of(work: Path, split: str, task: str = "opinion") -> list[str]:
    lines = (work / "data" / task / f"{split}.jsonl").read_text().splitlines()
    return [json.loads(line)["sentence1"] for line in lines]


def write_parquet(path: Path, texts: list[str], column: str = "sentence1") -> Path:
    pq.write_table(pa.table({column: texts}), path)
    return path


def add(work: Path, store: Path, text: Path | str, task: str = "opinion", **changes: Any) -> ExampleSet:
    config = dump_config(work, task, store, unlabelled=str(text), **changes)
    record = dump(config, "distill teacher-dump --unlabelled")
    assert record is not None
    assert record.state == "verified"
    return ExampleSet.open(store / record.name)


def unlabelled_of(logit_set: ExampleSet) -> UnlabelledRecord:
    assert logit_set.record.unlabelled is not None
    return logit_set.record.unlabelled


def added(logit_set: ExampleSet) -> list[tuple[str, str | None]]:
    rows = logit_set.read("train", ("sentence1", "sentence2"), "origin = 'unlabelled'").to_pylist()
    return [(row["sentence1"], row["sentence2"]) for row in rows]


def sentences_added(logit_set: ExampleSet) -> list[str]:
    return [first for first, _ in added(logit_set)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that the teacher reads, but for those that it is tried on first."""
    seen: list[int] = []

    predict = ExamplesJob.predict

    def noted(job: ExamplesJob, inputs: Any, advance: Any) -> Any:
        seen.append(len(inputs))
        return predict(job, inputs, advance)

    monkeypatch.setattr(ExamplesJob, "predict", noted)
    return seen


def test_what_is_added_and_what_is_left_out(work: Path, store: Path, tmp_path: Path, capsys: Any) -> None:
    dev, own = texts_of(work, "validation"), texts_of(work, "train")
    found = [NEW[0], "", dev[3].upper(), own[5].replace(" ", "  "), NEW[1], NEW[0].title(), "...", f"{dev[0]} or so"]
    logit_set = add(work, tmp_path, write_parquet(tmp_path / "my.parquet", found))
    rows = logit_set.read("train", ("*",), f"source_row >= {TRAIN_ROWS}").to_pylist()
    assert [row["sentence1"] for row in rows] == [NEW[0], NEW[1]]
    assert [(row["source_row"], row["variant"], row["origin"]) for row in rows] == [
        (TRAIN_ROWS, 0, "unlabelled"),
        (TRAIN_ROWS + 1, 0, "unlabelled"),
    ]
    assert {(row["label"], row["score"]) for row in rows} == {(None, None)}
    record = unlabelled_of(logit_set)
    expected = {"first_row": TRAIN_ROWS, "found": 8, "empty": 2, "near_dev": 2, "repeated": 2, "rows": 2, "cut": 0}
    assert record.model_dump(include=set(expected)) == expected
    assert record.undrawn == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert f"{tmp_path / 'my.parquet'}: no word in rows 1, 6" in printed
    assert "2 of 8 rows are near copies" in printed
    assert "--keep-near-copies" in printed

    plain = ExampleSet.open(store / "opinion")
    columns = ("source_row", "origin", "sentence1", "label", "text_hash")
    assert logit_set.read("train", columns, f"source_row < {TRAIN_ROWS}") == plain.read("train", columns)
    assert logit_set.read("validation", columns) == plain.read("validation", columns)
    for split, scores in plain.record.scores.items():  # rows without gold do not change them
        assert logit_set.record.scores[split] == pytest.approx(scores)


def test_the_teacher_is_asked_about_them(work: Path, teachers: Path, tmp_path: Path) -> None:
    logit_set = add(work, tmp_path, write_parquet(tmp_path / "my.parquet", NEW))
    data = tmp_path / "data" / "opinion"
    data.mkdir(parents=True)
    shutil.copy(work / "data" / "opinion" / "validation.jsonl", data)
    lines = [json.dumps({"sentence1": text, "label": -1}) for text in NEW]
    (data / "train.jsonl").write_text("\n".join(lines))
    dump(dump_config(work, "opinion", tmp_path, data=tmp_path / "data"), "distill teacher-dump")
    as_rows = ExampleSet.open(tmp_path / "opinion")
    theirs = logits_of(as_rows.read("train", ("logits",)), 2)
    ours = logits_of(logit_set.read("train", ("logits",), "origin = 'unlabelled'"), 2)
    assert ours == pytest.approx(theirs, abs=1e-5)


def test_every_kind_of_file(work: Path, teachers: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    write_parquet(folder / "a.parquet", NEW[:2])
    with (folder / "b.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["sentence1"], [NEW[2]]])
    (folder / "c.tsv").write_text(f"sentence1\n{NEW[3]}\n")
    (folder / "d.jsonl").write_text(json.dumps({"sentence1": NEW[4], "label": 7}) + "\n")  # a label is not looked at
    (folder / "e.txt").write_text(f"{NEW[5]}\r\n\n{NEW[6]}\n")
    (folder / "notes.md").write_text("not read")
    logit_set = add(work, tmp_path, folder)
    assert sentences_added(logit_set) == NEW[:7]
    assert unlabelled_of(logit_set).empty == 1
    for path in sorted(folder.iterdir())[:5]:
        again = add(work, tmp_path, path, name=path.suffix[1:])
        assert set(sentences_added(again)) <= set(NEW)


def test_so_many_are_drawn(work: Path, teachers: Path, tmp_path: Path) -> None:
    text = write_parquet(tmp_path / "my.parquet", NEW)
    drawn = [
        sentences_added(add(work, tmp_path, text, max_unlabelled=5, seed=seed, name=f"drawn-{seed}")) for seed in (1, 2)
    ]
    assert [len(sentences) for sentences in drawn] == [5, 5]
    assert drawn[0] != drawn[1]
    for sentences in drawn:
        assert sentences == [text for text in NEW if text in sentences]
    assert unlabelled_of(ExampleSet.open(tmp_path / "drawn-1")).undrawn == len(NEW) - 5


def test_what_is_cut_is_counted(work: Path, teachers: Path, tmp_path: Path) -> None:
    text = write_parquet(tmp_path / "my.parquet", [NEW[0], "the food was cold " * 9, NEW[1]])
    logit_set = add(work, tmp_path, text, max_seq_length=16)
    assert unlabelled_of(logit_set).cut == 1
    lengths = logit_set.read("train", ("len(ids1) as n",), "origin = 'unlabelled'").column("n").to_pylist()
    assert lengths[1] == 14
    assert max(lengths[0], lengths[2]) < 14


def test_record_and_card_tell_it(work: Path, teachers: Path, tmp_path: Path) -> None:
    text = write_parquet(tmp_path / "my.parquet", [*NEW, NEW[0]])
    record = add(work, tmp_path, text).record
    assert record.name == "opinion-unlabelled"
    assert record.contents == "logits of a task with unlabelled rows"
    assert record.splits["train"].rows == TRAIN_ROWS + len(NEW)
    stated = unlabelled_of(ExampleSet.open(tmp_path / record.name)).settings
    assert {f"source.unlabelled.{name}": value for name, value in stated.items()}.items() <= record.settings.items()
    assert stated.keys() == {"rules", "content", "pairs", "seed"}
    card = " ".join(card_text(record).split())
    assert f"source row {TRAIN_ROWS}," in card
    assert f"| rows added | {len(NEW)} |" in card
    assert "| left out: same text as another row | 1 |" in card


def test_other_text_is_another_set(work: Path, teachers: Path, tmp_path: Path) -> None:
    text = write_parquet(tmp_path / "my.parquet", NEW)
    first = add(work, tmp_path, text).record
    assert add(work, tmp_path, text).record == first
    write_parquet(tmp_path / "other.parquet", NEW[:-1])
    with pytest.raises(FingerprintMismatchError, match=r"source\.unlabelled\.content"):
        add(work, tmp_path, tmp_path / "other.parquet")
    with pytest.raises(FingerprintMismatchError, match=naming("source.unlabelled.max: ", "100")):
        add(work, tmp_path, text, max_unlabelled=100)
    assert fingerprint(first.settings) == first.fingerprint


def test_killed_and_resumed(work: Path, teachers: Path, tmp_path: Path) -> None:
    text = write_parquet(tmp_path / "my.parquet", NEW)
    undisturbed = add(work, tmp_path, text, name="undisturbed", rows_per_shard=2)
    flags: list[object] = ["teacher-dump", "--manifest", work / "opinion.yaml", "--data", work / "data"]
    flags += ["--store", tmp_path, "--model-name-or-path", work / "teachers" / "opinion", "--max-seq-length", 32]
    flags += ["--name", "killed", "--rows-per-shard", 2, "--unlabelled", text, "--max-tokens-per-batch", 16]
    root = tmp_path / "killed"
    kill_when(distill(*flags), lambda: len(list(root.glob("examples/train-*.parquet"))) >= 3)
    assert read_set_record(root).state == "staged"
    resumed = add(work, tmp_path, text, name="killed", rows_per_shard=2)
    columns = ("source_row", "variant", "origin", "sentence1", "label", "text_hash")
    assert resumed.read("train", columns) == undisturbed.read("train", columns)
    assert resumed.record.fingerprint == undisturbed.record.fingerprint


def test_a_set_is_extended_by_them(work: Path, store: Path, tmp_path: Path, asked: list[int]) -> None:
    text = write_parquet(tmp_path / "my.parquet", NEW)
    old = store / "opinion"
    extended = add(work, tmp_path, text, extend=str(old))
    assert sum(asked) == len(NEW)
    mine = {path.name: sha256(path) for path in (extended.root / "examples").iterdir()}
    assert {path.name: sha256(path) for path in (old / "examples").iterdir()}.items() <= mine.items()
    anew = add(work, tmp_path, text, name="anew")
    assert extended.record.fingerprint == anew.record.fingerprint
    columns = ("source_row", "origin", "sentence1", "label", "text_hash")
    assert extended.read("train", columns) == anew.read("train", columns)

    asked.clear()  # more of the task's rows move the unlabelled ones, whose answers are known
    shutil.copytree(work / "data" / "opinion", tmp_path / "data" / "opinion")
    with (tmp_path / "data" / "opinion" / "train.jsonl").open("a") as stream:
        stream.write(json.dumps({"sentence1": "the wine was good .", "label": 1}) + "\n")
    more = add(work, tmp_path, text, extend="anew", name="more", data=tmp_path / "data")
    assert sum(asked) == 1
    assert unlabelled_of(more).first_row == TRAIN_ROWS + 1
    assert sentences_added(more) == NEW


def test_rows_that_were_unlabelled_are_written_anew(work: Path, teachers: Path, tmp_path: Path) -> None:
    """The same texts without gold as rows of the task are of another origin."""
    text = write_parquet(tmp_path / "my.parquet", NEW)
    add(work, tmp_path, text, rows_per_shard=12)
    shutil.copytree(work / "data" / "opinion", tmp_path / "data" / "opinion")
    with (tmp_path / "data" / "opinion" / "train.jsonl").open("a") as stream:
        stream.writelines(json.dumps({"sentence1": new, "label": -1}) + "\n" for new in NEW)
    flags = {"data": tmp_path / "data", "extend": "opinion-unlabelled", "name": "own", "rows_per_shard": 12}
    record = dump(dump_config(work, "opinion", tmp_path, **flags), "distill teacher-dump")
    assert record is not None
    verify_shards(tmp_path / "own", record)
    assert record.unlabelled is None
    assert ExampleSet.open(tmp_path / "own").read("train", ("distinct origin",)).num_rows == 1


def test_variants_are_of_the_tasks_own_rows(work: Path, teachers: Path, tmp_path: Path) -> None:
    text = write_parquet(tmp_path / "my.parquet", NEW)
    flags: dict[str, Any] = {
        "augment": "mask-pos",
        "pos_probability": 0,
        "mask_probability": 0.3,
        "num_variants": 3,
        "seed": 1,
    }
    logit_set = add(work, tmp_path, text, **flags)
    record = logit_set.record
    assert record.name == "opinion-mask-pos-unlabelled"
    assert record.contents == "logits of a task with variants and unlabelled rows"
    assert record.augmentation is not None
    assert record.augmentation.source_rows == TRAIN_ROWS
    rows = logit_set.read("train", ("source_row", "variant", "origin")).to_pylist()
    assert {row["source_row"] for row in rows if row["variant"]} <= set(range(TRAIN_ROWS))
    assert sum(row["origin"] == "unlabelled" for row in rows) == len(NEW)
    assert len(rows) == TRAIN_ROWS + record.augmentation.rows + len(NEW)


def test_the_plan_counts_them(work: Path, teachers: Path, tmp_path: Path) -> None:
    text = write_parquet(tmp_path / "my.parquet", NEW)
    plan = open_dump(dump_config(work, "opinion", tmp_path, unlabelled=str(text)), "plan").plan()
    assert plan.rows == {"train": TRAIN_ROWS + len(NEW), "validation": VALIDATION_ROWS}
    assert plan.shards == len(add(work, tmp_path, text).record.shards)


def write_pairs(path: Path, pairs: list[tuple[str, str]], names: tuple[str, str] = ("sentence1", "sentence2")) -> Path:
    pq.write_table(
        pa.table({name: list(column) for name, column in zip(names, zip(*pairs, strict=True), strict=True)}), path
    )
    return path


PAIRS = [
    ("anna met tom .", "tom was met by anna ."),
    ("anna met tom .", "tom met anna ."),
    ("Anna met Tom", "tom met anna"),
]


def test_pairs_of_two_columns(work: Path, teachers: Path, tmp_path: Path) -> None:
    logit_set = add(work, tmp_path, write_pairs(tmp_path / "my.parquet", PAIRS), "roles")
    assert added(logit_set) == PAIRS[:2]
    assert unlabelled_of(logit_set).repeated == 1
    assert unlabelled_of(logit_set).settings["pairs"] == "columns"


def test_pairs_of_neighbours_by_what_there_is(work: Path, teachers: Path, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("Anna met Tom. Tom saw Ben! Ben ran.\nClara slept. David ate.\n")
    logit_set = add(work, tmp_path, tmp_path / "my.txt", "roles")
    expected = [("Anna met Tom.", "Tom saw Ben!"), ("Tom saw Ben!", "Ben ran."), ("Clara slept.", "David ate.")]
    assert added(logit_set) == expected
    assert unlabelled_of(logit_set).settings["pairs"] == "neighbours"


def test_pairs_of_similar_sentences(work: Path, teachers: Path, tmp_path: Path) -> None:
    lines = ["A zebra ate hay.", "Tom slept.", "One zebra ate grass.", "Clara and Tom ran."]
    (tmp_path / "my.txt").write_text("\n".join(lines))
    logit_set = add(work, tmp_path, tmp_path / "my.txt", "roles")
    assert {frozenset(pair) for pair in added(logit_set)} == {frozenset(lines[0::2]), frozenset(lines[1::2])}
    assert unlabelled_of(logit_set).settings["pairs"] == "similar"
    with pytest.raises(DataError, match=naming("--unlabelled", "my.txt: ")):
        add(work, tmp_path, tmp_path / "my.txt", "roles", unlabelled_pairs="neighbours", name="none")


def test_sentences_of_a_corpus_by_name(
    work: Path, teachers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"The {word}{k} was here. Tom saw the {word}." for k, word in enumerate(["dog", "cat"] * 200)]
    write_parquet(tmp_path / "wikitext.parquet", texts, "text")
    monkeypatch.setenv("DISTILL_DATA", str(tmp_path))
    logit_set = add(work, tmp_path, "wikitext", max_unlabelled=20)
    sentences = sentences_added(logit_set)
    assert len(sentences) == 20
    assert all(sentence in " ".join(texts) for sentence in sentences)
    assert unlabelled_of(logit_set).found < 400  # some of its documents were read
    pairs = add(work, tmp_path, "wikitext", "roles", max_unlabelled=20)
    assert {f"{a} {b}" for a, b in added(pairs)} <= set(texts)
    with pytest.raises(ConfigError, match=naming("--unlabelled wikitext: ", "--max-unlabelled")):
        add(work, tmp_path, "wikitext")
    with pytest.raises(ConfigError, match=naming("--unlabelled wikitxt: ", "'wikitext'")):
        add(work, tmp_path, "wikitxt")


def test_wrong_columns_and_rows_are_named(work: Path, teachers: Path, tmp_path: Path) -> None:
    text = write_parquet(tmp_path / "my.parquet", NEW, "sentense1")
    with pytest.raises(DataError, match=naming("my.parquet: ", "'sentence1' or 'text'", "'sentense1'")):
        add(work, tmp_path, text)
    text = write_pairs(tmp_path / "pairs.parquet", PAIRS, ("sentence1", "sentnce2"))
    with pytest.raises(DataError, match=naming("pairs.parquet: ", "'sentence2'", "'sentnce2'")):
        add(work, tmp_path, text, "roles")
    pq.write_table(pa.table({"sentence1": [NEW[0], None]}), tmp_path / "null.parquet")
    with pytest.raises(DataError, match=naming("null.parquet: 'sentence1'", "row 1")):
        add(work, tmp_path, tmp_path / "null.parquet")
    pq.write_table(pa.table({"sentence1": [1, 2]}), tmp_path / "int.parquet")
    with pytest.raises(DataError, match=naming("int.parquet: ", "'sentence1'", "int64")):
        add(work, tmp_path, tmp_path / "int.parquet")
    (tmp_path / "latin.txt").write_bytes(b"fine\nna\xefve\n")
    with pytest.raises(DataError, match=naming("latin.txt: line 2: ", "0xef", "UTF-8")):
        add(work, tmp_path, tmp_path / "latin.txt")
    (tmp_path / "my.doc").write_text("x")
    with pytest.raises(DataError, match=naming("my.doc: ", "'.doc'", ".parquet, .jsonl, .csv, .tsv, .txt")):
        add(work, tmp_path, tmp_path / "my.doc")
    write_parquet(tmp_path / "dev.parquet", texts_of(work, "validation"))
    with pytest.raises(DataError, match=naming("dev.parquet: ", "'near_dev': 40")):
        add(work, tmp_path, tmp_path / "dev.parquet")
    assert not (tmp_path / "opinion-unlabelled").exists()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"max_unlabelled": 3}, naming("--max-unlabelled: ", "--unlabelled")),
        ({"unlabelled_pairs": "similar"}, naming("--unlabelled-pairs: ", "--unlabelled")),
        ({"seed": 3}, "--seed: "),
        ({"unlabelled": "x.txt", "splits": "train"}, naming("--splits train: ", "--unlabelled")),
    ],
)
def test_flags_that_do_not_go_together(flags: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        DumpSettings.from_flags(task="mrpc", **flags)


def test_pairs_are_for_tasks_of_pairs(work: Path, teachers: Path, tmp_path: Path) -> None:
    text = write_parquet(tmp_path / "my.parquet", NEW)
    with pytest.raises(ConfigError, match=naming("--unlabelled-pairs: ", "'opinion'")):
        add(work, tmp_path, text, unlabelled_pairs="similar")


def test_the_command_prints_what_was_left_out(work: Path, teachers: Path, tmp_path: Path) -> None:
    text = write_parquet(tmp_path / "my.parquet", [*NEW, texts_of(work, "validation")[0]])
    flags = ["--manifest", work / "opinion.yaml", "--data", work / "data", "--store", tmp_path, "--max-seq-length", 32]
    result = invoke("teacher-dump", *flags, "--model-name-or-path", work / "teachers" / "opinion", "--unlabelled", text)
    assert result.exit_code == 0, result.output
    printed = " ".join(result.stdout.replace("│", " ").split())
    assert f"rows added {len(NEW)}" in printed
    assert "left out: near copies of dev rows 1" in printed


def test_near_copies_are_added_on_request(work: Path, teachers: Path, tmp_path: Path) -> None:
    found = [NEW[0], f"{texts_of(work, 'validation')[0]} or so"]
    logit_set = add(work, tmp_path, write_parquet(tmp_path / "my.parquet", found), keep_near_copies=True)
    assert sentences_added(logit_set) == found
    assert unlabelled_of(logit_set).settings["near_copies"] == "kept"
    assert unlabelled_of(logit_set).near_dev == 0
