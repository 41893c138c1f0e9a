"""Other codecs from a set that has kept everything, and what they would cost."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import ConfigError, DataError
from pipeline.files import sha256
from pipeline.sets.budget import budget
from pipeline.sets.codecs import Dense, codec_for
from pipeline.sets.codecs.codec import DECODER_FILE
from pipeline.sets.codecs.sparse import SampledCodec, TopKCodec
from pipeline.sets.config import RecodeSettings, SampledFlags, TopKFlags
from pipeline.sets.kinds.masked_words import MaskedWordSet, split_table
from pipeline.sets.recode import recode
from pipeline.sets.record import read_set_record, write_set_record
from pipeline.sets.verify import verify_shards
from pipeline.tasks.calibration_error import calibration_error
from tests.helpers.commands import invoke
from tests.helpers.damage import with_other_bytes
from tests.helpers.messages import naming


def config(token_store: Path, store: Path, source: str, **changes: Any) -> RecodeSettings:
    settings = {"set": str(token_store / source), "store": store, "name": "new"}
    own = {"topk": {"top_k": 10}, "sampled": {"num_samples": 20}}.get(changes.get("codec", "sampled"), {})
    return RecodeSettings.from_flags(**settings | own | changes)


def whole(token_set: MaskedWordSet, split: str) -> pa.Table:
    tables = [table for shard in token_set.shards(split) for table in token_set.read_shard(shard)]
    return pa.concat_tables(tables)


def dense_of(token_set: MaskedWordSet) -> torch.Tensor:
    codec, (_, columns) = token_set.record.codec, split_table(whole(token_set, "train"))
    stored = codec.decode(columns, 1.0, token_set.decoder())
    assert isinstance(stored, Dense)
    return stored.probability_PV


@pytest.mark.parametrize("source", ["hidden", "dense"])
@pytest.mark.parametrize("codec", ["sampled", "topk", "dense"])
def test_a_recoded_set_is_what_the_teacher_would_have_written(
    token_store: Path, tmp_path: Path, source: str, codec: str
) -> None:
    record = recode(config(token_store, tmp_path, source, codec=codec), "distill recode")
    assert record.state == "verified"
    new, direct = MaskedWordSet.open(tmp_path / "new"), MaskedWordSet.open(token_store / codec)
    for split in ("train", "validation"):
        mine, theirs = whole(new, split), whole(direct, split)
        for name in ("split", "source_row", "piece", "copy", "ids", "positions", "targets"):
            assert mine.column(name).equals(theirs.column(name))
        if codec != "dense":
            kept = [table.column("candidates").combine_chunks().flatten().to_pylist() for table in (mine, theirs)]
            same = np.mean([set(a) == set(b) for a, b in zip(*kept, strict=True)])
            assert same > 0.9  # what was rounded to float16 may fall on the other side of a point
        if codec != "sampled":  # float16 is off by a part in 2,000
            now, before = (np.array(table.column("log_z").combine_chunks().flatten()) for table in (mine, theirs))
            np.testing.assert_allclose(now, before, atol=0.01)
            assert np.abs(before).min() > 0.1
    if codec == "dense":
        torch.testing.assert_close(dense_of(new), dense_of(direct), rtol=0, atol=5e-3)
    scores, expected = (s.record.scores["train"] for s in (new, direct))
    assert scores["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-2)
    assert scores["masked_accuracy"] == pytest.approx(expected["masked_accuracy"], abs=0.01)


def test_recoding_goes_on_where_it_was_stopped(token_store: Path, tmp_path: Path) -> None:
    settings = config(token_store, tmp_path, "hidden")
    first = recode(settings, "x")
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("new/masked_words/*")}
    (tmp_path / "new" / first.shards[1].path).unlink()
    assert recode(settings, "x").shards == first.shards
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("new/masked_words/*")}
    assert {name for name in after if after[name] != before[name]} == {Path(first.shards[1].path).name}


def test_a_lost_file_may_come_back_with_other_bytes(token_store: Path, tmp_path: Path) -> None:
    settings = config(token_store, tmp_path, "hidden")
    first = recode(settings, "x")
    with_other_bytes(tmp_path / "new")
    assert recode(settings, "x") == first
    verify_shards(tmp_path / "new", read_set_record(tmp_path / "new"))


@pytest.mark.parametrize(
    ("source", "changes", "message"),
    [
        ("sampled", {}, "'sampled-20'"),
        ("dense", {"codec": "hidden"}, "--codec hidden"),
        ("hidden", {"codec": "topk", "top_k": 1000}, naming("--top-k", "1000")),
    ],
)
def test_what_cannot_be_recoded(
    token_store: Path, tmp_path: Path, source: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        recode(config(token_store, tmp_path, source, **changes), "x")
    assert not list(tmp_path.iterdir())


def test_what_float16_cannot_hold_is_neither_recoded_nor_measured(
    token_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(token_store / "hidden", tmp_path / "hidden"))
    decoder = load_file(root / DECODER_FILE)
    decoder["bias"][7] = -70_000
    save_file(decoder, root / DECODER_FILE)
    record = read_set_record(root)
    assert record.signals.mlm is not None
    mlm = record.signals.mlm.model_copy(update={"decoder_sha256": sha256(root / DECODER_FILE)})
    write_set_record(root, record.model_copy(update={"signals": record.signals.model_copy(update={"mlm": mlm})}))
    with pytest.raises(DataError, match=naming("hidden/masked_words/validation-", "codec dense", "-70,")):
        recode(config(tmp_path, tmp_path, "hidden", codec="dense"), "x")
    codecs = {line.codec for line in budget(MaskedWordSet.open(root), 50, 1)}
    assert "topk-12" in codecs
    assert "dense" not in codecs
    assert "codec dense" in capsys.readouterr().err


def test_the_budget_is_what_the_sets_came_to(token_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, flags in ((TopKCodec, TopKFlags(top_k=10)), (SampledCodec, SampledFlags(num_samples=20))):
        monkeypatch.setattr(
            kind, "worth_trying", lambda source, flags=flags: [codec_for(flags, source.vocabulary_size, None)]
        )
    lines = {line.codec: line for line in budget(MaskedWordSet.open(token_store / "hidden"), 10_000, 1e6)}
    assert set(lines) == {"dense", "hidden", "topk-10", "sampled-20"}
    for line in lines.values():
        name = line.codec.split("-")[0]
        scores = MaskedWordSet.open(token_store / name).record.scores["train"]
        assert line.kept_mass["1"] == pytest.approx(scores["kept_mass"], abs=2e-3)
        assert line.bytes_per_position < 1.1 * scores["bytes_per_position"]  # which counts the frames of small files
        assert line.corpus_bytes == pytest.approx(1e6 * line.bytes_per_position)
        assert line.unbiased == (name != "topk")
        assert (line.kept_mass["4"] is None) == (name in ("topk", "sampled"))
    # the divergence of the K likeliest tokens' share from the whole is -log of their mass, position by position
    p_PV = dense_of(MaskedWordSet.open(token_store / "dense"))
    expected = -p_PV.topk(10, dim=1).values.sum(dim=1).log().mean()
    assert lines["topk-10"].kl == pytest.approx(float(expected), abs=2e-3)
    assert lines["dense"].kl == pytest.approx(0, abs=1e-5)
    assert lines["sampled-20"].kl > 0.01


def test_what_every_file_has_is_not_counted_for_each_position(token_store: Path) -> None:
    """A file's frame is some kilobytes: of a sample of few positions it would be most of what a small codec costs."""
    few, many = (
        {line.codec: line for line in budget(MaskedWordSet.open(token_store / "hidden"), n, 1)} for n in (60, 10_000)
    )
    for codec in ("sampled-8", "topk-12"):
        assert few[codec].bytes_per_position == pytest.approx(many[codec].bytes_per_position, rel=0.35)


