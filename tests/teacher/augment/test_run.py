"""Variants end to end: the same rows however they are made, and labelled by the teacher as any other row."""

import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from accelerate import PartialState
from filelock import FileLock
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import ConfigError, DataError, FingerprintMismatchError, MissingDependencyError, TeacherError
from pipeline.files import sha256
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord, read_set_record
from pipeline.sets.record_parts import AugmentationRecord
from pipeline.sets.signals.rows import logits_of
from pipeline.sources import load_source
from pipeline.tasks.task import Task
from teacher.augment import candidates
from teacher.augment import variants as variants_module
from teacher.augment.augment import Augmentation, variants_for
from teacher.augment.editors import replaceable
from teacher.augment.methods import AugmentSettings
from teacher.augment.variants import open_variants
from teacher.dump.rows import COLUMNS, Rows
from teacher.dumps import dump
from tests.helpers.commands import distill, distill_in_two_processes, kill_when
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS, dump_config
from tests.helpers.messages import naming
from tests.helpers.toy_tasks import write_toy_tasks
from tests.helpers.variants import Changes, augment_settings, own_task, rows_of, write_variants
from tests.helpers.word_tasks import make_louder

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file .*textblob:ResourceWarning")
CASES: dict[str, Changes] = {
    "opinion-tinybert": {"num_variants": 5},
    "roles-tinybert": {"num_variants": 2},
    "roles-mask-pos": {"num_variants": 6, "mask_probability": 0.2, "pos_probability": 0.2, "ngram_probability": 0.2},
}


def case(work: Path, store: Path, name: str) -> AugmentationRecord:
    task, method = name.split("-", 1)
    return write_variants(work, store, task, method, **CASES[name])


