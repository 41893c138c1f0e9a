"""A teacher's vectors of its vocabulary: the numbers, the counts, and that a set gets them without another dump."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from datasets import load_dataset
from transformers import AutoConfig, AutoModel, AutoTokenizer

import teacher.dump.additions
from pipeline.arrays import Ragged
from pipeline.errors import ConfigError, IntegrityError, TeacherError
from pipeline.sets.card import card_text
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord, read_set_record
from pipeline.sets.signals.side_files import VOCABULARY_FILE
from pipeline.sets.token_vectors import read_token_vectors
from pipeline.sets.verify import verify_shards
from pipeline.settings import given
from teacher.dumps import dump
from teacher.dumps.examples import ExamplesJob
from teacher.finetune.classifier import finetune
from teacher.finetune_settings import FinetuneSettings
from teacher.settings import ITSELF, DumpSettings
from tests.helpers.calls import count_calls
from tests.helpers.commands import distill, kill_when
from tests.helpers.dumps import dump_config
from tests.helpers.messages import naming


def write(work: Path, store: Path, task: str = "opinion", **changes: Any) -> SetRecord:
    """Dumps a tiny task with token vectors."""
    record = dump(dump_config(work, task, store, **{"token_vectors": True} | changes), "distill teacher-dump")
    assert record is not None
    return record


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the teacher: for logits of rows, and for token vectors."""
    logits, vectors = (ExamplesJob, "predict"), (teacher.dump.additions, "token_vectors")
    return count_calls(monkeypatch, {"logits": logits, "vectors": vectors})


@pytest.mark.parametrize("name", ["opinion_vectors", "roles_vectors"])
def test_vectors_are_those_of_transformers(name: str, work: Path, request: pytest.FixtureRequest) -> None:
    logit_set: ExampleSet = request.getfixturevalue(name)
    stored = read_token_vectors(logit_set.root, logit_set.record)
    assert stored is not None
    folder = work / "teachers" / logit_set.record.dataset_name
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        plain = [
            model.embeddings(torch.tensor([[tokenizer.cls_token_id, number, tokenizer.sep_token_id]]))[0, 1]
            for number in range(len(tokenizer))
        ]
    assert stored.vector_VW.dtype == np.float16
    assert np.std(stored.vector_VW, axis=0).min() > 0.01
    np.testing.assert_allclose(stored.vector_VW.astype(np.float32), torch.stack(plain).numpy(), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["opinion_vectors", "roles_vectors"])
def test_counts_are_of_the_training_rows(name: str, request: pytest.FixtureRequest) -> None:
    logit_set: ExampleSet = request.getfixturevalue(name)
    table = pq.read_table(logit_set.root / VOCABULARY_FILE)
    expected = [0] * logit_set.record.tokenizer.vocabulary_size
    for row in logit_set.read("train", ("ids1", "ids2")).to_pylist():
        for number in (*row["ids1"], *(row["ids2"] or [])):
            expected[number] += 1
    assert sum(expected) > 100
    assert table.column("count").to_pylist() == expected
    tokenizer = json.loads(logit_set.tokenizer_json())["model"]["vocab"]
    assert dict(zip(table.column("token").to_pylist(), table.column("id").to_pylist(), strict=True)) == tokenizer


def test_variants_are_not_counted(work: Path, teachers: Path, opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        "augment": "mask-pos",
        "pos_probability": 0,
        "mask_probability": 0.3,
        "num_variants": 3,
        "seed": 1,
    }
    record = write(work, tmp_path, **flags)
    assert record.rows_of("train") > opinion_vectors.record.rows_of("train")
    counts = [
        pq.read_table(root / VOCABULARY_FILE, columns=["count"]).column("count")
        for root in (tmp_path / record.name, opinion_vectors.root)
    ]
    assert counts[0].equals(counts[1])


def test_the_record_describes_them_and_logits_are_as_without(
    opinion_set: ExampleSet, opinion_vectors: ExampleSet
) -> None:
    with_them, without = opinion_vectors.record, opinion_set.record
    path = opinion_vectors.root / VOCABULARY_FILE
    signal = with_them.signals.token_vectors
    assert signal is not None
    assert (signal.width, signal.layer) == (32, 0)
    assert (signal.file.rows, signal.file.bytes) == (without.tokenizer.vocabulary_size, path.stat().st_size)
    assert (with_them.fingerprint, with_them.shards) == (without.fingerprint, without.shards)
    assert with_them.signals.row_signals() == without.signals
    assert without.signals.token_vectors is None
    verify_shards(opinion_vectors.root, with_them)


