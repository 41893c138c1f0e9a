"""What an encoder makes of sentences, as a set: right, complete, resumable."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import teacher.dumps.sentences
from distill.commands.teachers import dump_teacher
from pipeline import log
from pipeline.arrays import Floats
from pipeline.errors import ConfigError, DataError, FingerprintMismatchError, IntegrityError, TeacherError
from pipeline.sets.codecs.vectors import BASIS_FILE, Basis, fit_basis
from pipeline.sets.kinds.sentences import SentenceSet
from pipeline.sets.record import SetRecord
from pipeline.sets.token_vectors import read_token_vectors
from pipeline.sets.verify import verify_shards
from pipeline.settings import given
from teacher.dumps import dump, open_dump
from teacher.settings import DumpSettings
from tests.helpers.commands import distill, invoke, kill_when
from tests.helpers.damage import damage
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS, dump_config, vectors_config
from tests.helpers.messages import naming
from tests.helpers.sentence_sets import rewrite, rows_of, with_value

SPLITS = ("train", "validation")


def write(work: Path, store: Path, **changes: Any) -> SetRecord:
    record = dump(vectors_config(work, store, **changes), "distill teacher-dump")
    assert record is not None
    return record


def write_task(work: Path, task: str, store: Path, **changes: Any) -> SetRecord:
    settings = {"signal": "vectors", "model_name_or_path": str(work / "bert"), "codec": "float16"}
    values = given(dump_config(work, task, store, **settings | changes))
    record = dump(DumpSettings.from_flags(**values), "distill teacher-dump")
    assert record is not None
    return record


def asked(model: Path, ids: list[list[int]], pooling: str = "mean") -> Floats:
    """The outputs of transformers, one sentence at a time."""
    tokenizer, encoder = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
    vectors = []
    for row in ids:
        read = torch.tensor([[tokenizer.cls_token_id, *row, tokenizer.sep_token_id]])
        with torch.no_grad():
            states_LH = encoder(read).last_hidden_state[0]
        vectors.append(states_LH[0] if pooling == "cls" else states_LH.mean(dim=0))
    return torch.stack(vectors).numpy()


def assert_same(one: Path, other: Path) -> None:
    for split in SPLITS:
        assert rows_of(one, split).equals(rows_of(other, split))


@pytest.mark.parametrize("split", SPLITS)
def test_vectors_are_those_of_transformers_alone(work: Path, vector_store: Path, split: str) -> None:
    """Batches are padded and mixed. A sentence in a batch of its own has no padding at all."""
    sentence_set = SentenceSet.open(vector_store / "float16")
    rows = rows_of(sentence_set.root, split)
    expected_NH = asked(work / "bert", rows.column("ids").to_pylist())
    assert np.unique([len(ids) for ids in rows.column("ids").to_pylist()]).size > 1
    np.testing.assert_allclose(sentence_set.decode(rows), expected_NH, atol=2e-3)


def test_a_folder_of_sentence_transformers_says_how_to_pool(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(work / "bert", tmp_path / "encoder"))
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    for store, flags, pooling in (("said", {}, "cls"), ("asked", {"pooling": "mean"}, "mean")):
        record = write(work, tmp_path / store, model_name_or_path=str(model), max_documents=20, **flags)
        assert record.signals.vectors is not None
        assert record.signals.vectors.pooling == pooling


def test_cls_pooling_takes_the_first_state(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    record = write(work, tmp_path, codec="float16", pooling="cls")
    rows = rows_of(tmp_path / record.name, "validation")
    expected_NH = asked(work / "bert", rows.column("ids").to_pylist(), "cls")
    np.testing.assert_allclose(SentenceSet.open(tmp_path / record.name).decode(rows), expected_NH, atol=2e-3)


def test_sentences_are_those_of_the_documents(work: Path, vector_store: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(work / "bert")
    documents = (work / "corpus.txt").read_text().splitlines()
    seen = []
    for split in SPLITS:
        for row in rows_of(vector_store / "int8", split).to_pylist():
            assert (row["source_row"] % 5 == 0) == (split == "validation")
            seen.append((row["source_row"], row["piece"], tokenizer.decode(row["ids"])))
    for document, text in enumerate(documents):
        pieces = [words for source_row, _, words in sorted(seen) if source_row == document]
        assert " ".join(pieces) == tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_both_sentences_of_a_pair_have_a_vector(work: Path, tmp_path: Path) -> None:
    record = write_task(work, "roles", tmp_path)
    assert (record.name, record.dataset_name, record.is_pair) == ("roles-vectors", "roles", True)
    tokenizer = AutoTokenizer.from_pretrained(work / "bert")
    for split in SPLITS:
        lines = (work / "data" / "roles" / f"{split}.jsonl").read_text().splitlines()
        rows = rows_of(tmp_path / record.name, split)
        texts = [json.loads(line)[f"sentence{piece + 1}"] for line in lines for piece in (0, 1)]
        expected = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        assert rows.column("ids").to_pylist() == expected
        assert rows.column("source_row").to_pylist() == [k // 2 for k in range(len(texts))]
        assert rows.column("piece").to_pylist() == [k % 2 for k in range(len(texts))]
    sentence_set = SentenceSet.open(tmp_path / record.name)
    rows = rows_of(sentence_set.root, "validation").slice(0, 6)
    np.testing.assert_allclose(
        sentence_set.decode(rows), asked(work / "bert", rows.column("ids").to_pylist()), atol=2e-3
    )
    cut = rewrite(sentence_set, lambda table: table.slice(0, table.num_rows - 1))
    with pytest.raises(IntegrityError, match=naming("validation-00000-of-00002.parquet: 39", "0 to 20", "40")):
        verify_shards(sentence_set.root, cut)
    third = rewrite(sentence_set, with_value("piece", -1, 2))
    with pytest.raises(IntegrityError, match=naming("sentences/validation-00000-of-00002.parquet: ", "number 1")):
        verify_shards(sentence_set.root, third)


def test_a_head_makes_no_difference(work: Path, teachers: Path, tmp_path: Path) -> None:
    """A classifier's encoder has the outputs of the plain encoder, apart from the pooler."""
    bare = write_task(work, "opinion", tmp_path, name="bare")
    model = AutoModel.from_pretrained(teachers / "opinion")
    model.save_pretrained(tmp_path / "encoder")
    shutil.copy(work / "bert" / "tokenizer.json", tmp_path / "encoder")
    shutil.copy(work / "bert" / "tokenizer_config.json", tmp_path / "encoder")
    places = {"headed": teachers / "opinion", "alone": tmp_path / "encoder"}
    sets = {
        name: write_task(work, "opinion", tmp_path, name=name, model_name_or_path=str(p)) for name, p in places.items()
    }
    assert sets["headed"].teacher.weights_sha256 == sets["alone"].teacher.weights_sha256
    assert_same(tmp_path / "headed", tmp_path / "alone")
    assert bare.signals == sets["alone"].signals


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_encoder_says_what_each_entry_means(
    work: Path, corpus_file: Path, tmp_path: Path, pooling: Literal["mean", "cls"]
) -> None:
    """Whatever is stored of sentences, of an entry it is the mean; a set without such vectors gets them later."""
    bare = write(work, tmp_path, pooling=pooling)
    record = write(work, tmp_path, pooling=pooling, token_vectors=True)
    stored = read_token_vectors(tmp_path / record.name, record)
    assert stored is not None
    assert (record.fingerprint, record.shards) == (bare.fingerprint, bare.shards)
    size = record.tokenizer.vocabulary_size
    np.testing.assert_allclose(stored.vector_VW, asked(work / "bert", [[k] for k in range(size)]), atol=2e-3)
    ids = [id_ for row in rows_of(tmp_path / record.name, "train").column("ids").to_pylist() for id_ in row]
    assert stored.count_V.tolist() == np.bincount(ids, minlength=size).tolist()
    assert stored.speaker.encoder == record.teacher
    verify_shards(tmp_path / record.name, record)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_an_encoder_that_says_nan_is_stopped(work: Path, corpus_file: Path, tmp_path: Path, number: float) -> None:
    folder = Path(shutil.copytree(work / "bert", tmp_path / "bert"))
    model = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        model.encoder.layer[0].output.LayerNorm.bias[3] = number
    model.save_pretrained(folder)
    with pytest.raises(TeacherError, match=naming("bert: ", "NaN", "weights")):
        write(work, tmp_path / "store", model_name_or_path=str(folder))