def stored_record(root: Path) -> AugmentationRecord:
    variants = open_variants(root)
    assert variants is not None
    return variants.record


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def made(work: Path, masked_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the finished variants of every case; read only."""
    store = tmp_path_factory.mktemp("augmented")
    for name in CASES:
        case(work, store, name)
    return store


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    """A store with the same contents, which a test may change."""
    return Path(shutil.copytree(made, tmp_path / "store"))


@pytest.mark.slow
def test_workers_on_a_cluster_find_the_same_candidates(
    ray_cluster: Any, work: Path, made: Path, tmp_path: Path
) -> None:
    there = write_variants(work, tmp_path, **CASES["opinion-tinybert"], ray="local", ray_workers=1)
    assert there.rows_sha256 == stored_record(made / "augmented" / "opinion-tinybert").rows_sha256
    (candidates_there,) = (tmp_path / "candidates").rglob("*.parquet")
    assert sha256(candidates_there) in {sha256(path) for path in (made / "candidates").rglob("*.parquet")}


def test_methods_without_a_model_need_no_cluster(work: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--ray: ", "tinybert")):
        write_variants(work, tmp_path, method="mask-pos", ray="local")


@pytest.mark.parametrize("name", CASES)
def test_parts_and_batches_have_no_say_in_the_rows(
    name: str, work: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = case(work, made, name)
    monkeypatch.setattr(candidates, "SENTENCES_PER_PART", 13)
    monkeypatch.setattr(candidates, "SENTENCES_AT_ONCE", 4)
    monkeypatch.setattr(variants_module, "VARIANTS_PER_PART", 50)
    assert case(work, tmp_path, name) == whole
    root = Path("augmented") / name
    assert rows_of(tmp_path / root) == rows_of(made / root)
    assert len(list((tmp_path / root / "rows").iterdir())) > 5
    assert not (tmp_path / root / "generated").exists()
    assert len(list((tmp_path / "candidates").rglob("*.parquet"))) > 5 or name == "roles-mask-pos"


def test_replaced_words_are_of_the_vocabulary(work: Path, made: Path) -> None:
    lines = (work / "data" / "opinion" / "train.jsonl").read_text().splitlines()
    originals = [json.loads(line)["sentence1"] for line in lines]
    rows = rows_of(made / "augmented" / "opinion-tinybert")
    assert len(rows) > TRAIN_ROWS
    for row in rows:
        old, new = originals[row["source_row"]].split(" "), row["sentence1"].split(" ")
        assert len(old) == len(new) == row["words"]
        changes = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        assert len(changes) == row["changed"] > 0
        assert all(replaceable(a, [(0, len(a))]) for a, _ in changes)
    texts = [row["sentence1"] for row in rows]
    assert len({*texts, *originals}) == len(texts) + len({*originals})


def test_of_a_pair_one_sentence_is_always_the_original_one(work: Path, made: Path) -> None:
    originals = [json.loads(line) for line in (work / "data" / "roles" / "train.jsonl").read_text().splitlines()]
    changed: dict[str, set[tuple[int, bool, bool]]] = {}
    for name in ("roles-tinybert", "roles-mask-pos"):
        rows, _ = rows_of(made / "augmented" / name), changed.setdefault(name, set())
        for row in rows:
            original = originals[row["source_row"]]
            sides = (row[key] != original[key] for key in ("sentence1", "sentence2"))
            changed[name].add((row["variant"], *sides))
    assert changed["roles-tinybert"] == {(1, True, False), (2, True, False), (3, False, True), (4, False, True)}
    for variant, first, second in changed["roles-mask-pos"]:  # goes round: first, second, both
        assert not (variant % 3 == 1 and second)
        assert not (variant % 3 == 2 and first)
    assert {(3, True, True), (6, True, True)} <= changed["roles-mask-pos"]


def test_numbers_in_the_record_are_those_of_the_rows(work: Path, made: Path) -> None:
    for name, sentences in (("opinion-tinybert", 5), ("roles-tinybert", 4), ("roles-mask-pos", 6)):
        record, rows = case(work, made, name), rows_of(made / "augmented" / name)
        assert record.rows == len(rows) > 0
        assert (record.source_rows, record.tried) == (TRAIN_ROWS, sentences * TRAIN_ROWS)
        assert record.generated == record.rows + record.unchanged + record.repeated <= record.tried
        assert (record.generated == record.tried) == (record.method == "tinybert")  # it never gives up
        assert record.changed_words == sum(row["changed"] for row in rows)
        assert [(row["source_row"], row["variant"]) for row in rows] == sorted(
            {(row["source_row"], row["variant"]) for row in rows}
        )


def test_repeating_a_finished_one_changes_no_file(work: Path, copied: Path) -> None:
    before = files(copied)
    for name in CASES:
        case(work, copied, name)
    assert files(copied) == before


def test_two_of_one_name_do_not_meet(work: Path, tmp_path: Path) -> None:
    (tmp_path / "augmented" / "roles-mask-pos" / "generated").mkdir(parents=True)
    with (
        FileLock(tmp_path / "augmented" / "roles-mask-pos" / "generated" / "lock"),
        pytest.raises(DataError, match=naming("augmented/roles-mask-pos: ", "--name")),
    ):
        case(work, tmp_path, "roles-mask-pos")
    assert case(work, tmp_path, "roles-mask-pos").rows > 0
    assert [path.name for path in (tmp_path / "augmented").iterdir()] == ["roles-mask-pos"]


@pytest.mark.parametrize("damaged", ["rows", "candidates", "both"])
def test_what_is_lost_is_made_again(work: Path, made: Path, copied: Path, damaged: str) -> None:
    root = copied / "augmented" / "opinion-tinybert"
    whole = {path.name: sha256(path) for path in (root / "rows").iterdir()}
    for path in root.glob("rows/*") if damaged != "candidates" else ():
        path.write_bytes(path.read_bytes()[:-40])
    for path in (copied / "candidates").rglob("*.parquet") if damaged != "rows" else ():
        path.unlink()
    assert case(work, copied, "opinion-tinybert") == case(work, made, "opinion-tinybert")
    assert {path.name: sha256(path) for path in (root / "rows").iterdir()} == whole
    assert not (root / "generated").exists()


def test_only_the_missing_candidates_are_found_again(
    work: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "SENTENCES_PER_PART", 13)
    case(work, tmp_path, "opinion-tinybert")
    shutil.rmtree(tmp_path / "augmented")
    parts = sorted((tmp_path / "candidates").rglob("*.parquet"))
    parts[2].unlink()
    before = files(tmp_path / "candidates")
    assert case(work, tmp_path, "opinion-tinybert") == case(work, made, "opinion-tinybert")
    after = files(tmp_path / "candidates")
    assert {path for path, time in after.items() if before.get(path) != time} == {parts[2]}


def test_candidates_are_computed_once_for_many_settings(work: Path, copied: Path) -> None:
    before = files(copied / "candidates")
    other = write_variants(work, copied, "opinion", name="other", seed=7, replace_probability=0.9, num_variants=3)
    assert files(copied / "candidates") == before
    assert other.change_rate > 1.5 * case(work, copied, "opinion-tinybert").change_rate
    write_variants(work, copied, "opinion", name="fewer", num_candidates=3, num_variants=1)
    assert files(copied / "candidates").keys() > before.keys()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 7}, ("seed: 42", "7")),
        ({"num_variants": 6}, ("num_variants: 5", "6")),
        ({"num_candidates": 4}, ("num_candidates: 15", "4")),
        ({"replace_probability": 0.5}, ("replace_probability: 0.4", "0.5")),
        ({"max_seq_length": 16}, ("max_seq_length: 32", "16")),
        ({"precision": "bf16"}, ("precision: fp32", "bf16")),
        ({"pairs": "both"}, ("pairs: each", "both")),
    ],
)
def test_another_setting_is_never_mixed_in(work: Path, copied: Path, changes: Changes, named: tuple[str, ...]) -> None:
    with pytest.raises(FingerprintMismatchError, match=naming("augmented/opinion-tinybert", *named)):
        write_variants(work, copied, **(Changes(num_variants=5) | changes))


def test_other_rows_are_refused(work: Path, copied: Path, tmp_path: Path) -> None:
    shutil.copytree(work / "data", tmp_path / "data")
    path = tmp_path / "data" / "opinion" / "train.jsonl"
    path.write_text(path.read_text().replace("the ", "The ", 1))
    with pytest.raises(FingerprintMismatchError, match=naming("augmented/opinion-tinybert", "source: ")):
        write_variants(work, copied, data=tmp_path / "data", num_variants=5)


def test_words_for_replacement_come_from_train_alone(tmp_path: Path) -> None:
    train = [(f"the {one} cat sees a dog", f"a fox bites the {one} bird") for one in ("big", "old", "red")]
    validation = [("an elephant eats tiny grapes", "tigers hate loud music")]
    flags = own_task(tmp_path, train, validation)
    write_variants(tmp_path, tmp_path / "store", method="mask-pos", pos_probability=0.8, mask_probability=0, **flags)
    words = {
        word for row in rows_of(tmp_path / "store" / "augmented" / "own-mask-pos") for word in texts_of(row).split()
    }
    known = {word for pair in train for text in pair for word in text.split()}
    assert words <= known
    assert len(words) > 8


def texts_of(row: dict[str, Any]) -> str:
    return f"{row['sentence1']} {row['sentence2']}"


@pytest.mark.parametrize("method", ["tinybert", "mask-pos"])
def test_spacing_case_quotes_tabs_and_contractions_survive(
    method: str, work: Path, masked_lm: Path, tmp_path: Path
) -> None:
    first, second = (
        ' The  "food"\twas great ,and\u00a0he did n\'t  leave ',
        "It's the DULL Music, \u201cdon\u2019t\u201d?",
    )
    flags = own_task(tmp_path, [(first, second), ("nothing", "")])
    write_variants(work, tmp_path / "store", method=method, num_variants=30, **flags)
    rows = [row for row in rows_of(tmp_path / "store" / "augmented" / f"own-{method}") if row["source_row"] == 0]
    assert rows
    if method == "tinybert":
        for row in rows:
            assert row["sentence1"].startswith(' The  "')
            assert "\twas " in row["sentence1"]
            assert " ,and\u00a0he did n't  " in row["sentence1"]
            assert row["sentence2"].startswith("It's the ")
            assert row["sentence2"].endswith(", \u201cdon\u2019t\u201d?")
            ending = ", \u201cdon\u2019t\u201d?"
            dull, music = row["sentence2"].removeprefix("It's the ").removesuffix(ending).split(" ")
            assert dull == dull.upper()
            assert music == music[:1].upper() + music[1:]
    assert {row["sentence1"] for row in rows} > {first}
    assert {row["sentence2"] for row in rows} > {second}


def test_sentences_without_words_do_not_matter(tmp_path: Path) -> None:
    flags = own_task(tmp_path, [("a big dog sees the old cat", ""), (" ", "the red fox bites a dog")])
    record = write_variants(tmp_path, tmp_path / "store", method="mask-pos", num_variants=9, **flags)
    rows = rows_of(tmp_path / "store" / "augmented" / "own-mask-pos")
    assert record.rows == len(rows) > 0
    assert {(row["source_row"], row["sentence2"]) for row in rows if row["source_row"] == 0} == {(0, "")}


def test_masking_alone_needs_no_tagger(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("textblob", "textblob.en", "textblob.en.taggers"):
        monkeypatch.setitem(sys.modules, name, None)
    record = write_variants(work, tmp_path, method="mask-pos", pos_probability=0)
    assert record.rows > TRAIN_ROWS
    assert "tagger" not in record.settings
    with pytest.raises(MissingDependencyError, match=naming("textblob", "distill-offline[augment]")):
        write_variants(work, tmp_path / "other", method="mask-pos")
    assert not (tmp_path / "other").exists()


def test_usual_numbers_of_variants_and_those_of_the_task(work: Path, tmp_path: Path) -> None:
    assert write_variants(work, tmp_path, method="mask-pos", pos_probability=0).tried == 10 * TRAIN_ROWS
    own = (work / "opinion.yaml").read_text() + "num_variants: {mask-pos: 3}\n"
    (tmp_path / "own.yaml").write_text(own)
    flags: Changes = {"manifest": tmp_path / "own.yaml", "name": "own", "method": "mask-pos", "pos_probability": 0}
    assert write_variants(work, tmp_path, **flags).tried == 3 * TRAIN_ROWS
    assert write_variants(work, tmp_path, **flags | {"name": "two", "num_variants": 2}).tried == 2 * TRAIN_ROWS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "mask-pos", "masked_lm": "x"}, "--masked-lm: "),
        ({"method": "mask-pos", "pairs": "both"}, "--pairs: "),
        ({"method": "mask-pos", "num_candidates": 3}, "--num-candidates: "),
        ({"method": "mask-pos", "word_vectors": "x"}, "--word-vectors: "),
        ({"method": "mask-pos", "replace_probability": 0.4}, "--replace-probability: "),
        ({"method": "tinybert", "mask_probability": 0.1}, "--mask-probability: "),
        ({"method": "tinybert", "pos_probability": 0.1}, "--pos-probability: "),
        ({"method": "tinybert", "ngram_probability": 0.1}, "--ngram-probability: "),
        (
            {"method": "mask-pos", "mask_probability": 0.6, "pos_probability": 0.6},
            "--mask-probability",
        ),
        ({"method": "mask-pos", "mask_probability": 0, "pos_probability": 0}, "--mask-probability"),
    ],
)
def test_wrong_flags_end_with_code_2(changes: Changes, message: str, work: Path, tmp_path: Path) -> None:
    values = {"manifest": work / "opinion.yaml", "data": work / "data", "store": tmp_path / "store"} | changes
    result = CliRunner().invoke(app, flags("augment", values))
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "store").exists()
    dumped = CliRunner().invoke(app, flags("teacher-dump", values | {"augment": values["method"]}, "method"))
    assert dumped.exit_code == 2
    assert message in " ".join(dumped.stderr.split())


def test_masking_asks_no_masked_lm(work: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--max-seq-length: ", "--method tinybert")):
        write_variants(work, tmp_path, method="mask-pos", max_seq_length=64)
    with pytest.raises(ConfigError, match=naming("--precision: ", "--method tinybert")):
        write_variants(work, tmp_path, method="mask-pos", precision="bf16")


def test_flags_of_augmentation_need_a_method(work: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--num-variants: ", "--augment tinybert", "--augment mask-pos")):
        dump(dump_config(work, "opinion", tmp_path, num_variants=3), "distill teacher-dump")


def flags(command: str, values: Changes, *left_out: str) -> list[str]:
    pairs = ((f"--{name.replace('_', '-')}", str(value)) for name, value in values.items() if name not in left_out)
    return [command, *itertools.chain(*pairs)]


def test_a_task_without_rows_to_train_on_is_refused(work: Path, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text((work / "opinion.yaml").read_text())
    shutil.copytree(work / "data", tmp_path / "data")
    (tmp_path / "data" / "opinion" / "train.jsonl").unlink()
    with pytest.raises(DataError, match=naming("data: ", "'opinion'", "train.jsonl")):
        write_variants(work, tmp_path / "store", method="mask-pos", pos_probability=0, data=tmp_path / "data")


def test_missing_word_vectors_are_noticed_first(work: Path, masked_lm: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("--word-vectors", "none.txt: ")):
        write_variants(work, tmp_path / "store", word_vectors=tmp_path / "none.txt")
    assert not (tmp_path / "store").exists()


ROLES: Changes = {"augment": "tinybert", "num_variants": 2, "rows_per_shard": 100}


def dumped(work: Path, store: Path, task: str = "roles", **changes: Any) -> SetRecord:
    values = ROLES | {"masked_lm": str(work / "teachers" / "mlm")} | changes
    record = dump(dump_config(work, task, store, **values), "distill teacher-dump")
    assert record is not None
    return record


@pytest.fixture(scope="module")
def loud(teachers: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A teacher whose logits differ from text to text."""
    folder = Path(shutil.copytree(teachers / "roles", tmp_path_factory.mktemp("loud") / "roles"))
    make_louder(folder)
    return str(folder)


@pytest.fixture(scope="module")
def labelled(work: Path, loud: str, masked_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the pair task and its variants, labelled by that teacher; read only."""
    store = tmp_path_factory.mktemp("labelled")
    dumped(work, store, model_name_or_path=loud)
    return store


ALL = ("split", *COLUMNS, "logits", "text_hash")


def both_splits(logit_set: ExampleSet) -> pa.Table:
    return pa.concat_tables([logit_set.read(split, ALL) for split in ("train", "validation")])


def test_a_dump_adds_the_variants_to_train_and_to_nothing_else(work: Path, made: Path, labelled: Path) -> None:
    rows = both_splits(ExampleSet.open(labelled / "roles-tinybert")).to_pylist()
    variants = rows_of(made / "augmented" / "roles-tinybert")
    expected = {("train", row, 0) for row in range(TRAIN_ROWS)} | {("validation", n, 0) for n in range(VALIDATION_ROWS)}
    expected |= {("train", row["source_row"], row["variant"]) for row in variants}
    keys = [(row["split"], row["source_row"], row["variant"]) for row in rows]
    assert len(keys) == len(expected)
    assert set(keys) == expected
    assert keys[:-VALIDATION_ROWS] == sorted(keys[:-VALIDATION_ROWS])
    texts = {(row["source_row"], row["variant"]): (row["sentence1"], row["sentence2"]) for row in variants}
    for row in rows:
        assert row["origin"] == ("tinybert" if row["variant"] else "original")
        assert (row["label"] is None) == (row["variant"] > 0)
        assert row["score"] is None
        assert np.isfinite(row["logits"]).all()
        if row["variant"]:
            assert (row["sentence1"], row["sentence2"]) == texts[row["source_row"], row["variant"]]


def test_originals_are_those_of_a_dump_without_variants(work: Path, loud: str, labelled: Path, tmp_path: Path) -> None:
    dump(dump_config(work, "roles", tmp_path, model_name_or_path=loud), "distill teacher-dump")
    sets = [ExampleSet.open(tmp_path / "roles"), ExampleSet.open(labelled / "roles-tinybert")]
    for split in ("train", "validation"):
        plain, augmented = (logit_set.read(split, ALL, "variant = 0") for logit_set in sets)
        assert augmented.drop(["logits"]).equals(plain.drop(["logits"]))
        assert logits_of(plain, 2).std(axis=0).min() > 0.05
        np.testing.assert_allclose(logits_of(augmented, 2), logits_of(plain, 2), rtol=0, atol=1e-4)
    assert sets[0].record.scores == sets[1].record.scores


def test_logits_of_a_variant_are_those_of_its_own_text(work: Path, loud: str, labelled: Path, tmp_path: Path) -> None:
    rows = ExampleSet.open(labelled / "roles-tinybert").read("train", ALL, "variant > 0")
    flags = own_task(tmp_path, list(zip(rows["sentence1"].to_pylist(), rows["sentence2"].to_pylist(), strict=True)))
    dump(dump_config(work, "roles", tmp_path / "store", model_name_or_path=loud, **flags), "distill teacher-dump")
    plain = ExampleSet.open(tmp_path / "store" / "own").read("train", ALL)
    assert plain["sentence2"].equals(rows["sentence2"])
    np.testing.assert_allclose(logits_of(plain, 2), logits_of(rows, 2), rtol=0, atol=1e-4)


def test_a_lost_shard_is_written_again_with_its_variants(work: Path, loud: str, labelled: Path, tmp_path: Path) -> None:
    shutil.copytree(labelled / "roles-tinybert", tmp_path / "roles-tinybert")
    shutil.copytree(labelled / "augmented", tmp_path / "augmented")
    root = tmp_path / "roles-tinybert"
    whole = read_set_record(root)
    assert len(whole.shards_of("train")) > 2  # shards hold about so many rows with their variants
    (root / whole.shards_of("train")[1].path).unlink()
    before = files(tmp_path)
    assert dumped(work, tmp_path, model_name_or_path=loud) == whole
    changed = {path.name for path, time in files(tmp_path).items() if before.get(path) != time}
    assert {name for name in changed if name.endswith(".parquet")} == {Path(whole.shards_of("train")[1].path).name}
    assert both_splits(ExampleSet.open(root)).equals(both_splits(ExampleSet.open(labelled / "roles-tinybert")))


def test_a_dump_takes_the_variants_that_are_there(work: Path, teachers: Path, copied: Path) -> None:
    before = files(copied)
    record = dumped(work, copied).augmentation
    assert record == case(work, copied, "roles-tinybert")
    assert before.items() <= files(copied).items()


def test_named_variants_are_taken_unless_a_flag_disagrees(
    work: Path, teachers: Path, masked_lm: Path, tmp_path: Path
) -> None:
    made = write_variants(work, tmp_path, "roles", name="mine", num_variants=1, seed=5, replace_probability=0.8)
    given: Changes = {"augment": "tinybert", "variants": "mine", "model_name_or_path": str(teachers / "roles")}
    before = files(tmp_path)
    cases: list[tuple[Changes, tuple[str, ...]]] = [
        ({"seed": 42}, ("seed: 5", "42")),
        ({"num_variants": 2}, ("num_variants: 1", "2")),
        ({"masked_lm": str(work / "bert")}, ("bert: ",)),
        ({"augment": "mask-pos"}, ("method: tinybert", "mask-pos")),
    ]
    for changes, named in cases:
        with pytest.raises((FingerprintMismatchError, TeacherError), match=naming(*named)):
            dump(dump_config(work, "roles", tmp_path, **given | changes), "distill teacher-dump")
    assert files(tmp_path) == before
    record = dump(dump_config(work, "roles", tmp_path, **given), "distill teacher-dump")
    assert record is not None
    assert (record.name, record.augmentation) == ("mine", made)


def test_a_dump_with_another_seed_is_refused(work: Path, loud: str, labelled: Path, tmp_path: Path) -> None:
    shutil.copytree(labelled / "roles-tinybert", tmp_path / "roles-tinybert")
    with pytest.raises(FingerprintMismatchError, match=naming("augment.seed: 42", "7")):
        dumped(work, tmp_path, seed=7, model_name_or_path=loud)


def test_jobs_need_finished_variants(work: Path, teachers: Path, made: Path, copied: Path, tmp_path: Path) -> None:
    command = f"`distill augment --manifest {work}/roles.yaml --method tinybert --name roles-tinybert`"
    with pytest.raises(ConfigError, match=naming("--num-shards: ", "augmented/roles-tinybert", command)):
        dumped(work, tmp_path / "empty", num_shards=2)
    states = [dumped(work, copied, num_shards=2, shard_index=k).state for k in (1, 0)]
    assert states == ["staged", "verified"]


@pytest.mark.parametrize(("token", "is_same"), [("[MASK]", True), ("<mask>", False)])
def test_variants_with_another_mask_are_refused(
    work: Path, teachers: Path, tmp_path: Path, token: str, is_same: bool
) -> None:
    flags = {"augment": "mask-pos", "num_variants": 1, "pos_probability": 0.0}
    dump(dump_config(work, "opinion", tmp_path, name="first", **flags), "distill teacher-dump")
    again = dump_config(work, "opinion", tmp_path, name="second", **flags, mask_token=token)
    if is_same:
        assert dump(again, "distill teacher-dump") is not None
        return
    with pytest.raises((FingerprintMismatchError, TeacherError), match="mask"):
        dump(again, "distill teacher-dump")


def test_a_teacher_without_a_mask_cannot_label_masked_rows(work: Path, teachers: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(teachers / "opinion", tmp_path / "teacher"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((folder / name).read_text().replace("[MASK]", "<blank>"))
    changes = {"augment": "mask-pos", "model_name_or_path": str(folder), "num_variants": 1}
    with pytest.raises(TeacherError, match=naming("teacher: ", "[MASK]", "--mask-token <blank>")):
        dump(dump_config(work, "opinion", tmp_path / "store", **changes), "distill teacher-dump")


def test_rows_of_a_shard_are_read_by_source_row_and_variant(work: Path, roles: Task, labelled: Path) -> None:
    record = read_set_record(labelled / "roles-tinybert")
    source = load_source(roles, work / "data")
    config = AugmentSettings.from_flags(**augment_settings(work, labelled, "roles", "tinybert", num_variants=2))
    wanted = Augmentation(config.by, roles, labelled, config.name)
    variants = variants_for(wanted, source.splits["train"], PartialState(), "again", None, is_job=True)
    rows, plain = Rows(source, variants), Rows(source, None)
    counts = []
    for shard in record.shards:
        table = rows.read(shard)
        keys = list(zip(table["source_row"].to_pylist(), table["variant"].to_pylist(), strict=True))
        assert keys == sorted(keys)
        assert table.num_rows == shard.rows
        assert table.column_names == COLUMNS
        assert table.filter(pa.compute.equal(table["variant"], 0)).equals(plain.read(shard))
        if shard.split == "validation":
            assert rows.count(shard) == plain.count(shard) == shard.rows
        else:
            counts.append(rows.count(shard) / variants.record.multiplier)
    assert sum(counts) == pytest.approx(TRAIN_ROWS, abs=len(counts))


@pytest.fixture(scope="module")
def large(masked_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks of several parts, and a store with the first one's variants; read only."""
    folder = tmp_path_factory.mktemp("large")
    write_toy_tasks(folder, 2400, 1)
    shutil.copytree(masked_lm, folder / "teachers" / "mlm")
    write_variants(folder, folder / "store", num_variants=30)
    return folder


def command(folder: Path, store: Path) -> list[str]:
    return flags("augment", augment_settings(folder, store, "opinion", "tinybert", num_variants=30))


def assert_as_undisturbed(large: Path, store: Path) -> None:
    for kind, count in (("candidates", 2), ("augmented", 2)):
        one, other = (sorted((folder / kind).rglob("*.parquet")) for folder in (large / "store", store))
        assert [path.relative_to(large / "store") for path in one] == [path.relative_to(store) for path in other]
        assert [sha256(path) for path in one] == [sha256(path) for path in other]
        assert len(one) == count
    assert not list(store.rglob("*.distill-tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["candidates/*/*", "augmented/*/rows/*"])
def test_killed_and_repeated_gives_the_same_rows(place: str, large: Path, tmp_path: Path) -> None:
    process = distill(*command(large, tmp_path))
    kill_when(process, lambda: bool(list(tmp_path.glob(f"{place}.parquet"))))
    assert json.loads((tmp_path / "augmented" / "opinion-tinybert" / "augment.json").read_text())["state"] == "running"
    before = files(tmp_path / "candidates")
    write_variants(large, tmp_path, num_variants=30)
    assert_as_undisturbed(large, tmp_path)
    assert {path: time for path, time in before.items() if path.suffix == ".parquet"}.items() <= files(tmp_path).items()


@pytest.mark.slow
def test_two_processes_write_what_one_does(large: Path, tmp_path: Path) -> None:
    distill_in_two_processes(*command(large, tmp_path))
    assert_as_undisturbed(large, tmp_path)