def test_calibration_error_by_hand() -> None:
    confidence, right = np.array([0.95, 0.95, 0.32, 0.38]), np.array([True, False, False, True])
    assert calibration_error(confidence, right) == pytest.approx((abs(1.9 - 1) + abs(0.7 - 1)) / 4)


def test_the_commands(token_store: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(token_store, tmp_path / "store"))
    flags = ["hidden", "--store", str(store), "--name", "small", "--codec", "sampled", "--num-samples", "5", "--json"]
    recoded = CliRunner().invoke(app, ["recode", *flags])
    assert json.loads(recoded.stdout)["signals"]["mlm"]["codec"]["num_samples"] == 5
    lines = json.loads(
        CliRunner().invoke(app, ["budget", "hidden", "--store", str(store), "--positions", "50", "--json"]).stdout
    )
    assert {"dense", "hidden", "topk-12", "sampled-16"} <= {line["codec"] for line in lines}
    refused = CliRunner().invoke(app, ["budget", "hidden", "--corpus", "wikipedia"])
    assert (refused.exit_code, "--corpus" in refused.stderr) == (2, True)


def test_the_budget_of_a_corpus_asks_the_teacher(work: Path, corpus_file: Path, masked_lm: Path) -> None:
    flags = [
        "--corpus",
        "tiny",
        "--data",
        str(corpus_file),
        "--model-name-or-path",
        str(masked_lm),
        "--positions",
        "30",
    ]
    more = ["--min-seq-length", "4", "--max-seq-length", "32", "--json"]
    result = CliRunner().invoke(app, ["budget", *flags, *more])
    assert result.exit_code == 0, result.stderr
    lines = {line["codec"]: line for line in json.loads(result.stdout)}
    assert lines["sampled-8"]["corpus_bytes"] < lines["hidden"]["corpus_bytes"]


def test_the_budget_of_a_corpus_of_long_documents(
    work: Path, corpus_file: Path, masked_lm: Path, tmp_path: Path
) -> None:
    text = corpus_file.read_text().replace("\n", " ")
    (tmp_path / "long.txt").write_text("\n".join([text, text.lower(), text]))
    flags = ["--corpus", "tiny", "--data", tmp_path / "long.txt", "--model-name-or-path", masked_lm, "--json"]
    result = invoke("budget", *flags, "--positions", 30, "--min-seq-length", 4, "--max-seq-length", 32)
    assert result.exit_code == 0, result.stderr
    assert "sampled-16" in {line["codec"] for line in json.loads(result.stdout)}


def test_the_budget_of_one_document_has_nothing_to_go_by(
    work: Path, corpus_file: Path, masked_lm: Path, tmp_path: Path
) -> None:
    (tmp_path / "one.txt").write_text(corpus_file.read_text().replace("\n", " "))  # which is held out
    flags = ["--corpus", "tiny", "--data", tmp_path / "one.txt", "--model-name-or-path", masked_lm]
    result = invoke("budget", *flags, "--positions", 30, "--min-seq-length", 4, "--max-seq-length", 32)
    assert result.exit_code == 2
    assert "one.txt: " in result.stderr
