"""A masked LM's predictions for a corpus, as a set of tokens: right, complete, resumable."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from pipeline import log
from pipeline.errors import ConfigError, DataError, FingerprintMismatchError, TeacherError
from pipeline.sets.codecs import Dense
from pipeline.sets.kinds.masked_words import MaskedRows, MaskedWordSet, split_table
from pipeline.sets.record import SetRecord, read_set_record
from pipeline.settings import given
from pipeline.text.tokenizer import require_known_ids
from teacher.corpus.sequences import mask
from teacher.corpus.text import masking_plan, require_known_words
from teacher.dumps import dump, open_dump
from teacher.models.masked_lm import load_masked_lm
from teacher.settings import MaskedWordFlags
from tests.helpers.commands import distill, distill_in_two_processes, kill_when
from tests.helpers.dumps import corpus_config, text_for, vectors_config
from tests.helpers.messages import naming

SPLITS = ("train", "validation")


def write(work: Path, store: Path, **changes: Any) -> SetRecord:
    record = dump(corpus_config(work, store, **changes), "distill teacher-dump")
    assert record is not None
    return record


def table(token_set: MaskedWordSet, split: str) -> pa.Table:
    groups = itertools.chain(*(token_set.read_shard(shard) for shard in token_set.shards(split)))
    return pa.concat_tables(groups)


def rows_of(token_set: MaskedWordSet, split: str) -> tuple[MaskedRows, dict[str, pa.Array]]:
    return split_table(table(token_set, split))


def assert_same(one: Path, other: Path) -> None:
    """Every row of two sets is the same, draws included."""
    for split in SPLITS:
        assert table(MaskedWordSet.open(one), split).equals(table(MaskedWordSet.open(other), split))


@pytest.mark.parametrize("codec", ["dense", "hidden"])
def test_predictions_are_those_of_transformers_one_row_at_a_time(
    codec: str, token_store: Path, masked_lm: Path
) -> None:
    token_set = MaskedWordSet.open(token_store / codec)
    tokenizer = AutoTokenizer.from_pretrained(masked_lm)
    model = AutoModelForMaskedLM.from_pretrained(masked_lm).eval()
    for split in SPLITS:
        rows, columns = rows_of(token_set, split)
        stored = token_set.record.codec.decode(columns, 1.0, token_set.decoder())
        assert isinstance(stored, Dense)
        for row in range(len(rows)):
            ids = [tokenizer.cls_token_id, *rows.ids[row].tolist(), tokenizer.sep_token_id]
            with torch.no_grad():
                expected_LV = model(torch.tensor([ids])).logits[0].softmax(dim=1)
            mine = slice(int(rows.positions.offsets[row]), int(rows.positions.offsets[row + 1]))
            expected_PV = expected_LV[torch.from_numpy(rows.positions[row]) + 1]
            torch.testing.assert_close(stored.probability_PV[mine], expected_PV, rtol=0, atol=2e-2)
            assert float((stored.probability_PV[mine] - expected_PV).abs().mean()) < 1e-3


def test_rows_are_the_masking_of_the_corpus(work: Path, token_store: Path) -> None:
    config = corpus_config(work, token_store, name="sampled")
    text = text_for(config)
    lm = load_masked_lm(str(work / "teachers" / "mlm"), None, 32)
    plan = masking_plan(text, lm.tokens, MaskedWordFlags(), 2)
    for split in SPLITS:
        expected = [
            (int(part.source_row_N[s]), int(part.piece_N[s]), int(copy), masked.ids[row].tolist())
            for part in text.sequences(lm.tokens, split, 0, text.documents.num_documents)
            for masked in [mask(part, plan)]
            for row, (s, copy) in enumerate(zip(masked.sequence_R, masked.copy_R, strict=True))
        ]
        rows, _ = rows_of(MaskedWordSet.open(token_store / "sampled"), split)
        keys = zip(rows.source_row_R.tolist(), rows.piece_R.tolist(), rows.copy_R.tolist(), strict=True)
        assert [(*key, rows.ids[row].tolist()) for row, key in enumerate(keys)] == expected
        assert {row % 5 == 0 for row in rows.source_row_R.tolist()} == {split == "validation"}


def test_scores_are_the_teachers_on_the_masked_tokens(token_store: Path) -> None:
    token_set = MaskedWordSet.open(token_store / "dense")
    for split, scores in token_set.record.scores.items():
        rows, columns = rows_of(token_set, split)
        stored = token_set.record.codec.decode(columns, 1.0)
        assert isinstance(stored, Dense)
        probability_PV = stored.probability_PV
        target_P = torch.from_numpy(rows.targets.flat)
        assert scores["positions"] == len(target_P)
        right = float((probability_PV.argmax(dim=1) == target_P).float().mean())
        nats = -probability_PV[torch.arange(len(target_P)), target_P].log().mean()
        assert scores["masked_accuracy"] == pytest.approx(right)
        assert scores["perplexity"] == pytest.approx(float(nats.exp()), rel=2e-3)
        assert scores["kept_mass"] == 1
        size = sum(path.stat().st_size for path in (token_store / "dense" / "masked_words").glob(f"{split}-*"))
        assert scores["bytes_per_position"] == pytest.approx(size / len(target_P))


@pytest.mark.parametrize("max_tokens", [8, 100_000])
def test_batches_have_no_say_in_what_is_stored(work: Path, token_store: Path, tmp_path: Path, max_tokens: int) -> None:
    write(work, tmp_path, name="topk", codec="topk-10", max_tokens_per_batch=max_tokens)
    for split in SPLITS:
        one, other = (table(MaskedWordSet.open(store / "topk"), split) for store in (token_store, tmp_path))
        for name in ("source_row", "piece", "copy", "ids", "positions", "targets"):
            assert one.column(name).equals(other.column(name))
        logs = [np.concatenate(t.column("log_z").to_pylist()) for t in (one, other)]
        np.testing.assert_allclose(logs[0], logs[1], rtol=0, atol=1e-4)


def test_a_lost_shard_is_written_again_and_nothing_else(work: Path, token_store: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(token_store / "sampled", tmp_path / "sampled"))
    before = {path.name: path.stat().st_mtime_ns for path in root.glob("masked_words/*")}
    lost = read_set_record(root).shards[-1].path
    content = pq.read_table(root / lost)
    (root / lost).unlink()
    assert write(work, tmp_path, name="sampled", codec="sampled").state == "verified"
    assert pq.read_table(root / lost).equals(content)
    after = {path.name: path.stat().st_mtime_ns for path in root.glob("masked_words/*")}
    assert {name for name in after if after[name] != before[name]} == {Path(lost).name}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 7}, "masking"),
        ({"mlm_probability": 0.3}, "masking"),
        ({"masking": "frequency"}, "masking"),
        ({"min_seq_length": 6}, "corpus"),
        ({"packing": "blocks"}, "corpus"),
        ({"codec": "sampled-9"}, "codec"),
        ({"codec": "topk-5"}, "codec"),
        ({"max_documents": 50}, "documents"),
        ({"precision": "bf16"}, "precision"),
    ],
)
def test_another_setting_is_never_mixed_in(
    work: Path, token_store: Path, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    shutil.copytree(token_store / "sampled", tmp_path / "sampled")
    with pytest.raises(FingerprintMismatchError, match=rf"\n  - {named}"):
        write(work, tmp_path, name="sampled", **({"codec": "sampled"} | changes))


def test_jobs_share_the_work(work: Path, token_store: Path, tmp_path: Path) -> None:
    first = write(work, tmp_path, name="sampled", codec="sampled", num_shards=2, shard_index=1)
    assert first.state == "staged"
    assert write(work, tmp_path, name="sampled", codec="sampled", num_shards=2).state == "verified"
    for split in SPLITS:
        assert table(MaskedWordSet.open(tmp_path / "sampled"), split).equals(
            table(MaskedWordSet.open(token_store / "sampled"), split)
        )


def test_enough_copies_of_packed_blocks_mask_every_word_once(
    work: Path, masked_lm: Path, corpus_file: Path, tmp_path: Path
) -> None:
    # 16 tokens, of which one or two are separators: 2 are masked in each copy
    record = write(work, tmp_path, packing="blocks", max_seq_length=18, num_copies=8, codec="topk-2")
    rows, _ = rows_of(MaskedWordSet.open(tmp_path / record.name), "train")
    separator = AutoTokenizer.from_pretrained(masked_lm).sep_token_id
    blocks: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(rows.source_row_R.tolist(), rows.piece_R.tolist(), strict=True)):
        blocks.setdefault(key, []).append(row)
    full = [block for block in blocks.values() if len(rows.ids[block[0]]) == 16]
    assert len(full) >= len(blocks) - 3  # the last block of each shard may be shorter
    for block in full:
        original = rows.ids[block[0]].copy()
        original[rows.positions[block[0]]] = rows.targets[block[0]]
        words = np.flatnonzero(original != separator).tolist()
        one_round = block[: -(-len(words) // 2)]
        assert sorted(np.concatenate([rows.positions[row] for row in one_round]).tolist()) == words


@pytest.mark.parametrize("logit", [float("nan"), float("inf")])
def test_a_teacher_that_says_nan_is_stopped(
    work: Path, masked_lm: Path, corpus_file: Path, tmp_path: Path, logit: float
) -> None:
    folder = Path(shutil.copytree(masked_lm, tmp_path / "mlm"))
    model = AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        model.cls.predictions.decoder.bias[7] = logit
    model.save_pretrained(folder)
    with pytest.raises(TeacherError, match=naming("NaN", "weights")):
        write(work, tmp_path / "store", model_name_or_path=str(folder))


@pytest.mark.parametrize("codec", ["dense", "topk", "hidden"])
def test_what_float16_cannot_hold_is_refused_by_its_document(
    codec: str, work: Path, masked_lm: Path, corpus_file: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(masked_lm, tmp_path / "mlm"))
    model = AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        if codec == "hidden":
            model.cls.predictions.transform.LayerNorm.bias[3] = 70_000
        else:
            model.cls.predictions.decoder.bias[7] = 70_000
    model.save_pretrained(folder)
    text = "topk-3" if codec == "topk" else codec
    named = rf"document \d+, '.*\[MASK\].*': teacher .*mlm, codec {codec}.*: -?(70|69),\d+"
    with pytest.raises(TeacherError, match=rf"{named}.*65,504.*--codec sampled"):
        write(work, tmp_path / "store", model_name_or_path=str(folder), codec=text)
    assert write(work, tmp_path / "sampled", model_name_or_path=str(folder), codec="sampled").state == "verified"


def test_an_encoder_without_a_trained_head_is_no_teacher(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match=naming("bert: ", "cls.predictions.bias", "--objective mlm")):
        write(work, tmp_path, model_name_or_path=str(work / "bert"))


@pytest.mark.parametrize("config", [corpus_config, vectors_config])
def test_a_corpus_of_unknown_words_is_refused(
    config: Any, work: Path, masked_lm: Path, corpus_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "greek.txt").write_text(40 * "\u03c6 \u03c7 \u03c8 \u03c9 awful \u03c6 \u03c7\n")
    with pytest.raises(DataError, match="86%"):
        dump(config(work, tmp_path / "store", data=tmp_path / "greek.txt"), "x")
    assert not list(tmp_path.glob("store/*/*"))


@pytest.mark.parametrize("number", [40, 6000])
def test_a_corpus_with_nothing_to_mask_is_refused(number: int, work: Path, masked_lm: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text(number * "a dog\n")
    config = corpus_config(work, tmp_path / "store", data=tmp_path / "short.txt", min_seq_length=10)
    for refused in (lambda: dump(config, "x"), lambda: open_dump(config, "plan").plan()):
        with pytest.raises(DataError, match=naming("short.txt: ", f"{number:,} documents", "--min-seq-length", "10")):
            refused()
    assert not list(tmp_path.glob("store/*/*"))


def test_a_sample_without_anything_to_mask_grows(work: Path, masked_lm: Path, tmp_path: Path) -> None:
    lines = 6000 * ["a dog"]
    lines[3001:3003] = 2 * ["the food was superb and the service awful ."]
    (tmp_path / "rare.txt").write_text("\n".join(lines))
    config = corpus_config(work, tmp_path / "store", data=tmp_path / "rare.txt", min_seq_length=10)
    planned = open_dump(config, "plan").plan()
    assert planned.rows["masked sequences"] > 0
    assert planned.rows["masked positions"] > 0
    record = dump(config, "x")
    assert record is not None
    assert record.num_rows == 4  # two copies of each


def test_documents_that_fill_a_block_only_all_together(work: Path, masked_lm: Path, tmp_path: Path) -> None:
    (tmp_path / "queries.txt").write_text(1200 * "food\n")
    blocks = {"packing": "blocks", "min_seq_length": 128, "max_seq_length": 128, "rows_per_shard": 1200}
    config = corpus_config(work, tmp_path / "store", data=tmp_path / "queries.txt", **blocks)
    record = dump(config, "x")
    assert record is not None
    assert open_dump(config, "plan").plan().rows["masked sequences"] == record.num_rows > 0
    with pytest.raises(DataError, match=naming("queries.txt: ", "--rows-per-shard 40", "--min-seq-length", "128")):
        write(work, tmp_path / "other", data=tmp_path / "queries.txt", **blocks | {"rows_per_shard": 40})


@pytest.mark.parametrize(
    "changes", [{"min_seq_length": 10}, {"packing": "blocks", "min_seq_length": 32, "max_seq_length": 32}]
)
def test_unknown_words_are_noticed_also_in_short_documents(
    changes: dict[str, Any], work: Path, masked_lm: Path, tmp_path: Path
) -> None:
    greek = 6000 * ["\u03c6 \u03c7"]
    greek[3001] = 12 * "\u03c6 "
    (tmp_path / "greek.txt").write_text("\n".join(greek))
    with pytest.raises(DataError, match=r"mlm: .*\d+%"):
        write(work, tmp_path / "store", data=tmp_path / "greek.txt", **changes)


def test_short_documents_fill_blocks_together(work: Path, masked_lm: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text(1200 * "the food was superb\n")
    blocks = {"packing": "blocks", "min_seq_length": 64, "max_seq_length": 64, "rows_per_shard": 1200}
    record = write(work, tmp_path / "store", data=tmp_path / "short.txt", **blocks)
    assert record.state == "verified"
    assert record.rows_of("train") > 0


def test_a_strange_document_at_the_start_is_no_strange_corpus(work: Path, masked_lm: Path, tmp_path: Path) -> None:
    greek = " ".join(300 * ["\u03c6 \u03c7 \u03c8 \u03c9 \u03c6 ."])
    plain = "the food was superb and the service awful ."
    (tmp_path / "mixed.txt").write_text("\n".join([plain, greek, *(800 * [plain])]))  # the first is held out
    text = text_for(corpus_config(work, tmp_path / "store", data=tmp_path / "mixed.txt"))
    tokens = load_masked_lm(str(masked_lm), None, 32).tokens
    (first,) = text.sequences(tokens, "train", 0, 2)
    with pytest.raises(DataError, match=naming("x: ", "83%")):
        require_known_ids(tokens.tokenizer, first.ids, "x")
    require_known_words(text, tokens, "x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"signal": "logits"}, naming("--signal logits: ", "mlm", "vectors")),
        ({"min_seq_length": 40}, naming("--min-seq-length: 40", "--max-seq-length 32")),
        ({"codec": "topk-100000"}, "--codec topk-100000"),
        ({"model_name_or_path": None}, naming("--model-name-or-path: ", "'tiny'")),
        ({"shard_index": 3}, naming("--shard-index: 3", "--num-shards 1")),
    ],
)
def test_wrong_flags(
    work: Path, masked_lm: Path, corpus_file: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        write(work, tmp_path, **changes)


def test_progress_counts_each_document_once(work: Path, corpus_file: Path, masked_lm: Path, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    with log.written_to(file):
        write(work, tmp_path)
    events = map(json.loads, file.read_text().splitlines())
    [told] = [event for event in events if event["event"] == "progress" and event["what"].startswith("teacher: train")]
    assert told["done"] == told["total"] == len(corpus_file.read_text().splitlines())


def flags(work: Path, store: Path) -> list[object]:
    values = given(corpus_config(work, store, name="sampled", codec="sampled"))
    return [
        "teacher-dump",
        *itertools.chain(*((f"--{name.replace('_', '-')}", value) for name, value in values.items())),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_killed_and_repeated_is_as_if_never_killed(work: Path, token_store: Path, tmp_path: Path, shards: int) -> None:
    root = tmp_path / "sampled"
    process = distill(*flags(work, tmp_path))
    kill_when(process, lambda: len(list(root.glob("masked_words/*.parquet"))) >= shards)
    assert write(work, tmp_path, name="sampled", codec="sampled").state == "verified"
    assert_same(root, token_store / "sampled")
    assert not list(root.rglob("*.distill-tmp"))


@pytest.mark.slow
def test_two_processes_write_what_one_does(work: Path, token_store: Path, tmp_path: Path) -> None:
    distill_in_two_processes(*flags(work, tmp_path))
    for split in SPLITS:
        assert table(MaskedWordSet.open(tmp_path / "sampled"), split).equals(
            table(MaskedWordSet.open(token_store / "sampled"), split)
        )


def test_memory_is_bounded_by_row_groups(
    work: Path, token_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("teacher.dumps.masked_words.rows_per_group", lambda codec: 7)
    write(work, tmp_path, name="sampled", codec="sampled")
    for split in SPLITS:
        assert table(MaskedWordSet.open(tmp_path / "sampled"), split).equals(
            table(MaskedWordSet.open(token_store / "sampled"), split)
        )
        assert all(rows <= 7 for _, rows in MaskedWordSet.open(tmp_path / "sampled").groups(split))