def test_a_finished_set_gets_them_without_being_asked_again(
    work: Path, opinion_set: ExampleSet, opinion_vectors: ExampleSet, asked: list[str], tmp_path: Path
) -> None:
    root = shutil.copytree(opinion_set.root, tmp_path / "opinion")
    write(work, tmp_path, token_vectors=False)
    assert asked == []
    record = write(work, tmp_path)
    assert asked == ["vectors"]
    assert (record.signals, record.state) == (opinion_vectors.record.signals, "verified")
    assert read_set_record(root) == record
    assert write(work, tmp_path) == write(work, tmp_path, token_vectors=False) == record
    assert asked == ["vectors"]


def test_a_file_that_was_written_but_not_recorded_is_kept(
    work: Path, opinion_set: ExampleSet, opinion_vectors: ExampleSet, asked: list[str], tmp_path: Path
) -> None:
    root = shutil.copytree(opinion_set.root, tmp_path / "opinion")
    shutil.copytree((opinion_vectors.root / VOCABULARY_FILE).parent, (root / VOCABULARY_FILE).parent)
    record = write(work, tmp_path)
    assert asked == []
    assert record.signals == opinion_vectors.record.signals


@pytest.mark.parametrize("damage", ["torn", "foreign", "gone"])
def test_a_file_that_is_not_whole_is_written_again(
    damage: str, work: Path, opinion_vectors: ExampleSet, asked: list[str], tmp_path: Path
) -> None:
    root = shutil.copytree(opinion_vectors.root, tmp_path / "opinion")
    path = root / VOCABULARY_FILE
    if damage == "torn":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "foreign":
        shutil.copy(next(root.glob("examples/*.parquet")), path)
    else:
        path.unlink()
    record = write(work, tmp_path)
    assert asked == ["vectors"]
    assert record.signals == opinion_vectors.record.signals
    verify_shards(root, record)


def test_a_lost_shard_is_asked_for_alone(
    work: Path, opinion_vectors: ExampleSet, asked: list[str], tmp_path: Path
) -> None:
    root = shutil.copytree(opinion_vectors.root, tmp_path / "opinion")
    (root / opinion_vectors.record.shards[0].path).unlink()
    record = write(work, tmp_path)
    assert "vectors" not in asked
    assert asked
    assert (record.state, record.shards) == ("verified", opinion_vectors.record.shards)
    assert record.signals == opinion_vectors.record.signals


