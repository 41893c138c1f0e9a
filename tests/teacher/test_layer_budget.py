"""The estimated cost and loss of stored layers, against the measured ones."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.sets.codecs.vectors import state_codec
from pipeline.sets.signals import Attention, Cls, States
from teacher.budget import measured_line
from teacher.dumps import open_dump
from tests.helpers.commands import invoke
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS, dump_config

LAYERS = {"states": "1", "cls": "0", "attention": "1", "values": "1"}


@pytest.fixture(scope="module")
def lines(work: Path, teachers: Path) -> dict[tuple[str, str], dict[str, float]]:
    """The budget of the pair task, by signal and codec."""
    flags = [text for name, layers in LAYERS.items() for text in ("--" + name, layers)]
    place = ["--data", work / "data", "--model-name-or-path", teachers / "roles", "--max-seq-length", 32]
    result = invoke("budget", "--task", "roles", "--manifest", work / "roles.yaml", *place, *flags, "--json")
    assert result.exit_code == 0, result.stderr
    return {(line["signal"], line["codec"]): line for line in json.loads(result.stdout)}


def test_every_codec_is_tried(lines: dict[tuple[str, str], dict[str, float]]) -> None:
    states = [(signal, codec) for signal in ("states", "cls") for codec in ("float32", "float16", "int8", "pca-16")]
    assert list(lines) == [*states, *((name, codec) for name in ("attention", "values") for codec in ("float32", "u8"))]


def test_less_is_lost_the_more_is_stored(lines: dict[tuple[str, str], dict[str, float]]) -> None:
    lost, size = ({key: line[name] for key, line in lines.items()} for name in ("lost", "bytes_per_row"))
    assert lost["states", "float32"] == 0 < lost["states", "float16"] < 1e-6 < lost["states", "int8"] < 1e-3
    assert lost["states", "int8"] < lost["states", "pca-16"] < 1
    assert abs(lost["attention", "float32"]) < 1e-6
    assert 0 < lost["attention", "u8"] < 1e-4
    assert size["states", "pca-16"] < size["states", "int8"] < size["states", "float16"] < size["states", "float32"]
    assert size["attention", "u8"] < size["attention", "float32"]


def test_random_numbers_cost_what_they_are() -> None:
    draw, length_R = np.random.default_rng(1), np.full(60, 20)
    states = [draw.normal(size=(20, 64)).astype(np.float32) for _ in length_R]
    blocks = [draw.normal(size=(4, 20, 20)).astype(np.float32) for _ in length_R]
    candidates = {
        States(layers=(1,), codec=state_codec("float32", 64)): (20 * 64 * 3.7, states),
        States(layers=(1,), codec=state_codec("pca-16", 64)): (20 * 16, states),
        Attention(layers=(1,), heads=4): (4 * 20 * (20 + 4), blocks),
    }
    for signal, (size, said) in candidates.items():
        line = measured_line(signal, said, length_R, 1000)
        assert line.bytes_per_row == pytest.approx(size, rel=0.12), signal
        assert line.task_bytes == 1000 * line.bytes_per_row
        assert signal.num_bytes(length_R) / len(length_R) == pytest.approx(size, rel=0.15)
    pca = measured_line(States(layers=(1,), codec=state_codec("pca-16", 64)), states, length_R, 1000)
    assert pca.lost == pytest.approx(1 - 16 / 64, abs=0.1)  # of noise every component explains as much


def test_of_what_is_the_same_everywhere_nothing_is_lost() -> None:
    same = [np.linspace(-3, 3, 64, dtype=np.float32)[None]] * 20  # as [CLS] in layer 0
    for codec in ("float16", "int8", "pca-16"):
        signal = Cls(layers=(0,), codec=state_codec(codec, 64))
        assert measured_line(signal, same, np.full(20, 7), 1000).lost is None


def test_the_plan_counts_them(work: Path, teachers: Path, tmp_path: Path) -> None:
    plan = open_dump(dump_config(work, "roles", tmp_path, **LAYERS, states_codec="pca-16"), "plan").plan()
    without = open_dump(dump_config(work, "roles", tmp_path), "plan").plan()
    assert len(plan.layer_bytes) == len(LAYERS)
    assert plan.disk_bytes == without.disk_bytes + sum(size for _, size in plan.layer_bytes.values())
    assert plan.tokens == 2 * without.tokens  # one more pass
    tokens = without.tokens / (TRAIN_ROWS + VALIDATION_ROWS)
    assert plan.layer_bytes["states of layer 1, codec 'pca-16'"][0] == pytest.approx(tokens * 16 * 0.9, rel=0.2)


def test_variants_that_a_dump_adds_by_default_are_told(work: Path, teachers: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "opinion.yaml"
    manifest.write_text((work / "opinion.yaml").read_text() + "augment: mask-pos\nnum_variants: {mask-pos: 2}\n")
    place = ["--data", work / "data", "--model-name-or-path", teachers / "opinion", "--cls", 0, "--max-seq-length", 32]
    with_variants = invoke("budget", "--task", "opinion", "--manifest", manifest, *place, "--json")
    without = invoke("budget", "--task", "opinion", "--manifest", work / "opinion.yaml", *place, "--json")
    assert with_variants.exit_code == without.exit_code == 0, with_variants.stderr
    assert with_variants.stdout == without.stdout
    told, rows = " ".join(with_variants.stderr.split()), TRAIN_ROWS + VALIDATION_ROWS
    assert f"{rows:,} rows" in told
    assert f"{2 * TRAIN_ROWS:,} variants" in told
    assert f"{(rows + 2 * TRAIN_ROWS) / rows:.1f} times" in told
    assert "variants" not in without.stderr
    config = dump_config(work, "opinion", tmp_path, manifest=manifest, augment="mask-pos", cls="0", layers_of="all")
    plan = open_dump(config, "plan").plan()
    assert sum(plan.rows.values()) == rows + 2 * TRAIN_ROWS


def test_layers_must_be_named(work: Path) -> None:
    result = invoke("budget", "--task", "roles", "--manifest", work / "roles.yaml")
    assert result.exit_code == 2
    assert all(flag in result.stderr for flag in ("--states", "--cls", "--attention", "--values"))
