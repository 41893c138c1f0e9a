"""Answers of a teacher that nobody has, as a set like any other, and the tokenizer of its students."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from distill.apps.report.set_page import set_page
from distill.commands import app
from pipeline.errors import ConfigError, DataError, DistillError, FingerprintMismatchError, TeacherError
from pipeline.query.catalog import open_catalog
from pipeline.query.diff import diff
from pipeline.query.mixture import open_sets
from pipeline.sets.card import card_text
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import read_set_record
from pipeline.sets.set_settings import DiffSettings
from pipeline.sets.verify import verify_shards
from pipeline.tasks.task import load_task
from pipeline.text.tokenizer import wordpiece
from student.train import train
from teacher.check import check
from teacher.imported.import_answers import Imported, import_answers, read_tokenizer
from teacher.imported.import_settings import AnswersFile
from teacher.settings import CheckSettings
from tests.helpers.damage import with_other_bytes
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS
from tests.helpers.messages import naming
from tests.helpers.places import send
from tests.helpers.students import tiny_config

Rows = list[dict[str, Any]]
ROWS = {"train": TRAIN_ROWS, "validation": VALIDATION_ROWS}


@pytest.fixture(scope="module")
def said(opinion_set: ExampleSet) -> Rows:
    """What the teacher of the dumped set says: keys, texts and logits of every row."""
    columns = ("split", "source_row", "sentence1", "logits")
    return [row for split in ROWS for row in opinion_set.read(split, columns).to_pylist()]


def write(folder: Path, rows: Rows, name: str = "answers.jsonl") -> Path:
    path = folder / name
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        cells = [{key: v if isinstance(v, str) else json.dumps(v) for key, v in row.items()} for row in rows]
        texts = [{key: "" if cell == "null" else cell for key, cell in row.items()} for row in cells]
        pc.write_csv(pa.Table.from_pylist(texts), path)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def imported(work: Path, file: Path, store: Path, **flags: Any) -> Imported:
    flags = {"manifest": work / "opinion.yaml", "data": work / "data", "store": store, "teacher": "an LLM", **flags}
    return import_answers(AnswersFile.from_flags(file=file, max_seq_length=32, rows_per_shard=25, **flags), "import")


def refused(work: Path, tmp_path: Path, rows: Rows, kind: type[DistillError], *words: str, **flags: Any) -> bool:
    """Whether an import ends in an error of this kind that contains all these words, and leaves no files behind."""
    with pytest.raises(kind) as caught:
        imported(work, write(tmp_path, rows, "answers.csv"), tmp_path / "store", **flags)
    assert [word for word in words if word not in str(caught.value)] == []
    return not (tmp_path / "store").exists()


@pytest.mark.parametrize("name", ["answers.jsonl", "answers.csv", "answers.parquet"])
def test_answers_in_any_file_and_order_are_the_dump_again(
    name: str, said: Rows, opinion_set: ExampleSet, work: Path, tmp_path: Path
) -> None:
    rows = [{"sentence1": row["sentence1"], "logits": row["logits"]} for row in reversed(said)]
    found = imported(work, write(tmp_path, rows, name), tmp_path, tokenizer=opinion_set.root)
    verify_shards(found.root, found.record)
    assert (found.record.name, found.record.state) == ("opinion-an-LLM", "verified")
    assert found.record.scores == opinion_set.record.scores
    assert (found.unanswered, found.unused, found.missing) == (0, 0, dict.fromkeys(ROWS, 0))
    for split in ROWS:
        columns = ("source_row", "sentence1", "ids1", "text_hash", "label", "logits")
        assert ExampleSet.open(found.root).read(split, columns).equals(opinion_set.read(split, columns))
    found_diff = diff(DiffSettings(a=str(opinion_set.root), b=str(found.root), store=tmp_path))
    assert found_diff.is_empty


def test_the_record_says_what_is_not_known(said: Rows, work: Path, tmp_path: Path) -> None:
    file = write(tmp_path, said)
    found = imported(work, file, tmp_path / "store")
    teacher = found.record.teacher
    assert (teacher.weights_sha256, teacher.num_parameters, found.record.precision) == (None, None, "unknown")
    digest = subprocess.run(["sha256sum", str(file)], capture_output=True, text=True, check=True).stdout.split()[0]
    assert teacher.answers_sha256 == digest == found.record.settings["teacher.imported"]
    card = (found.root / "README.md").read_text()
    assert card == card_text(found.record)
    assert f"SHA-256 `{digest[:16]}…`" in card
    assert "own tokenizer is unknown" in card
    facts = set_page(found.root).sections[0].facts
    assert facts is not None
    assert facts["teacher"].startswith("an LLM, known only by its predictions")
    with open_catalog(tmp_path / "store") as connection:
        query = "select weights_sha256, answers_sha256, teacher from teachers"
        assert connection.execute(query).fetchall() == [(None, digest, "an LLM")]
    with pytest.raises(ConfigError, match=naming("opinion-an-LLM")):
        check(CheckSettings(set=str(found.root)))


def test_rows_without_an_answer_are_told_and_left_out(said: Rows, work: Path, tmp_path: Path) -> None:
    rows = [{"sentence1": row["sentence1"], "logits": row["logits"]} for row in said if row["split"] == "train"]
    kept = {row["sentence1"] for row in rows[10:]}
    for row in rows[:10]:
        row["logits"] = None if row["sentence1"] not in kept else row["logits"]
    silent = sum(row["logits"] is None for row in rows)
    rows.append({"sentence1": "Nobody knows this text.", "logits": [0.0, 1.0]})
    found = imported(work, write(tmp_path, rows), tmp_path)
    texts = {row["sentence1"] for row in rows if row["logits"] is not None}
    in_validation = sum(row["sentence1"] in texts for row in said if row["split"] == "validation")
    assert silent > 0
    assert (found.unanswered, found.unused) == (silent, 1)
    assert found.missing == {"train": silent, "validation": VALIDATION_ROWS - in_validation}
    assert (
        found.record.rows_of("train")
        == TRAIN_ROWS - silent
        == len(ExampleSet.open(found.root).read("train", ("logits",)))
    )
    assert any(f"{silent} rows of train" in note for note in found.record.notes)
    assert ("validation" in found.record.splits) == bool(in_validation)


def test_null_in_a_cell_of_csv_is_no_answer(said: Rows, work: Path, tmp_path: Path) -> None:
    rows = [row | {"logits": json.dumps(row["logits"])} for row in said]
    rows[0]["logits"], rows[1]["logits"] = "null", ""
    pc.write_csv(pa.Table.from_pylist(rows), tmp_path / "answers.csv")
    assert imported(work, tmp_path / "answers.csv", tmp_path).unanswered == 2


def test_a_file_of_the_set_may_come_out_empty(said: Rows, work: Path, tmp_path: Path) -> None:
    rows = [row for row in said if row["split"] == "train" and not 24 <= row["source_row"] < 48]
    found = imported(work, write(tmp_path, rows), tmp_path)
    assert [shard.rows for shard in found.record.shards_of("train")] == [24, 0, 24, 24]
    verify_shards(found.root, found.record)


def test_probabilities_by_name_in_any_order_and_case(said: Rows, work: Path, tmp_path: Path) -> None:
    names = open_labels(work)
    rows = [
        {"sentence1": row["sentence1"], "probabilities": {names[1].upper(): p, names[0]: 1 - p}}
        for row in said
        for p in [1 / (1 + np.exp(row["logits"][0] - row["logits"][1]))]
    ]
    found = imported(work, write(tmp_path, rows), tmp_path)
    logits = np.array([row["logits"] for row in ExampleSet.open(found.root).read("train", ("logits",)).to_pylist()])
    wanted = np.array([row["logits"] for row in said if row["split"] == "train"])
    assert logits[:, 1] - logits[:, 0] == pytest.approx(wanted[:, 1] - wanted[:, 0], abs=1e-4)


def open_labels(work: Path) -> tuple[str, ...]:
    return load_task(manifest=work / "opinion.yaml").labels


def gold_probabilities(work: Path, flipped: bool = False) -> Rows:
    """Answers of a teacher that gives three quarters to gold, or to the other label."""
    rows = []
    for split in ROWS:
        for number, line in enumerate((work / f"data/opinion/{split}.jsonl").read_text().splitlines()):
            place = open_labels(work).index(label) if isinstance(label := json.loads(line)["label"], str) else label
            p = [0.25, 0.25]
            p[place ^ flipped] = 0.75
            rows.append({"split": split, "source_row": number, "probabilities": p})
    return rows


def test_a_wrong_order_of_labels_is_seen_by_gold_and_mended_by_the_flag(work: Path, tmp_path: Path) -> None:
    names = open_labels(work)
    rows, flag = gold_probabilities(work, flipped=True), ",".join(reversed(names))
    assert refused(work, tmp_path, rows, TeacherError, f"--teacher-labels {flag}")
    found = imported(work, write(tmp_path, rows), tmp_path, teacher_labels=flag)
    assert found.record.teacher.labels == tuple(reversed(names))
    assert found.record.scores["train"]["accuracy"] == 1


def test_hard_labels_are_top_1_logprobs(work: Path, tmp_path: Path) -> None:
    names = open_labels(work)
    rows = gold_probabilities(work)
    for row in rows:
        row["logprobs"] = {names[int(np.argmax(row.pop("probabilities")))]: 0.0}
    assert refused(work, tmp_path, rows, DataError, "2 problems", "rows): logprobs: ", "--rest spread")
    found = imported(work, write(tmp_path, rows), tmp_path, rest="spread")
    assert found.record.scores["validation"]["accuracy"] == 1
    assert any("136 answers" in note for note in found.record.notes)
    for row in rows:
        row["label"] = next(iter(row.pop("logprobs")))
    bare = imported(work, write(tmp_path, rows), tmp_path, name="bare")
    logits = [ExampleSet.open(one.root).read("train", ("logits",)) for one in (found, bare)]
    assert logits[0].equals(logits[1])
    assert bare.origin in bare.record.notes
    assert "1e-06" in bare.origin


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda rows: rows[3].update(logits=[0.5]), DataError, ("row 3: logits: 1 numbers",)),
        (lambda rows: rows[3].update(logits=[0.5, "x"]), DataError, ("row 3", "'x'")),
        (lambda rows: rows[3].update(logits="[0.5, NaN]"), DataError, ("row 3", "NaN")),
        (lambda rows: rows[3].update(logits="half"), DataError, ("row 3",)),
        (lambda rows: rows[3].update(logits=[1e39, 0]), DataError, ("row 3",)),
        (lambda rows: rows[3].update(logits={"goood": 1}), DataError, ("row 3: logits: ",)),
        (
            lambda rows: [row.update(logits={"goood": 1}) for row in rows[3:7]],
            DataError,
            (
                "rows 3, 4, 5, … (4 rows): logits: ",
                "'goood'",
            ),
        ),
        (lambda rows: rows[3].update(source_row="x"), DataError, ("row 3: source_row 'x'",)),
        (lambda rows: rows.append(rows[5] | {"logits": [9, 9]}), DataError, ("rows 5 and 136",)),
        (lambda rows: [row.pop("logits") for row in rows], ConfigError, ("split, source_row",)),
        (lambda rows: [row.update(probabilities=[0, 1]) for row in rows], ConfigError, ("--answers",)),
        (lambda rows: [row.update(logits=None) for row in rows], DataError, ("136 rows",)),
        (
            lambda rows: [row.update(split="no-" + row["split"]) for row in rows],
            DataError,
            ("136 keys",),
        ),
        (
            lambda rows: [(row.pop("split"), row.pop("sentence1")) for row in rows],
            DataError,
            ("sentence1", "split"),
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_told(
    change: Callable[[Rows], object],
    kind: type[DistillError],
    words: tuple[str, ...],
    said: Rows,
    work: Path,
    tmp_path: Path,
) -> None:
    rows = [dict(row) for row in said]
    change(rows)
    assert refused(work, tmp_path, rows, kind, *words)


def test_a_strange_file_is_told_before_any_row_is_looked_for(tmp_path: Path) -> None:
    strange = tmp_path / "answers.parquet"
    strange.write_bytes(b"strange")
    config = AnswersFile(file=strange, task="rte", teacher="any", data=tmp_path / "nowhere", store=tmp_path)
    with pytest.raises(DistillError, match=r"answers\.parquet: "):
        import_answers(config, "")


def test_a_text_that_is_not_that_of_its_key_is_refused(said: Rows, work: Path, tmp_path: Path) -> None:
    rows = [dict(row) for row in said]
    rows[2]["sentence1"] = "another text"
    assert refused(work, tmp_path, rows, DataError, "row 2: ", "source row 2 of 'train'")


def test_a_score_is_for_a_task_of_scores(
    said: Rows, ratings: dict[str, ExampleSet], work: Path, tmp_path: Path
) -> None:
    rows = [{"sentence1": row["sentence1"], "score": 1.5} for row in said]
    assert refused(work, tmp_path, rows, ConfigError, "`probabilities`")
    for kind, logit_set in ratings.items():
        columns = ("split", "source_row", "logits")
        answers = [row for split in ROWS for row in logit_set.read(split, columns).to_pylist()]
        for row in answers:
            value = row.pop("logits")
            row |= {"score": value[0]} if kind == "score" else {"logits": value}
        manifest = logit_set.root.parent.parent / "ratings.yaml"
        file = write(tmp_path, answers, f"{kind}.jsonl")
        flags = {"manifest": manifest, "data": manifest.parent, "name": kind}
        found = imported(work, file, tmp_path, **flags)
        assert found.record.target == logit_set.record.target
        assert found.record.scores == logit_set.record.scores


def test_infinity_is_no_rows_number(said: Rows, work: Path, tmp_path: Path) -> None:
    rows = [row | {"source_row": float(row["source_row"])} for row in said]
    rows[3]["source_row"] = float("inf")
    with pytest.raises(DataError, match=naming("row 3: source_row inf")):
        imported(work, write(tmp_path, rows, "answers.parquet"), tmp_path / "store")


def test_it_goes_on_when_repeated_and_refuses_other_settings(said: Rows, work: Path, tmp_path: Path) -> None:
    file = write(tmp_path, said)
    first = imported(work, file, tmp_path)
    shard = first.root / first.record.shards[1].path
    content = shard.read_bytes()
    shard.unlink()
    assert imported(work, file, tmp_path).record.state == "verified"
    assert shard.read_bytes() == content
    with pytest.raises(FingerprintMismatchError, match=naming("max_seq_length: 32", "128")):
        import_answers(
            AnswersFile(
                file=file, teacher="an LLM", store=tmp_path, manifest=work / "opinion.yaml", data=work / "data"
            ),
            "import",
        )


def test_a_lost_file_may_come_back_with_other_bytes(said: Rows, work: Path, tmp_path: Path) -> None:
    file = write(tmp_path, said)
    first = imported(work, file, tmp_path)
    with_other_bytes(first.root)
    assert imported(work, file, tmp_path).record == first.record
    verify_shards(first.root, read_set_record(first.root))


def test_it_is_mixed_shared_and_trained_from(said: Rows, opinion_set: ExampleSet, work: Path, tmp_path: Path) -> None:
    rows = [row | {"logits": [2 * number for number in row["logits"]]} for row in said if row["source_row"] % 3]
    root = imported(work, write(tmp_path, rows), tmp_path, name="other").root
    mixture = open_sets([root, opinion_set.root])
    assert mixture.read("train", ("source_row",)).num_rows == sum(row["split"] == "train" for row in rows)
    send(root, str(tmp_path / "there"))
    record = train(tiny_config(tmp_path / "there", tmp_path / "run", num_train_epochs=1), "distill train-student")
    assert record["state"] == "finished"


def test_it_needs_neither_torch_nor_transformers(said: Rows, work: Path, tmp_path: Path) -> None:
    file = write(tmp_path, said)
    code = f"""