def test_the_job_that_finishes_the_set_writes_them(work: Path, opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    first = write(work, tmp_path, num_shards=2, shard_index=0)
    assert (first.state, first.signals.token_vectors) == ("staged", None)
    assert not (tmp_path / "opinion" / VOCABULARY_FILE).exists()
    second = write(work, tmp_path, num_shards=2, shard_index=1)
    assert second.signals == opinion_vectors.record.signals


@pytest.mark.slow
def test_killed_and_repeated_is_as_undisturbed(work: Path, opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    root = tmp_path / "opinion"
    flags = ["--manifest", work / "opinion.yaml", "--data", work / "data", "--store", tmp_path]
    flags += ["--model-name-or-path", work / "teachers" / "opinion", "--max-seq-length", 32, "--rows-per-shard", 25]
    process = distill("teacher-dump", *flags)
    kill_when(process, lambda: (root / VOCABULARY_FILE).parent.exists())
    record = write(work, tmp_path)
    assert record.signals == opinion_vectors.record.signals
    verify_shards(root, record)
    assert [path.name for path in (root / VOCABULARY_FILE).parent.iterdir()] == [Path(VOCABULARY_FILE).name]


def test_a_new_version_takes_the_vectors_over_and_counts_anew(
    work: Path, opinion_vectors: ExampleSet, asked: list[str], tmp_path: Path
) -> None:
    shutil.copytree(opinion_vectors.root, tmp_path / "opinion")
    shutil.copytree(work / "data" / "opinion", tmp_path / "data" / "opinion")
    with (tmp_path / "data" / "opinion" / "train.jsonl").open("a") as lines:
        lines.write(json.dumps({"sentence1": "the wine was good .", "label": 1}) + "\n")
    write(work, tmp_path, data=tmp_path / "data", name="second", extend="opinion")
    assert "vectors" not in asked
    old, new = (ExampleSet.open(tmp_path / name) for name in ("opinion", "second"))
    before, after = (read_token_vectors(one.root, one.record) for one in (old, new))
    assert before is not None
    assert after is not None
    np.testing.assert_array_equal(before.vector_VW, after.vector_VW)
    added = new.read("train", ("ids1",), f"source_row = {old.record.rows_of('train')}").to_pylist()[0]["ids1"]
    np.testing.assert_array_equal(after.count_V - before.count_V, np.bincount(added, minlength=len(before.count_V)))


@pytest.mark.parametrize("number", [float("nan"), 70_000.0])
def test_numbers_that_float16_does_not_have_are_refused(
    number: float, work: Path, teachers: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def loud(speaker: Any, ids: Ragged) -> Any:
        state = torch.zeros(len(ids), 3, 32)
        state[ids.flat == 7] = number
        return type("Output", (), {"hidden_states": (state,)})

    monkeypatch.setattr("teacher.models.encoder._hidden_states", loud)
    token = AutoTokenizer.from_pretrained(teachers / "opinion").convert_ids_to_tokens(7)
    with pytest.raises(TeacherError, match=naming(f"token {token!r}", "NaN", "float16", "--no-token-vectors")):
        write(work, tmp_path)
    record = read_set_record(tmp_path / "opinion")  # its logits are there all the same
    assert (record.state, record.signals.token_vectors) == ("verified", None)


def test_a_teacher_without_hidden_states_does_without(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("teacher.models.encoder._hidden_states", lambda *_: (torch.zeros(1, 3, 32),))
    config = dump_config(work, "opinion", tmp_path)
    by_default = DumpSettings.from_flags(
        **{name: value for name, value in given(config).items() if name != "token_vectors"}
    )
    record = dump(by_default, "distill teacher-dump")
    assert record is not None
    assert (record.state, record.signals.token_vectors) == ("verified", None)
    assert "BertForSequenceClassification" in capsys.readouterr().err
    with pytest.raises(TeacherError, match=naming("BertForSequenceClassification", "--token-vectors")):
        write(work, tmp_path)


@pytest.mark.parametrize("place", [0.3, 0.6, 0.999])
def test_a_flipped_byte_is_found(place: float, opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    root = shutil.copytree(opinion_vectors.root, tmp_path / "opinion")
    content = bytearray((root / VOCABULARY_FILE).read_bytes())
    content[int(place * len(content))] ^= 1
    (root / VOCABULARY_FILE).write_bytes(content)
    with pytest.raises(IntegrityError, match=naming("vocabulary/token_vectors.parquet: ", "SHA-256")):
        verify_shards(root, opinion_vectors.record)


def test_load_dataset_reads_them_as_a_configuration(opinion_vectors: ExampleSet, tmp_path: Path) -> None:
    rows = load_dataset(str(opinion_vectors.root), "token_vectors", split="train", cache_dir=str(tmp_path))
    assert len(rows) == opinion_vectors.record.tokenizer.vocabulary_size
    assert len(rows[0]["vector"]) == 32


@pytest.fixture
def encoder(teachers: Path, tmp_path: Path) -> Path:
    """An encoder of other weights than the teacher, without a head, with its vocabulary."""
    torch.manual_seed(5)
    folder, teacher_folder = tmp_path / "encoder", teachers / "opinion"
    AutoModel.from_config(AutoConfig.from_pretrained(teacher_folder)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(teacher_folder).save_pretrained(folder)
    return folder


def test_another_encoder_speaks_by_the_mean_of_its_last_states(
    work: Path, opinion_vectors: ExampleSet, encoder: Path, asked: list[str], tmp_path: Path
) -> None:
    root = shutil.copytree(opinion_vectors.root, tmp_path / "opinion")
    record = write(work, tmp_path, token_vectors_from=str(encoder))
    assert asked == ["vectors"]
    assert record.shards == opinion_vectors.record.shards
    verify_shards(root, record)
    signal, stored = record.signals.token_vectors, read_token_vectors(root, record)
    assert signal is not None
    assert signal.encoder is not None
    assert stored is not None
    assert (signal.encoder.name, signal.layer) == (str(encoder), 1)
    assert str(encoder) in card_text(record)
    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()
    with torch.no_grad():
        plain = [
            model(torch.tensor([[tokenizer.cls_token_id, number, tokenizer.sep_token_id]]))[0][0].mean(dim=0)
            for number in range(len(tokenizer))
        ]
    np.testing.assert_allclose(stored.vector_VW.astype(np.float32), torch.stack(plain).numpy(), rtol=2e-3, atol=1e-3)
    assert write(work, tmp_path) == write(work, tmp_path, token_vectors_from=str(encoder)) == record
    assert asked == ["vectors"]


def finetuned_from(encoder: Path, work: Path, task: str = "opinion") -> str:
    """A teacher that was fine-tuned from an encoder, or from another teacher, for a step."""
    teacher = encoder.parent / f"{task}-teacher"
    config = FinetuneSettings.from_flags(
        manifest=work / f"{task}.yaml",
        data=work / "data",
        model_name_or_path=str(encoder),
        output_dir=teacher,
        num_train_epochs=1,
        per_device_train_batch_size=1000,
        max_seq_length=32,
    )
    finetune(config, "distill finetune-teacher")
    return str(teacher)


@pytest.mark.parametrize("modules", ["[]", None])
def test_the_encoder_of_sentences_that_a_teacher_was_fine_tuned_from_speaks_for_it(
    modules: str | None, work: Path, encoder: Path, tmp_path: Path
) -> None:
    if modules is not None:
        (encoder / "modules.json").write_text(modules)
    flags: dict[str, Any] = {"model_name_or_path": finetuned_from(encoder, work)}
    signal = write(work, tmp_path, **flags).signals.token_vectors
    assert signal is not None
    assert (signal.encoder.name if signal.encoder else None) == (str(encoder) if modules else None)
    own = write(work, tmp_path, **flags, token_vectors_from=ITSELF).signals.token_vectors
    assert own is not None
    assert (own.encoder, own.layer) == (None, 0)
    assert write(work, tmp_path, **flags).signals.token_vectors == own  # what is there stays


@pytest.mark.parametrize("why", ["pairs", "manifest"])
def test_the_teacher_speaks_for_pairs_and_where_a_manifest_says_so(
    why: str, work: Path, encoder: Path, tmp_path: Path
) -> None:
    (encoder / "modules.json").write_text("[]")
    task, own = ("roles" if why == "pairs" else "opinion"), tmp_path / "own.yaml"
    choice = "token_vectors_from: teacher\n" if why == "manifest" else ""
    own.write_text((work / f"{task}.yaml").read_text() + choice)
    flags: dict[str, Any] = {"model_name_or_path": finetuned_from(encoder, work, task), "manifest": own}
    signal = write(work, tmp_path / "teachers", task, **flags).signals.token_vectors
    assert signal is not None
    assert (signal.encoder, signal.layer) == (None, 0)
    told = write(work, tmp_path / "encoders", task, **flags, token_vectors_from=str(encoder)).signals.token_vectors
    assert told is not None
    assert told.encoder is not None


def test_it_speaks_also_for_a_teacher_that_was_fine_tuned_twice(work: Path, encoder: Path, tmp_path: Path) -> None:
    (encoder / "modules.json").write_text("[]")
    first = finetuned_from(encoder, work, "roles")
    signal = write(work, tmp_path, model_name_or_path=finetuned_from(Path(first), work)).signals.token_vectors
    assert signal is not None
    assert signal.encoder is not None
    assert signal.encoder.name == str(encoder)


def test_the_teacher_speaks_where_the_encoder_it_began_as_is_gone(
    work: Path, encoder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (encoder / "modules.json").write_text("[]")
    name = finetuned_from(encoder, work)
    encoder.rename(tmp_path / "elsewhere")
    signal = write(work, tmp_path, model_name_or_path=name).signals.token_vectors
    assert signal is not None
    assert signal.encoder is None
    assert f"{encoder}: " in capsys.readouterr().err


def test_an_encoder_of_other_tokens_is_refused_before_the_dump(work: Path, encoder: Path, tmp_path: Path) -> None:
    tokenizer = json.loads((encoder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, other = sorted(token for token in vocabulary if token.isalpha())[:2]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (encoder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(TeacherError, match=naming("encoder: 2 tokens", f"'{one}'")):
        write(work, tmp_path, token_vectors_from=str(encoder))
    assert not (tmp_path / "opinion").exists()
    with pytest.raises(ConfigError, match=naming("--token-vectors-from: ", "--no-token-vectors")):
        write(work, tmp_path, token_vectors=False, token_vectors_from=str(encoder))
