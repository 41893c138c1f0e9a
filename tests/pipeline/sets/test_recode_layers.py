"""Layers in smaller codecs: as the teacher would have written them; what is repeated, refused or damaged on the way."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.file_names import TOKENIZER_FILE
from pipeline.sets.files import measured
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.layers import open_layers
from pipeline.sets.record import changed, read_set_record, write_set_record
from pipeline.sets.verify import verify_shards
from tests.helpers.commands import invoke
from tests.helpers.damage import damage
from tests.helpers.layer_dumps import write


@pytest.fixture
def own(layers_set: ExampleSet, tmp_path: Path) -> ExampleSet:
    """A set with all layer outputs, which a test may change."""
    return ExampleSet.open(shutil.copytree(layers_set.root, tmp_path / "roles"))


@pytest.mark.parametrize("codec", ["float16", "int8", "pca-8"])
def test_a_recoded_set_is_as_the_teacher_would_have_written_it(
    codec: str, work: Path, layers_set: ExampleSet, roles_set: ExampleSet, tmp_path: Path
) -> None:
    direct = shutil.copytree(roles_set.root, tmp_path / "direct")
    write(work, tmp_path, name="direct", states="0,1", states_codec=codec)
    flags = ["--store", layers_set.root.parent, "--codec", f"states={codec}"]
    name = f"recoded-{codec}"
    result = invoke("recode", layers_set.root, "--name", name, *flags)
    assert result.exit_code == 0, result.stderr
    new, old = ExampleSet.open(layers_set.root.parent / name), ExampleSet.open(direct)
    assert new.record.fingerprint == old.record.fingerprint
    if codec != "pca-8":  # fitted to other rows
        pairs = zip(*(one.record.signals.layer_signals[0].shards for one in (new, old)), strict=True)
        for mine, other in pairs:
            tables = [pq.read_table(one.root / s.path, partitioning=None) for one, s in ((new, mine), (old, other))]
            assert tables[0].equals(tables[1])
    assert new.record.signals.attention == layers_set.record.signals.attention
    verify_shards(new.root, new.record)
    stored, live = (open_layers(one, "states", "train") for one in (new, layers_set))
    rows = np.arange(len(live))
    near_TH, exact_TH = (one.tokens(1, rows)[0] for one in (stored, live))
    error = ((near_TH - exact_TH) ** 2).mean() / exact_TH.var(axis=0).mean()
    assert error < {"float16": 1e-6, "int8": 1e-3, "pca-8": 0.6}[codec]


def test_a_prefix_of_pca_is_recoded_number_by_number(work: Path, roles_set: ExampleSet, tmp_path: Path) -> None:
    shutil.copytree(roles_set.root, tmp_path / "roles")
    write(work, tmp_path, states="0,1", states_codec="pca-12")
    flags = ["--store", tmp_path, "--name", "small"]
    assert invoke("recode", "roles", *flags, "--codec", "states=pca-5").exit_code == 0
    large, small = (open_layers(ExampleSet.open(tmp_path / name), "states", "train") for name in ("roles", "small"))
    for layer in (0, 1):
        expected = large.stored[layer][""].reshape(-1, 12)[:, :5]
        np.testing.assert_array_equal(small.stored[layer][""].reshape(-1, 5), expected)
    for codec, why in (("float16", "has states as pca-5"), ("pca-9", "has states as pca-5")):
        result = invoke("recode", "small", "--store", tmp_path, "--name", "more", "--codec", f"states={codec}")
        assert result.exit_code == 2
        assert why in result.stderr
    assert "cls" in invoke("recode", "small", *flags[:2], "--name", "more", "--codec", "cls=int8").stderr
    both = invoke("recode", "small", *flags[:2], "--name", "more", "--codec", "states=int8 topk-5")
    assert "--codec: 'topk-5'" in both.stderr


def test_bytes_of_attention_and_values_can_be_made_of_their_numbers(
    work: Path, roles_set: ExampleSet, tmp_path: Path
) -> None:
    codecs = ["--codec", "attention=u8 values=u8"]
    for name, codec in (("exact", "float32"), ("direct", "u8")):
        shutil.copytree(roles_set.root, tmp_path / name)
        write(work, tmp_path, name=name, attention="1", values="1", attention_codec=codec, values_codec=codec)
    result = invoke("recode", "exact", "--store", tmp_path, "--name", "small", *codecs)
    assert result.exit_code == 0, result.stderr
    small, direct = (ExampleSet.open(tmp_path / name).record.signals for name in ("small", "direct"))
    assert (small.attention, small.values) == (direct.attention, direct.values)
    again = invoke("recode", "small", "--store", tmp_path, "--name", "more", *codecs)
    assert again.exit_code == 2
    assert "attention as u8" in again.stderr


@pytest.mark.parametrize("codec", ["int8", "pca-8"])
def test_a_repeated_recode_mends_what_was_damaged(codec: str, own: ExampleSet) -> None:
    flags = ["--store", own.root.parent, "--name", "small", "--codec", f"states={codec}"]
    assert invoke("recode", "roles", *flags).exit_code == 0
    root = own.root.parent / "small"
    record = read_set_record(root)
    assert record.signals.states is not None
    assert record.signals.attention is not None
    paths = [record.shards[0].path, record.signals.states.shards[1].path, *list(record.signals.attention.hashes())[:1]]
    paths += [record.signals.states.basis_path] if codec == "pca-8" else []
    paths += [TOKENIZER_FILE]
    for path in paths:
        damage(root / path)
    assert invoke("recode", "roles", *flags).exit_code == 0
    assert read_set_record(root) == record
    verify_shards(root, record)
    assert ExampleSet.open(root).tokenizer_json() == own.tokenizer_json()


def test_a_basis_that_was_lost_alone_is_fitted_and_recorded_again(own: ExampleSet) -> None:
    flags = ["--store", own.root.parent, "--name", "small", "--codec", "states=pca-8"]
    assert invoke("recode", "roles", *flags).exit_code == 0
    root = own.root.parent / "small"
    record = read_set_record(root)
    assert record.signals.states is not None
    (root / record.signals.states.basis_path).unlink()
    assert invoke("recode", "roles", *flags).exit_code == 0
    assert read_set_record(root) == record
    verify_shards(root, record)


def test_one_codec_of_two_repeated_leaves_the_other_as_it_is(own: ExampleSet) -> None:
    flags = ["--store", own.root.parent, "--name", "small", "--codec"]
    assert invoke("recode", "roles", *flags, "states=int8 cls=int8").exit_code == 0
    root = own.root.parent / "small"
    record = read_set_record(root)
    assert invoke("recode", "roles", *flags, "states=int8").exit_code == 0
    assert read_set_record(root) == record
    verify_shards(root, record)


def test_a_recode_that_is_refused_changes_nothing(own: ExampleSet) -> None:
    flags = ["--store", own.root.parent, "--name", "small"]
    assert invoke("recode", "roles", *flags, "--codec", "states=int8").exit_code == 0
    root = own.root.parent / "small"
    record = read_set_record(root)
    result = invoke("recode", "roles", *flags, "--codec", "states=float16 cls=int8")
    assert result.exit_code == 2
    assert f"{root / 'states'}" in result.stderr
    assert read_set_record(root) == record
    verify_shards(root, record)
    shutil.rmtree(root / "states")  # as the message advises
    assert invoke("recode", "roles", *flags, "--codec", "states=float16").exit_code == 0
    states = read_set_record(root).signals.states
    assert states is not None
    assert str(states.codec) == "float16"
    verify_shards(root, read_set_record(root))


def test_a_recoded_set_keeps_its_rows_when_its_source_is_mended_with_other_bytes(own: ExampleSet) -> None:
    flags = ["--store", own.root.parent, "--name", "small", "--codec", "states=int8"]
    assert invoke("recode", "roles", *flags).exit_code == 0
    root = own.root.parent / "small"
    record = read_set_record(root)
    path = own.root / own.record.shards[0].path
    rows, metadata = pq.read_table(path, partitioning=None), pq.read_metadata(path).metadata
    path.unlink()
    with pq.ParquetWriter(path, rows.schema.remove_metadata(), compression="gzip") as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({key: value for key, value in metadata.items() if key != b"ARROW:schema"})
    shards = (measured(own.root, own.record.shards[0]), *own.record.shards[1:])
    write_set_record(own.root, changed(own.record, shards=shards))
    verify_shards(own.root, read_set_record(own.root))
    assert invoke("recode", "roles", *flags).exit_code == 0
    assert read_set_record(root) == record
    verify_shards(root, record)


@pytest.mark.parametrize("folder", ["states", "attention"])
def test_a_damaged_source_is_not_recoded(folder: str, own: ExampleSet) -> None:
    shard = getattr(own.record.signals, folder).shards[0]
    damage(own.root / shard.path)
    result = invoke("recode", "roles", "--store", own.root.parent, "--name", "small", "--codec", "states=int8")
    assert result.exit_code != 0
    assert f"{shard.path}: " in result.stderr
    assert not (own.root.parent / "small").exists()
