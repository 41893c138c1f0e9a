"""What a teacher's layers say: the numbers, by key; that a set gets them later, resumes, and refuses what is not so."""

import itertools
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import load_dataset
from transformers import AutoModel, AutoTokenizer

import teacher.dump.kept_layers
from pipeline.arrays import Floats
from pipeline.errors import ConfigError, FingerprintMismatchError, IntegrityError, TeacherError
from pipeline.files import sha256
from pipeline.record_file import without_checksum
from pipeline.sets.card import card_text
from pipeline.sets.codecs.vectors import Basis, fit_basis, vector_codec
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.layers import check_layers, group_writer, layer_footer, open_layers
from pipeline.sets.record import FILE_NAME, SetRecord, changed, read_set_record, write_set_record
from pipeline.sets.set_settings import PullSettings, PushSettings
from pipeline.sets.signals import States
from pipeline.sets.verify import verify_shards
from pipeline.sets.write import reopen_set
from pipeline.sharing.pull import pull
from pipeline.sharing.push import push
from teacher.dump.kept_layers import LayerJob, row_groups
from teacher.dumps.examples import ExamplesJob
from teacher.models.layer_outputs import layer_outputs
from tests.helpers.calls import count_calls
from tests.helpers.commands import distill, invoke, kill_when
from tests.helpers.damage import damage
from tests.helpers.dumps import kept
from tests.helpers.layer_dumps import EVERY, write
from tests.helpers.messages import naming


