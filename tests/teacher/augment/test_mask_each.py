"""Each word masked in turn: which rows come of it, what becomes of them in a set, and that they are no dev rows."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accelerate import PartialState

from distill.apps.report.set_page import set_page
from pipeline.errors import ConfigError, DataError, FingerprintMismatchError
from pipeline.sets.card import card_text
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sources import load_source
from pipeline.tasks.task import Task, load_task
from student.data import load_dev
from student.evaluate import evaluate
from student.run_settings import EvaluateSettings
from teacher.augment.augment import Augmentation, variants_for
from teacher.augment.methods import AugmentSettings, MaskEach, MaskPos
from teacher.settings import TextLogits
from tests.helpers.commands import invoke
from tests.helpers.dumps import VALIDATION_ROWS, dump_config
from tests.helpers.messages import naming
from tests.helpers.variants import own_task, rows_of, write_variants

KEYS = ("source_row", "variant", "origin", "sentence1", "label", "logits")


def masked(store: Path, name: str = "own-mask-each") -> list[tuple[Any, ...]]:
    columns = ("source_row", "variant", "origin", "sentence1", "sentence2")
    return [tuple(row[column] for column in columns) for row in rows_of(store / "augmented" / name)]


def test_a_variant_per_word_whatever_other_rows_read(tmp_path: Path) -> None:
    dev = [("a good film", "so  good"), ("a bad film", ""), ("a good film", "so  good"), ("left out", "")]
    flags = own_task(tmp_path, [("train", "rows")], dev)
    record = write_variants(tmp_path, tmp_path / "store", method="mask-each", num_variants=4, sentences=3, **flags)
    first = [
        (1, "mask", "[MASK] good film", "so  good"),
        (2, "mask", "a [MASK] film", "so  good"),
        (3, "mask", "a good [MASK]", "so  good"),
        (5, "mask", "a good film", "[MASK] good"),
        (6, "mask", "a good film", "so [MASK]"),
    ]
    second = [(1, "mask", "[MASK] bad film", ""), (2, "mask", "a [MASK] film", ""), (3, "mask", "a bad [MASK]", "")]
    rows = [(number, *row) for number, part in enumerate([first, second, first]) for row in part]
    assert masked(tmp_path / "store") == rows
    assert (record.split, record.source_rows, record.rows, record.changed_words) == ("validation", 3, 13, 13)
    assert record.title == "Variants of rows of validation"


def test_long_sentences_are_masked_from_their_start_and_masks_not_again(tmp_path: Path) -> None:
    flags = own_task(tmp_path, [("one two three", "[MASK] <m>")])
    settings: dict[str, Any] = {"num_variants": 2, "mask_token": "<m>", "splits": "validation"}
    write_variants(tmp_path, tmp_path / "store", method="mask-each", **settings, **flags)
    assert [row[1:2] + row[3:] for row in masked(tmp_path / "store")] == [
        (1, "<m> two three", "[MASK] <m>"),
        (2, "one <m> three", "[MASK] <m>"),
        (3, "one two three", "<m> <m>"),
    ]


def test_the_teacher_is_asked_about_every_word(masked_set: ExampleSet, opinion_set: ExampleSet) -> None:
    assert masked_set.splits == ("validation",)
    rows = masked_set.read("validation", KEYS).to_pylist()
    originals = {row["source_row"]: row for row in rows if row["variant"] == 0}
    stored = opinion_set.read("validation", KEYS).to_pylist()
    assert [row["sentence1"] for row in stored] == [row["sentence1"] for row in originals.values()]
    np.testing.assert_allclose(
        [row["logits"] for row in stored], [row["logits"] for row in originals.values()], atol=1e-5
    )
    assert len(rows) == VALIDATION_ROWS + sum(len(row["sentence1"].split()) for row in stored)
    for row in rows:
        words = originals[row["source_row"]]["sentence1"].split()
        if row["variant"]:
            words[row["variant"] - 1] = "[MASK]"
            assert (row["sentence1"], row["label"], row["origin"]) == (" ".join(words), None, "mask")
    assert "## Variants of rows of validation" in card_text(masked_set.record)
    assert "Variants of rows of validation" in [section.title for section in set_page(masked_set.root).sections]


def test_variants_of_another_split_than_the_record_says_are_refused(masked_set: ExampleSet) -> None:
    record = masked_set.record
    assert record.augmentation is not None
    settings = {name: value for name, value in record.augmentation.settings.items() if name != "split"}
    of_train = record.augmentation.model_copy(update={"settings": settings})
    [shard] = record.shards[:1]
    for augmentation, problem in ((record.augmentation, None), (of_train, "variants")):
        check = ExampleSet.row_kind.check(record.model_copy(update={"augmentation": augmentation}))
        found = check.shard_problem(shard, masked_set.root / shard.path)
        assert (found is None) == (problem is None)
        assert (problem or "") in (found or "")


def test_variants_are_no_dev_rows(masked_set: ExampleSet, opinion_set: ExampleSet, opinion_run: Path) -> None:
    assert len(load_dev(masked_set, "validation")) == VALIDATION_ROWS
    there, here = (
        evaluate(EvaluateSettings(run=opinion_run, set=str(logit_set.root)))["validation"]
        for logit_set in (opinion_set, masked_set)
    )
    for part in ("gold", "interval", "teacher", "fidelity"):
        for name, value in there[part].items():
            assert here[part][name] == pytest.approx(value, abs=1e-5), (part, name)
    result = invoke("train-student", "--set", masked_set.root, "--output-dir", masked_set.root / "run")
    assert result.exit_code == 2
    assert "train split" in re.sub(r"\s+", " ", result.stderr)


def test_both_commands_name_the_split_by_the_same_flag(work: Path, opinion: Task, tmp_path: Path) -> None:
    config = dump_config(work, "opinion", tmp_path, augment="mask-each", splits="validation", sentences=3)
    assert isinstance(config.rows.signal, TextLogits)
    wanted = config.rows.signal.variants
    assert isinstance(wanted, MaskEach)
    two = opinion.model_copy(update={"splits": {"train": None, "first": None, "validation": None}})
    assert (wanted.split_of(two), wanted.sentences) == ("validation", 3)
    assert MaskEach().split_of(two) == "first"
    assert MaskPos().split_of(two) == "train"


def test_variants_of_another_method_are_refused(tmp_path: Path) -> None:
    flags = own_task(tmp_path, [("a good film", "so good")]) | {"name": "mine"}
    store = tmp_path / "store"
    write_variants(tmp_path, store, method="mask-pos", pos_probability=0, mask_probability=0.5, num_variants=2, **flags)
    config = AugmentSettings.from_flags(method="mask-each", splits="validation", store=store, **flags)
    task = load_task(None, flags["manifest"])
    rows = load_source(task, flags["data"], ("validation",)).own("validation")
    wanted = Augmentation(config.by, task, store, config.name)
    with pytest.raises(FingerprintMismatchError, match=naming("augmented/mine", "method: mask-pos", "mask-each")):
        variants_for(wanted, rows, PartialState(), "distill", None, is_job=False)


def test_what_it_is_not_for_is_refused(work: Path, tmp_path: Path) -> None:
    for changes, named in (
        ({"splits": "train,validation"}, ("--splits: ", "train, validation")),
        ({"splits": "train"}, ("--splits train: ", "mask-each")),
        ({"splits": "dev"}, ("'opinion'", "'dev'")),
        ({"pos_probability": 0.1}, ("--pos-probability: ", "mask-pos")),
    ):
        with pytest.raises(ConfigError, match=naming(*named)):
            write_variants(work, tmp_path, method="mask-each", **changes)
    with pytest.raises(ConfigError, match=naming("--splits: ", "mask-each")):
        write_variants(work, tmp_path, method="mask-pos", splits="validation")
    with pytest.raises(ConfigError, match=naming("--unlabelled: ", "--augment mask-each")):
        dump_config(work, "opinion", tmp_path, augment="mask-each", unlabelled="x.txt")
    flags = own_task(tmp_path, [("a", "b")])
    (tmp_path / "data" / "validation.jsonl").unlink()
    with pytest.raises(DataError, match=naming("data: ", "'own'", "validation.jsonl")):
        write_variants(tmp_path, tmp_path / "store", method="mask-each", **flags)