def test_what_float16_cannot_hold_is_refused_by_its_row(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(work / "bert", tmp_path / "bert"))
    model = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        model.encoder.layer[-1].output.LayerNorm.bias[3] = 70_000
    model.save_pretrained(folder)
    with pytest.raises(TeacherError, match=naming("validation, row 0, '", "bert: ", "--codec int8")):
        write(work, tmp_path / "store", model_name_or_path=str(folder), codec="float16")
    assert write(work, tmp_path / "int8", model_name_or_path=str(folder)).state == "verified"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packing": "blocks"}, "--packing blocks"),
        ({"num_copies": 2}, naming("--num-copies: ", "--signal mlm")),
        ({"codec": "topk-50"}, naming("--codec: ", "'topk-50'", "pca-K")),
        ({"codec": "pca-33"}, naming("codec pca-33", "32 numbers")),
        ({"signal": "mlm", "pooling": "cls"}, naming("--pooling: ", "--signal vectors")),
        ({"model_name_or_path": None}, naming("--model-name-or-path: ", "'tiny'")),
    ],
)
def test_wrong_flags(work: Path, corpus_file: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write(work, tmp_path, **changes)


def test_a_folder_that_is_not_there_is_told(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("nope: ")):
        write(work, tmp_path, model_name_or_path=str(tmp_path / "nope"))


def test_flags_of_logits_are_refused(work: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--augment: ", "--teacher-labels: ", "--signal logits")):
        write_task(work, "opinion", tmp_path, augment="mask-pos", teacher_labels="a,b")


def test_text_without_a_sentence_is_refused(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("corpus.txt: ", "--min-seq-length")):
        write(work, tmp_path, min_seq_length=32)


def test_another_setting_is_another_set(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    first = write(work, tmp_path)
    assert write(work, tmp_path) == first
    with pytest.raises(FingerprintMismatchError, match=naming("pooling: mean", "cls")):
        write(work, tmp_path, pooling="cls")


def test_jobs_share_a_set_and_its_basis(work: Path, vector_store: Path, tmp_path: Path) -> None:
    codec = {"name": "pca", "codec": "pca-12"}
    assert write(work, tmp_path, **codec, shard_index=1, num_shards=2).state == "staged"
    basis = (tmp_path / "pca" / BASIS_FILE).read_bytes()
    assert write(work, tmp_path, **codec, shard_index=0, num_shards=2).state == "verified"
    assert (tmp_path / "pca" / BASIS_FILE).read_bytes() == basis
    assert_same(tmp_path / "pca", vector_store / "pca")


def test_a_damaged_basis_comes_back(work: Path, vector_store: Path, tmp_path: Path) -> None:
    codec = {"name": "pca", "codec": "pca-12"}
    write(work, tmp_path, **codec, shard_index=0, num_shards=2)
    damage(tmp_path / "pca" / BASIS_FILE)
    assert write(work, tmp_path, **codec).state == "verified"
    assert_same(tmp_path / "pca", vector_store / "pca")


def test_another_basis_is_never_mixed_in(
    work: Path, vector_store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    codec = {"name": "pca", "codec": "pca-12"}
    write(work, tmp_path, **codec, shard_index=0, num_shards=2)
    sentence_set = (tmp_path / "pca" / "distill.json").read_text()

    def another(vectors_NH: Floats, num_components: int) -> Basis:  # as another machine has it
        basis = fit_basis(vectors_NH, num_components)
        return replace(basis, mean_H=basis.mean_H + 1e-3)

    (tmp_path / "pca" / BASIS_FILE).unlink()
    monkeypatch.setattr(teacher.dumps.sentences, "fit_basis", another)
    with pytest.raises(FingerprintMismatchError, match=naming("basis: ")):
        write(work, tmp_path, **codec)
    assert (tmp_path / "pca" / "distill.json").read_text() == sentence_set


def test_the_plan_counts_what_the_dump_writes(work: Path, vector_store: Path, tmp_path: Path) -> None:
    plan = open_dump(vectors_config(work, tmp_path, codec="float16"), "plan").plan()
    record = SentenceSet.open(vector_store / "float16").record
    assert plan.rows["sentences"] == pytest.approx(record.num_rows, rel=0.15)
    assert plan.shards == len(record.shards)
    assert (plan.disk_bytes > 0, bool(plan.seconds)) == (True, True)


def test_progress_counts_each_document_once(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    with log.written_to(file):
        write(work, tmp_path, token_vectors=False)
    events = map(json.loads, file.read_text().splitlines())
    [told] = [event for event in events if event["event"] == "progress" and event["what"].startswith("teacher: train")]
    assert told["done"] == told["total"] == len(corpus_file.read_text().splitlines())


def test_the_command(work: Path, tmp_path: Path) -> None:
    flags = ["--manifest", work / "opinion.yaml", "--data", work / "data", "--model-name-or-path", work / "bert"]
    flags += ["--signal", "vectors", "--store", tmp_path, "--max-seq-length", 32, "--json"]
    planned = invoke("teacher-dump", *flags, "--plan")
    assert (planned.exit_code, list(json.loads(planned.stdout)["rows"])) == (0, ["sentences"])
    written = invoke("teacher-dump", *flags)
    assert written.exit_code == 0, written.stderr
    record = json.loads(written.stdout)
    assert record["signals"]["vectors"]["codec"] == {"name": "int8", "width": 32}
    assert record["state"] == "verified"


def test_a_job_without_the_last_file_has_no_scores_to_show(work: Path, tmp_path: Path) -> None:
    flags = ["--manifest", work / "opinion.yaml", "--data", work / "data", "--model-name-or-path", work / "bert"]
    flags += ["--signal", "vectors", "--store", tmp_path, "--max-seq-length", 32, "--num-shards", 2]
    first, second = (invoke("teacher-dump", *flags, "--shard-index", index) for index in (0, 1))
    assert (first.exit_code, first.stdout) == (0, "")
    assert "opinion-vectors" in first.stderr
    assert second.exit_code == 0
    assert "vectors: verified" in " ".join(second.stdout.split())  # long paths wrap


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_killed_and_repeated_is_as_if_never_killed(work: Path, vector_store: Path, tmp_path: Path, shards: int) -> None:
    root = tmp_path / "pca"
    changes = {"name": "pca", "codec": "pca-12"}
    values = given(vectors_config(work, tmp_path, **changes))
    del values["token_vectors"]
    named = ((f"--{name.replace('_', '-')}", value) for name, value in values.items())
    process = distill("teacher-dump", "--no-token-vectors", *itertools.chain(*named))
    kill_when(process, lambda: len(list(root.glob("sentences/*.parquet"))) >= shards)
    assert write(work, tmp_path, **changes).state == "verified"
    assert_same(root, vector_store / "pca")
    assert not list(root.rglob("*.distill-tmp"))


def test_the_function_writes_vectors_and_plans_as_the_command_does(work: Path, tmp_path: Path) -> None:
    flags: dict[str, Any] = {"manifest": work / "opinion.yaml", "data": work / "data"}
    flags |= {
        "model_name_or_path": str(work / "bert"),
        "store": tmp_path / "store",
        "signal": "vectors",
        "token_vectors": False,
    }
    plan = dump_teacher(**flags, plan=True)
    assert plan["shards"] == len(SPLITS)
    assert "shards" in repr(plan)
    assert not (tmp_path / "store").exists()
    record = dump_teacher(**flags)
    assert (record["kind"], record["state"], record["signals"]["logits"]) == ("sentences", "verified", None)
    logits = dump_teacher(**flags | {"signal": "logits", "augment": "none"}, plan=True)
    assert logits["rows"] == {"train": TRAIN_ROWS, "validation": VALIDATION_ROWS}