import sys
from pathlib import Path
sys.modules |= dict.fromkeys(("torch", "transformers", "datasets", "accelerate"))
from teacher.imported.import_settings import AnswersFile
from teacher.imported.import_answers import import_answers
import_answers(AnswersFile(file=Path({str(file)!r}), teacher="t", store=Path({str(tmp_path)!r}),
    manifest=Path({str(work / "opinion.yaml")!r}), data=Path({str(work / "data")!r})), "x")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_the_command_tells_what_was_left_out(said: Rows, work: Path, tmp_path: Path) -> None:
    rows = [dict(row) for row in said if row["split"] == "validation"] + [said[0] | {"source_row": 999}]
    rows[1]["logits"] = None
    flags = ["--teacher", "t", "--manifest", str(work / "opinion.yaml"), "--data", str(work / "data")]
    result = CliRunner().invoke(app, ["import", str(write(tmp_path, rows)), *flags, "--store", str(tmp_path)])
    assert result.exit_code == 0, result.stderr
    assert "1 rows of the file" in result.stderr
    assert "1 answers" in result.stderr
    assert "'train'" in result.stderr
    assert f"{VALIDATION_ROWS - 1}" in result.stdout
    assert "the teacher's logits, imported from answers.jsonl" in result.stderr


def test_the_command_tells_of_dev_rows_that_are_training_rows(tmp_path: Path) -> None:
    manifest = tmp_path / "mood.yaml"
    columns = "columns: {sentence1: text, label: mood}\nlabels: [bad, good]\nsplits: {train: , dev: }"
    manifest.write_text(f"name: mood\ntype: classification\n{columns}\nmetrics: [accuracy]\n")
    (tmp_path / "train.csv").write_text("text,mood\nall is well,good\nall is lost,bad\n")
    (tmp_path / "dev.csv").write_text("text,mood\nall is lost,bad\nnothing is well,bad\n")
    rows = [{"text": text, "logits": [0, 1]} for text in ("all is well", "all is lost", "nothing is well")]
    flags = ["--teacher", "t", "--manifest", manifest, "--data", tmp_path, "--store", tmp_path / "store"]
    result = CliRunner().invoke(app, ["import", str(write(tmp_path, rows)), *map(str, flags)])
    assert result.exit_code == 0, result.stderr
    assert "dev: 1 of 2 rows" in result.stderr
    assert 'distill sql "from dev_in_train(mood_t)"' in result.stderr