@pytest.fixture
def own(layers_set: ExampleSet, tmp_path: Path) -> ExampleSet:
    """A set with all layer outputs, which a test may change."""
    return ExampleSet.open(shutil.copytree(layers_set.root, tmp_path / "roles"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the teacher: for logits of rows, and for outputs of layers."""
    logits, layers = (ExamplesJob, "predict"), (LayerJob, "_write")
    return count_calls(monkeypatch, {"logits": logits, "layers": layers})


def live_states(work: Path, texts: Sequence[dict[str, str]]) -> list[list[Floats]]:
    """The outputs of transformers for rows, one at a time: [L, H] for each layer."""
    folder = work / "teachers" / "roles"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        rows = [tokenizer(row["sentence1"], row["sentence2"], return_tensors="pt") for row in texts]
        return [[h[0].numpy() for h in model(**row, output_hidden_states=True).hidden_states] for row in rows]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_states_are_those_of_transformers_by_key(split: str, work: Path, layers_set: ExampleSet) -> None:
    rows = layers_set.read(split, ("source_row", "sentence1", "sentence2")).to_pylist()[::7]
    live = live_states(work, rows)
    source_row_N = np.array([row["source_row"] for row in rows])
    states, cls = (open_layers(layers_set, name, split) for name in ("states", "cls"))
    place_N = states.places(source_row_N, np.zeros_like(source_row_N))
    for layer in (0, 1):
        flat_TH, offsets = states.tokens(layer, place_N)
        np.testing.assert_allclose(flat_TH, np.concatenate([row[layer] for row in live]), atol=2e-6)
        assert np.diff(offsets).tolist() == [len(row[layer]) for row in live]
        expected = np.stack([row[layer][0] for row in live])
        np.testing.assert_allclose(cls.tokens(layer, place_N)[0], expected, rtol=1e-3, atol=1e-4)
        assert not np.array_equal(cls.tokens(layer, place_N)[0], expected)  # it is float16


def test_attention_and_values_are_those_of_transformers_by_key(work: Path, layers_set: ExampleSet) -> None:
    folder = work / "teachers" / "roles"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    model.set_attn_implementation("eager")
    said: list[torch.Tensor] = []
    model.encoder.layer[0].attention.self.value.register_forward_hook(lambda *call: said.append(call[2]))
    rows = layers_set.read("validation", ("source_row", "sentence1", "sentence2")).to_pylist()[::9]
    attention, values = (open_layers(layers_set, name, "validation") for name in ("attention", "values"))
    source_row_N = np.array([row["source_row"] for row in rows])
    place_N = attention.places(source_row_N, np.zeros_like(source_row_N))
    for row, scores, products in zip(rows, attention.rows(1, place_N), values.rows(1, place_N), strict=True):
        with torch.no_grad():
            inputs = tokenizer(row["sentence1"], row["sentence2"], return_tensors="pt")
            expected = model(**inputs, output_attentions=True).attentions[0][0]
        np.testing.assert_allclose(torch.tensor(scores).softmax(dim=-1), expected, atol=1e-6)
        value_ALD = said[-1][0].view(len(scores[0]), len(scores), -1).transpose(0, 1)
        exact = value_ALD @ value_ALD.transpose(1, 2) / value_ALD.shape[-1] ** 0.5
        assert np.abs(products - exact.numpy()).max() < 0.005 * exact.abs().max()


def test_a_finished_set_gets_them_without_being_asked_for_logits(
    work: Path, roles_set: ExampleSet, asked: list[str], tmp_path: Path
) -> None:
    root = shutil.copytree(roles_set.root, tmp_path / "roles")
    record = write(work, tmp_path, states="1")
    assert set(asked) == {"layers"}
    assert (record.fingerprint, record.shards) == (roles_set.record.fingerprint, roles_set.record.shards)
    assert record.signals.row_signals() == roles_set.record.signals
    assert record == read_set_record(root)
    asked.clear()
    assert write(work, tmp_path) == write(work, tmp_path, states="1") == record
    assert asked == []
    (root / record.signals.layer_signals[0].shards[1].path).unlink()
    assert write(work, tmp_path) == record  # what the set has is mended without being named
    assert asked == ["layers"]
    more = write(work, tmp_path, cls="0")
    assert more.signals.states == record.signals.states
    assert [signal.name for signal in more.signals.layer_signals] == ["states", "cls"]
    verify_shards(root, more)


def test_a_lost_file_may_come_back_with_other_bytes(
    work: Path, own: ExampleSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearly(*arguments: Any) -> Any:
        said = layer_outputs(*arguments)
        return {name: {n: [x + np.float32(0.01) for x in rows] for n, rows in of.items()} for name, of in said.items()}

    lost, damaged = own.record.signals.layer_signals[0].shards[:2]
    (own.root / lost.path).unlink()
    content = bytearray((own.root / damaged.path).read_bytes())
    content[len(content) // 2] ^= 1
    (own.root / damaged.path).write_bytes(content)
    monkeypatch.setattr(teacher.dump.kept_layers, "layer_outputs", nearly)  # as another machine's rounding
    record = write(work, own.root.parent, num_shards=2, shard_index=0)
    assert not (own.root / damaged.path).exists()
    record = write(work, own.root.parent, num_shards=2, shard_index=1)
    now = record.signals.layer_signals[0].shards
    assert all(shard.sha256 not in (None, before.sha256) for shard, before in zip(now, (lost, damaged), strict=False))
    assert now[2:] == own.record.signals.layer_signals[0].shards[2:]
    verify_shards(own.root, record)


def test_a_lost_shard_of_rows_leaves_them_as_they_were(work: Path, own: ExampleSet, asked: list[str]) -> None:
    (own.root / own.record.shards[0].path).unlink()
    assert write(work, own.root.parent).signals == own.record.signals
    assert "layers" not in asked


def test_a_shard_of_rows_and_a_basis_that_are_lost_together_come_back(
    work: Path, roles_set: ExampleSet, asked: list[str], tmp_path: Path
) -> None:
    root = shutil.copytree(roles_set.root, tmp_path / "roles")
    record = write(work, tmp_path, cls="1", cls_codec="pca-8")
    assert record.signals.cls is not None
    (lost,) = record.signals.cls.variance_lost or ()
    assert f"{lost:.1%}" in card_text(record)
    (root / record.shards[0].path).unlink()
    (root / "cls" / "basis.safetensors").unlink()
    asked.clear()
    assert write(work, tmp_path) == record
    assert set(asked) == {"logits"}
    verify_shards(root, record)


def test_a_kill_between_rows_and_layers_leaves_their_lines(work: Path, own: ExampleSet, asked: list[str]) -> None:
    rows, layers = own.record.shards[0], own.record.signals.layer_signals[0].shards[0]
    (own.root / rows.path).unlink()
    (own.root / layers.path).unlink()
    reopen_set(own.root, own.record, [rows])
    assert read_set_record(own.root).signals.layer_signals == own.record.signals.layer_signals
    record = write(work, own.root.parent)  # without a word about layers
    assert (record.state, record.signals) == ("verified", own.record.signals)
    assert set(asked) == {"logits", "layers"}
    verify_shards(own.root, record)


def test_what_a_kill_left_beside_the_record_goes(work: Path, roles_set: ExampleSet, tmp_path: Path) -> None:
    root = shutil.copytree(roles_set.root, tmp_path / "roles")
    (root / ".distill.json.0123456789ab.distill-tmp").write_text("{")
    write(work, tmp_path, values="1")
    assert not [path for path in root.rglob(".*") if path.is_file()]


def test_other_layers_or_codecs_are_refused(work: Path, own: ExampleSet, asked: list[str]) -> None:
    with pytest.raises(FingerprintMismatchError, match=naming("codec: ", "float32", "float16")) as error:
        write(work, own.root.parent, states="0,1")
    assert str(own.root / "states") in str(error.value)
    with pytest.raises(FingerprintMismatchError, match=naming("layers: 0, 1 there", "1 now")):
        write(work, own.root.parent, states="1", states_codec="float32")
    assert asked == []
    shutil.rmtree(own.root / "states")
    signal = write(work, own.root.parent, states="1", states_codec="float16").signals.states
    assert signal is not None
    assert (signal.layers, str(signal.codec)) == ((1,), "float16")


@pytest.mark.usefixtures("teachers")
def test_wrong_flags_are_refused_before_the_work(work: Path, asked: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--keep states: layer 2", "0 to 1")):
        write(work, tmp_path, states="0,2")
    with pytest.raises(ConfigError, match=naming("pca-33", "32 numbers")):
        write(work, tmp_path, states="1", states_codec="pca-33")
    with pytest.raises(ConfigError, match=naming("--layers-of: ", "--keep")):
        write(work, tmp_path, layers_of="all")
    result = invoke("teacher-dump", "--task", "mrpc", "--keep", "states=first")
    assert result.exit_code == 2
    assert not (tmp_path / "roles").exists()
    assert asked == []


@pytest.mark.slow
def test_two_jobs_and_a_killed_one_give_the_same_set(work: Path, layers_set: ExampleSet, tmp_path: Path) -> None:
    flags = ["--manifest", work / "roles.yaml", "--data", work / "data", "--store", tmp_path, "--no-token-vectors"]
    flags += ["--model-name-or-path", work / "teachers" / "roles", "--max-seq-length", 32, "--rows-per-shard", 25]
    flags += ["--keep", kept(EVERY)["keep"]]
    process = distill("teacher-dump", *flags)
    kill_when(process, lambda: any((tmp_path / "roles" / "states").glob("*.parquet")))
    first = write(work, tmp_path, num_shards=2, shard_index=0, **EVERY)
    assert first.signals.layer_signals == ()
    second = write(work, tmp_path, num_shards=2, shard_index=1, **EVERY)
    assert second.signals == layers_set.record.signals
    assert not [path for path in (tmp_path / "roles").rglob(".*") if path.is_file()]


def test_a_new_version_takes_the_files_over(work: Path, own: ExampleSet, asked: list[str], tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(work / "data" / "roles", data / "roles")
    with (data / "roles" / "train.jsonl").open("a") as lines:
        lines.write((data / "roles" / "train.jsonl").read_text().splitlines()[0].replace("the", "a") + "\n")
    flags: dict[str, Any] = {"data": data, "name": "second", "extend": "roles"}
    record = write(work, own.root.parent, **EVERY, **flags)
    assert asked.count("layers") == 1  # the file with the new row
    verify_shards(own.root.parent / "second", record)


@pytest.mark.parametrize("of", ["originals", "all"])
def test_variants_have_none_unless_asked_for(of: str, work: Path, augmented_set: ExampleSet, tmp_path: Path) -> None:
    shutil.copytree(augmented_set.root, tmp_path / augmented_set.name)
    shutil.copytree(augmented_set.root.parent / "augmented", tmp_path / "augmented")
    flags: dict[str, Any] = {
        "augment": "mask-pos",
        "pos_probability": 0,
        "mask_probability": 0.3,
        "num_variants": 3,
        "seed": 1,
    }
    write(work, tmp_path, "opinion", states="1", layers_of=of, **flags)
    logit_set = ExampleSet.open(tmp_path / augmented_set.name)
    keys = logit_set.read("train", ("source_row", "variant"))
    store = open_layers(logit_set, "states", "train")
    place_N = store.places(*(keys.column(name).to_numpy().astype(np.int64) for name in ("source_row", "variant")))
    has_states_N = place_N >= 0
    expected_N = keys.column("variant").to_numpy() == 0 if of == "originals" else np.ones(keys.num_rows, dtype=bool)
    np.testing.assert_array_equal(has_states_N, expected_N)
    assert place_N[has_states_N].tolist() == list(range(len(store)))


@pytest.mark.parametrize("name", ["int8", "pca-32", "pca-8"])
def test_codecs_are_near_and_a_prefix_of_pca_is_the_smaller_codec(
    name: str, work: Path, layers_set: ExampleSet, tmp_path: Path
) -> None:
    shutil.copytree(layers_set.root, tmp_path / "roles")
    shutil.rmtree(tmp_path / "roles" / "states")
    write(work, tmp_path, states="0,1", states_codec=name)
    exact, near = (open_layers(one, "states", "train") for one in (layers_set, ExampleSet.open(tmp_path / "roles")))
    rows = np.arange(len(exact))
    exact_TH, near_TH = exact.tokens(1, rows)[0], near.tokens(1, rows)[0]
    error = ((exact_TH - near_TH) ** 2).sum() / ((exact_TH - exact_TH.mean(axis=0)) ** 2).sum()
    assert error < {"int8": 1e-3, "pca-32": 2e-3, "pca-8": 0.6}[name]
    if name == "pca-8":  # the components of numpy's own decomposition explain as much
        singular = np.linalg.svd(exact_TH - exact_TH.mean(axis=0), compute_uv=False) ** 2
        assert error == pytest.approx(singular[8:].sum() / singular.sum(), rel=0.05)
        told = read_set_record(tmp_path / "roles").signals.states.variance_lost  # type: ignore[union-attr]
        assert told[1] == pytest.approx(singular[8:].sum() / singular.sum(), rel=0.05)  # type: ignore[index]
    verify_shards(tmp_path / "roles", read_set_record(tmp_path / "roles"))


def test_their_files_are_counted_and_a_long_list_of_them_is_no_bomb(own: ExampleSet) -> None:
    folders = ("examples", *(signal.name for signal in own.record.signals.layer_signals))
    files = [path for folder in folders for path in (own.root / folder).glob("*.parquet")]
    assert own.record.num_bytes == sum(path.stat().st_size for path in files)
    text = without_checksum(json.loads((own.root / FILE_NAME).read_bytes()))
    for part in (text, *(text["signals"][name] for name in folders[1:])):
        part["shards"] *= 700
    (own.root / FILE_NAME).write_text(json.dumps(text))
    with pytest.raises(IntegrityError, match=naming("distill.json: ", "shard")):
        read_set_record(own.root)


def test_others_read_them(layers_set: ExampleSet, tmp_path: Path) -> None:
    rows = load_dataset(str(layers_set.root), "states", split="validation", cache_dir=str(tmp_path))
    assert len(rows) == layers_set.record.rows_of("validation")
    assert card_text(layers_set.record).count("- feature-extraction") == 1
    assert len(rows[3]["states_1"]) == 32 * rows[3]["length"]
    root = layers_set.root
    sql = f"""
        select count(*), bool_and(len(cls_1) = 32), bool_and(length = len(ids1) + len(ids2) + 3)
        from '{root}/cls/*.parquet' join '{root}/examples/*.parquet' using (split, source_row, variant)
    """
    assert duckdb.execute(sql).fetchall() == [(layers_set.record.num_rows, True, True)]
    assert "Columns of `states/`" in card_text(layers_set.record)


def _rewrite(root: Path, record: SetRecord, signal: States, change: Any) -> SetRecord:
    """The set with the first file of states changed by its enemy, who records it."""
    shard = signal.shards[0]
    table = change(pq.read_table(root / shard.path, partitioning=None).replace_schema_metadata(None))
    with group_writer(root / shard.path, signal, layer_footer(record, signal, shard)) as put:
        put(table)
    size = (root / shard.path).stat().st_size
    new = shard.model_copy(update={"rows": len(table), "bytes": size, "sha256": sha256(root / shard.path)})
    states = signal.model_copy(update={"shards": (new, *signal.shards[1:])})
    hostile = changed(record, signals=record.signals.model_copy(update={"states": states}))
    write_set_record(root, hostile)
    return hostile


def _with(name: str, change: Any) -> Any:
    return lambda table: table.set_column(
        table.schema.get_field_index(name), table.schema.field(name), change(table[name])
    )


def _nan(column: pa.ChunkedArray) -> pa.Array:
    lists = column.combine_chunks()
    numbers = lists.flatten().to_numpy().copy()
    numbers[5] = np.nan
    return pa.ListArray.from_arrays(lists.offsets, pa.array(numbers))


WRONG = {
    "another key": (_with("source_row", lambda c: pa.array(c.to_numpy()[::-1])), "source_row"),
    "another length": (
        _with("length", lambda c: pa.array(c.to_numpy() + np.uint16(1))),
        "length",
    ),
    "missing rows": (lambda table: table.slice(0, 7), "7 rows"),
    "too short": (
        _with("states_1", lambda c: c.combine_chunks().slice(0, len(c)).take(pa.array(np.roll(np.arange(len(c)), 1)))),
        "states_1",
    ),
    "NaN": (_with("states_0", _nan), "layer 0: .*NaN"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rows_are_found(wrong: str, own: ExampleSet) -> None:
    signal = own.record.signals.states
    assert signal is not None
    change, problem = WRONG[wrong]
    record = _rewrite(own.root, own.record, signal, change)
    with pytest.raises(IntegrityError, match=problem):
        verify_shards(own.root, record)


def test_missing_examples_are_named(own: ExampleSet) -> None:
    (own.root / own.record.shards[0].path).unlink()
    for check in (verify_shards, check_layers):
        with pytest.raises(IntegrityError, match=r"examples/\S+-00000-of-\d+\.parquet: "):
            check(own.root, own.record)


def test_a_basis_that_no_codec_needs_is_refused() -> None:
    with pytest.raises(ValueError, match="basis_sha256: "):
        States(layers=(1,), codec=vector_codec("float32", 8), basis_sha256="0" * 64)


def test_a_flipped_byte_is_found(own: ExampleSet) -> None:
    path = own.root / own.record.signals.layer_signals[0].shards[2].path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=naming("states/train-00000-of-00004.parquet: ", "SHA-256")):
        verify_shards(own.root, own.record)
    with pytest.raises(IntegrityError, match=naming("states/train-00000-of-00004.parquet: ", "SHA-256")):
        [open_layers(own, "states", split) for split in own.splits]


def test_they_travel_but_not_without_text(own: ExampleSet, tmp_path: Path) -> None:
    store = own.root.parent
    url = f"file://{tmp_path}/there"
    sent = push(PushSettings(set="roles", store=store, url=url)).sent
    assert {path.partition("/")[0] for path in sent} >= {"states", "cls", "attention", "values", "examples"}
    pulled = pull(PullSettings(store=tmp_path / "store", url=url))
    assert pulled.record.signals == own.record.signals
    assert push(PushSettings(set="roles", store=store, url=url)).sent == ()
    push(PushSettings(set="roles", store=store, url=f"{url}-blind", without_text=True))
    path = own.root / "cls" / "train-00000-of-00004.parquet"
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(IntegrityError, match=naming("cls/train-00000-of-00004.parquet: ", "SHA-256")):
        push(PushSettings(set="roles", store=store, url=f"{url}-damaged"))
    blind = read_set_record(tmp_path / "there-blind")
    assert blind.signals.layer_signals == ()
    with pytest.raises(ValueError, match="signals: "):
        changed(blind, signals=own.record.signals)


def test_numbers_that_a_codec_cannot_hold_name_the_way_out(
    work: Path, roles_set: ExampleSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def loud(teacher: Any, inputs: Any, asked: Any, *more: Any) -> Any:
        said = layer_outputs(teacher, inputs, asked, *more)
        said["states"][1][3] = said["states"][1][3] + 70_000
        return said

    shutil.copytree(roles_set.root, tmp_path / "roles")
    monkeypatch.setattr(teacher.dump.kept_layers, "layer_outputs", loud)
    with pytest.raises(TeacherError, match=naming("layer 1", "NaN", "states=LAYERS:float32")):
        write(work, tmp_path, states="1")
    assert read_set_record(tmp_path / "roles") == roles_set.record


def test_row_groups_are_small_and_hold_every_row_once() -> None:
    signal = States(layers=(1, 2, 3), codec=vector_codec("float32", 768))
    length_R = np.full(300, 128)
    cuts = list(row_groups(length_R, [signal]))
    assert [start for start, _ in cuts] == [0, *(stop for _, stop in cuts[:-1])]
    assert cuts[-1][1] == 300
    sizes = [3 * 4 * 768 * int(length_R[start:stop].sum()) for start, stop in cuts]
    assert max(sizes) <= 48 * 2**20 < 2 * max(sizes)
    assert list(row_groups(np.array([10**6, 5]), [signal])) == [(0, 1), (1, 2)]  # too large, and alone


def test_a_lost_basis_is_forgotten_with_what_was_written_with_it(
    work: Path, roles_set: ExampleSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(roles_set.root, tmp_path / "roles")
    flags: dict[str, Any] = {"states": "0,1", "states_codec": "pca-8"}
    states = write(work, tmp_path, **flags).signals.states
    assert states is not None
    damage(tmp_path / "roles" / states.basis_path)

    fits = itertools.count(1)

    def another(states_NH: Floats, num_stored: int) -> Basis:  # as machines differ from each other
        basis = fit_basis(states_NH, num_stored)
        return replace(basis, mean_H=basis.mean_H + 1e-3 * next(fits))

    monkeypatch.setattr(teacher.dump.kept_layers, "fit_basis", another)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LayerJob, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(work, tmp_path, **flags)
    basis = (tmp_path / "roles" / states.basis_path).read_bytes()
    record = write(work, tmp_path, **flags)
    assert (tmp_path / "roles" / states.basis_path).read_bytes() == basis  # begun with, gone on with
    verify_shards(tmp_path / "roles", record)


@pytest.mark.parametrize("of", ["file", "basis"])
def test_a_new_version_takes_over_nothing_damaged(
    of: str, work: Path, roles_set: ExampleSet, asked: list[str], tmp_path: Path
) -> None:
    shutil.copytree(roles_set.root, tmp_path / "roles")
    flags: dict[str, Any] = {"states": "0,1", "states_codec": "pca-8"}
    states = write(work, tmp_path, **flags).signals.states
    assert states is not None
    damage(tmp_path / "roles" / (states.shards[0].path if of == "file" else states.basis_path))
    asked.clear()
    data = shutil.copytree(work / "data", tmp_path / "data")
    with (data / "roles" / "train.jsonl").open("a") as lines:
        lines.write((data / "roles" / "train.jsonl").read_text().splitlines()[0].replace("the", "a") + "\n")
    with pytest.raises(IntegrityError, match=r"states/(validation-00000.*SHA-256|basis\.safetensors)"):
        write(work, tmp_path, data=data, name="second", extend="roles", **flags)
    assert asked == []
