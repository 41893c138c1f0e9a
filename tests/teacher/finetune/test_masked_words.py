"""Training a masked LM: it learns, stops and goes on, and ends as a teacher that can be dumped."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import ConfigError, DataError, FingerprintMismatchError
from pipeline.settings import given
from teacher.corpus.sequences import mask
from teacher.corpus.text import Text, masking_plan, open_text
from teacher.finetune import masked_words
from teacher.finetune.masked_words import TextBatches, evaluate_mlm, finetune_mlm
from teacher.finetune_settings import FinetuneCorpus, FinetuneSettings
from teacher.models.masked_lm import load_masked_lm, predict_masked
from teacher.settings import Masking
from tests.helpers.commands import distill, kill_when
from tests.helpers.messages import naming


def config(work: Path, output_dir: Path, **changes: Any) -> FinetuneSettings:
    settings: dict[str, Any] = {
        "objective": "mlm",
        "corpus": "tiny",
        "data": work / "corpus.txt",
        "model_name_or_path": str(work / "bert"),
        "output_dir": output_dir,
        "max_seq_length": 32,
        "min_seq_length": 4,
        "validation_every": 5,
        "max_steps": 24,
        "save_steps": 6,
        "per_device_train_batch_size": 16,
        "learning_rate": 5e-3,
    }
    return FinetuneSettings.from_flags(**settings | changes)


def text_for(settings: FinetuneSettings) -> Text:
    assert isinstance(settings.learn, FinetuneCorpus)
    return open_text(settings.learn, settings.steps.max_seq_length)


def test_an_encoder_without_a_head_becomes_a_masked_lm(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    record = finetune_mlm(config(work, tmp_path, max_steps=60, save_steps=20), "x")
    first, *_, last = (entry["metrics"]["validation"] for entry in record["result"]["history"])
    assert last["perplexity"] < first["perplexity"] < 44  # the size of the vocabulary is that of knowing nothing
    lm = load_masked_lm(str(tmp_path), None, 32)
    text = text_for(config(work, tmp_path))
    plan = masking_plan(text, lm.tokens, Masking())
    masked = [mask(part, plan) for part in text.sequences(lm.tokens, "validation", 0, 60)]
    assert evaluate_mlm(lm, masked[0]) == pytest.approx(last)


def test_some_positions_are_as_the_plain_model_has_them(work: Path, masked_lm: Path) -> None:
    lm = load_masked_lm(str(masked_lm), None, 32)
    text = text_for(config(work, work))
    [sequences] = text.sequences(lm.tokens, "validation", 0, 60)
    masked = mask(sequences, masking_plan(text, lm.tokens, Masking(seed=1)))
    rows = [4, 0, 7]
    with torch.no_grad():
        hidden_PH, logits_PV = predict_masked(lm, masked.ids, masked.positions, rows)
        model, place = AutoModelForMaskedLM.from_pretrained(masked_lm).eval(), 0
        for row in rows:
            ids = torch.tensor([[*lm.tokens.frame[0], *masked.ids[row].tolist(), *lm.tokens.frame[1]]])
            for position in masked.positions[row]:
                expected_V = model(ids).logits[0, 1 + position]
                torch.testing.assert_close(logits_PV[place], expected_V, rtol=1e-4, atol=1e-4)
                again_V = model.get_output_embeddings()(hidden_PH[place])
                torch.testing.assert_close(again_V, expected_V, rtol=1e-4, atol=1e-4)
                place += 1
    assert place == len(logits_PV)


def test_a_stopped_run_ends_where_an_undisturbed_one_does(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    whole = finetune_mlm(config(work, tmp_path / "whole"), "x")
    values = given(config(work, tmp_path / "killed"))
    named = ((f"--{name.replace('_', '-')}", value) for name, value in values.items())
    process = distill("finetune-teacher", *itertools.chain(*named))
    kill_when(process, lambda: (tmp_path / "killed" / "checkpoint.safetensors").exists())
    again = finetune_mlm(config(work, tmp_path / "killed"), "x")
    assert again["result"]["history"] == whole["result"]["history"]
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed")]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_a_finished_run_is_not_repeated_and_another_is_refused(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    done = finetune_mlm(config(work, tmp_path, max_steps=2), "x")
    assert finetune_mlm(config(work, tmp_path, max_steps=2), "y") == done
    with pytest.raises(FingerprintMismatchError, match=naming("mlm_probability: 0.15", "0.4")):
        finetune_mlm(config(work, tmp_path, max_steps=2, mlm_probability=0.4), "x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": None}, "--objective: "),
        ({"min_seq_length": 33}, naming("--min-seq-length: 33", "--max-seq-length 32")),
    ],
)
def test_wrong_flags(work: Path, corpus_file: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        finetune_mlm(config(work, tmp_path / "run", **changes), "x")


def test_too_little_text(work: Path, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("the food was superb .\nawful !\n")
    with pytest.raises(DataError, match=naming("few.txt: ", "--min-seq-length", "5")):
        finetune_mlm(config(work, tmp_path / "run", data=tmp_path / "few.txt", min_seq_length=5), "x")


def test_a_text_without_known_words(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    (tmp_path / "greek.txt").write_text(40 * "\u03c6 \u03c7 \u03c8 \u03c9 \u03c6 \u03c7\n")
    with pytest.raises(DataError, match=naming("bert: ", "100%")):
        finetune_mlm(config(work, tmp_path / "run", data=tmp_path / "greek.txt"), "x")


def test_held_out_text_without_known_words(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    lines = corpus_file.read_text().splitlines()
    unknown = ["\u03c6 \u03c7 \u03c8 \u03c9" if k % 5 == 0 else line for k, line in enumerate(lines)]
    (tmp_path / "part.txt").write_text("\n".join(unknown))
    record = finetune_mlm(config(work, tmp_path / "run", data=tmp_path / "part.txt", max_steps=2), "x")
    assert [entry["metrics"] for entry in record["result"]["history"]] == [{}]


def test_a_pool_with_nothing_to_mask(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    (tmp_path / "greek.txt").write_text(40 * "\u03c6 \u03c7 \u03c8 \u03c9 \u03c6 \u03c7\n")
    text = text_for(config(work, tmp_path, data=tmp_path / "greek.txt"))
    tokens = load_masked_lm(str(work / "bert"), None, 32, new_head=True).tokens
    batches = TextBatches(text, tokens, masking_plan(text, tokens, Masking()), batch_size=4, seed=1)
    with pytest.raises(DataError, match=naming("greek.txt: ", "--min-seq-length", "4")):
        batches.at(0)


def test_a_pool_with_nothing_to_mask_is_passed_over(
    work: Path, corpus_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(masked_words, "BLOCK_DOCUMENTS", 4)
    monkeypatch.setattr(masked_words, "BLOCKS_PER_POOL", 1)
    lines = corpus_file.read_text().splitlines()[:8]
    (tmp_path / "mixed.txt").write_text("\n".join(["the food was superb .", *lines[:3], *(8 * ["\u03c6 \u03c7"])]))
    text = text_for(config(work, tmp_path, data=tmp_path / "mixed.txt", min_seq_length=3))
    tokens = load_masked_lm(str(work / "bert"), None, 32, new_head=True).tokens
    batches = TextBatches(text, tokens, masking_plan(text, tokens, Masking()), batch_size=64, seed=1)
    places = []
    for step in range(4):
        batches.at(step)
        assert batches.state is not None
        places.append(batches.state)
    pools = [number for number, _ in places]
    assert [number // 3 for number in pools] == [0, 1, 2, 3]  # of three pools in a pass one has batches
    assert [first for _, first in places] == [0, 1, 2, 3]


def test_a_run_without_validation_text(work: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("awful !\n" + 8 * "the food was superb .\n")
    settings = {"data": tmp_path / "short.txt", "max_steps": 3, "validation_every": 100, "min_seq_length": 5}
    few = config(work, tmp_path / "run", **settings)
    assert [entry["metrics"] for entry in finetune_mlm(few, "x")["result"]["history"]] == [{}]


def test_the_command(work: Path, corpus_file: Path, tmp_path: Path) -> None:
    values = given(config(work, tmp_path, max_steps=2))
    named = ((f"--{name.replace('_', '-')}", str(value)) for name, value in values.items())
    result = CliRunner().invoke(app, ["finetune-teacher", *itertools.chain(*named), "--json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["result"]["best"]["step"] == 2