def test_the_command_prints_counts_and_scores_as_json(said: Rows, work: Path, tmp_path: Path) -> None:
    flags = ["--teacher", "t", "--manifest", str(work / "opinion.yaml"), "--data", str(work / "data"), "--json"]
    result = CliRunner().invoke(app, ["import", str(write(tmp_path, said[1:])), *flags, "--store", str(tmp_path)])
    told = json.loads(result.stdout)
    assert told["missing"] == {"train": 1, "validation": 0}
    assert (told["state"], told["root"]) == ("verified", str(tmp_path / "opinion-t"))
    assert told["scores"] == read_set_record(tmp_path / "opinion-t").scores


def test_a_tokenizer_that_knows_none_of_the_words_is_refused(said: Rows, work: Path, tmp_path: Path) -> None:
    wordpiece(["other", "words"]).save(str(tmp_path / "tokenizer.json"))
    words = (f"--tokenizer {tmp_path}: ", "100%")
    assert refused(work, tmp_path, said, DataError, *words, tokenizer=tmp_path)


def test_one_is_read_from_a_file_or_a_folder(tmp_path: Path) -> None:
    tokenizer = wordpiece(["some", "words"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert read_tokenizer(path).get_vocab() == tokenizer.get_vocab()
    with pytest.raises(ConfigError, match=naming(f"--tokenizer {tmp_path / 'elsewhere'}", "tokenizer.json")):
        read_tokenizer(tmp_path / "elsewhere")
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(ConfigError, match=naming(f"--tokenizer {tmp_path}: ")):
        read_tokenizer(tmp_path)
