"""Sets with variants of their training rows: read, verified, described and queried."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import IntegrityError
from pipeline.files import sha256
from pipeline.query.catalog import open_catalog
from pipeline.sets.card import card_text
from pipeline.sets.files import footer_of
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import AugmentationRecord
from pipeline.sets.signals.rows import logits_of
from pipeline.sets.verify import verify_shards
from student.data import load_examples
from tests.helpers.dumps import TRAIN_ROWS
from tests.helpers.messages import naming
from tests.helpers.shards import write_examples

COLUMNS = ("source_row", "variant", "origin", "sentence1", "label", "logits")


def augmentation_of(logit_set: ExampleSet) -> AugmentationRecord:
    assert logit_set.record.augmentation is not None
    return logit_set.record.augmentation


@pytest.fixture
def own(augmented_set: ExampleSet, tmp_path: Path) -> ExampleSet:
    """The set, free to be changed."""
    return ExampleSet.open(shutil.copytree(augmented_set.root, tmp_path / "store" / "opinion-mask-pos"))


def rewritten(root: Path, record: SetRecord, change: Callable[[pa.Table], pa.Table] = lambda table: table) -> SetRecord:
    """Changes the rows of the first shard of train; all shards get the right footer and an honest record."""
    first, shards = record.shards_of("train")[0], []
    for shard in record.shards:
        table = pq.read_table(root / shard.path, partitioning=None)
        table = change(table) if shard == first else table
        write_examples(root / shard.path, table, footer_of(record, shard))
        size, digest = (root / shard.path).stat().st_size, sha256(root / shard.path)
        shards.append(shard.model_copy(update={"bytes": size, "sha256": digest, "rows": table.num_rows}))
    return record.model_copy(update={"shards": tuple(shards)})


def test_the_record_counts_what_is_there(augmented_set: ExampleSet) -> None:
    record, augmentation = augmented_set.record, augmentation_of(augmented_set)
    rows = augmented_set.read("train", COLUMNS)
    variants = np.array(rows.column("variant").to_pylist())
    assert augmentation.source_rows == TRAIN_ROWS == (variants == 0).sum()
    assert augmentation.rows == (variants > 0).sum() == record.rows_of("train") - TRAIN_ROWS
    assert augmentation.tried == 3 * TRAIN_ROWS
    assert (
        augmentation.tried
        >= augmentation.generated
        == augmentation.rows + augmentation.unchanged + augmentation.repeated
    )
    assert augmentation.multiplier == 1 + augmentation.rows / TRAIN_ROWS
    texts = rows.column("sentence1").to_pylist()
    masks = sum(text.split().count("[MASK]") for text in texts)
    assert augmentation.changed_words == masks
    assert augmentation.words == sum(
        len(text.split()) for text, variant in zip(texts, variants, strict=True) if variant
    )
    assert len({*texts}) == augmentation.rows + len({t for t, v in zip(texts, variants, strict=True) if v == 0})


def test_variants_have_logits_and_no_gold(augmented_set: ExampleSet) -> None:
    rows = augmented_set.read("train", COLUMNS, "variant > 0")
    assert set(rows.column("origin").to_pylist()) == {"mask"}
    assert rows.column("label").null_count == rows.num_rows
    assert np.isfinite(logits_of(rows, 2)).all()
    assert set(augmented_set.read("validation", COLUMNS).column("origin").to_pylist()) == {"original"}


def test_the_teachers_score_is_that_of_the_originals(augmented_set: ExampleSet, opinion_set: ExampleSet) -> None:
    assert augmented_set.record.scores == opinion_set.record.scores


def test_students_choose_by_origin(augmented_set: ExampleSet, opinion_set: ExampleSet) -> None:
    originals = load_examples(augmented_set, "train", "origin = 'original'")
    plain = load_examples(opinion_set, "train")
    np.testing.assert_allclose(originals.teacher_NC, plain.teacher_NC, rtol=0, atol=1e-5)  # computed in other batches
    assert originals.keys_sha256 == plain.keys_sha256
    everything = load_examples(augmented_set, "train")
    assert len(everything) == TRAIN_ROWS + augmentation_of(augmented_set).rows


def test_each_variant_stands_beside_its_parent(augmented_set: ExampleSet) -> None:
    with open_catalog(augmented_set.root.parent) as connection:
        found = connection.execute(
            "select source_row, variant, sentence1, logits, parent.sentence1, parent.label, parent.logits "
            "from opinion_mask_pos_variants"
        ).fetchall()
    rows = {(r["source_row"], r["variant"]): r for r in augmented_set.read("train", COLUMNS).to_pylist()}
    assert len(found) == augmentation_of(augmented_set).rows
    for source_row, variant, text, logits, original, label, original_logits in found:
        row, parent = rows[source_row, variant], rows[source_row, 0]
        assert (text, list(logits)) == (row["sentence1"], row["logits"])
        assert (original, label, list(original_logits)) == (parent["sentence1"], parent["label"], parent["logits"])


def test_how_often_the_teacher_changes_its_mind(augmented_set: ExampleSet) -> None:
    query = (
        "select origin, avg((argmax(logits) <> argmax(parent.logits))::int) as changed "
        "from opinion_mask_pos_variants group by all"
    )
    flags = ["sql", query, "--store", str(augmented_set.root.parent), "--json"]
    answer = json.loads(CliRunner().invoke(app, flags).stdout)
    rows = augmented_set.read("train", COLUMNS)
    best = logits_of(rows, 2).argmax(axis=1)
    variants, source_rows = (np.array(rows.column(name).to_pylist()) for name in ("variant", "source_row"))
    parents = best[variants == 0]
    changed = (best[variants > 0] != parents[source_rows[variants > 0]]).mean()
    assert answer == [{"origin": "mask", "changed": pytest.approx(changed)}]


def test_the_card_tells_what_was_added(augmented_set: ExampleSet) -> None:
    record = augmentation_of(augmented_set)
    text = (augmented_set.root / "README.md").read_text()
    assert text == card_text(augmented_set.record)
    assert "{{" not in text
    assert f"| variants kept | {record.rows} |" in text
    assert f"| words changed | {record.changed_words / record.words:.4f}".rstrip("0") in text
    assert "mask_probability 0.3" in text
    assert len(record.sample) == 10
    for row in record.sample:
        assert f"| {row.source_row}:{row.variant} | mask | {row.original[0]} | {row.text[0]} |" in text


def test_a_card_without_variants_says_nothing_of_them(opinion_set: ExampleSet) -> None:
    assert "0 is the original" in card_text(opinion_set.record)
    assert "Variants" not in card_text(opinion_set.record)


def with_gold(table: pa.Table) -> pa.Table:
    return table.set_column(table.column_names.index("label"), "label", pa.array([1] * table.num_rows, pa.int32()))


def of_no_parent(table: pa.Table) -> pa.Table:
    moved = pc.if_else(pc.greater(table.column("variant"), 0), 10**6, 0)
    rows = pc.add(table.column("source_row"), moved)
    return table.set_column(1, table.schema.field("source_row"), rows)


def all_original(table: pa.Table) -> pa.Table:
    return table.set_column(3, table.schema.field("origin"), pa.array(["original"] * table.num_rows))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_gold, "gold"),
        (of_no_parent, "do not ascend at source row"),
        (all_original, "origin"),
        (lambda t: pa.concat_tables([t.slice(0, 1), t.slice(2)]), r"variants.* distill\.json"),
    ],
)
def test_wrong_variants_are_found(own: ExampleSet, change: Callable[[pa.Table], pa.Table], message: str) -> None:
    assert pq.read_table(own.root / own.record.shards_of("train")[0].path).column("variant")[1].as_py() > 0
    record = rewritten(own.root, own.record, change)
    with pytest.raises(IntegrityError, match=message):
        verify_shards(own.root, record)


def test_variants_that_the_manifest_keeps_quiet_about_are_found(own: ExampleSet) -> None:
    quiet = own.record.model_copy(update={"augmentation": None})
    with pytest.raises(IntegrityError, match=naming("variants", "distill.json")):
        verify_shards(own.root, rewritten(own.root, quiet))
