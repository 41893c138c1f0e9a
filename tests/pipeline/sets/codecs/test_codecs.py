"""What codecs keep of a distribution, and that it comes back. Draws have a file of their own."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import save_file
from scipy.special import softmax

from pipeline.arrays import Ragged
from pipeline.errors import IntegrityError
from pipeline.parquet import read_groups
from pipeline.sets.codec_text import CodecName
from pipeline.sets.codecs import CODECS, AnyCodec, Codec, Decoder, Dense, Distribution, Predictions, Sparse
from pipeline.sets.codecs.codec import read_decoder
from pipeline.sets.codecs.distributions import SampledCodec, TopKCodec
from pipeline.sets.kinds.masked_words import MaskedRows, split_table, tokens_schema, tokens_table
from tests.helpers.messages import naming
from tests.helpers.shards import write_tokens
from tests.helpers.token_sets import CODECS_BY_NAME

NAMES: tuple[CodecName, ...] = ("dense", "topk", "sampled", "hidden")
P_BY_HAND = [1 / 2, 1 / 4, 1 / 8, 1 / 8]
LENGTHS = (1, 3, 2, 7)  # masked positions of four rows


def by_hand(shift: float = 3) -> Predictions:
    """One position whose log Z is ``shift``."""
    logits_PV = torch.tensor([P_BY_HAND]).log() + shift
    return Predictions(logits_PV, torch.tensor([[0.5, -2.0]]), torch.tensor([0.6], dtype=torch.float64))


def random_predictions(vocabulary_size: int, hidden_size: int = 5) -> tuple[Predictions, Decoder]:
    generator = torch.Generator().manual_seed(vocabulary_size)
    hidden_PH = torch.randn(sum(LENGTHS), hidden_size, generator=generator)
    weight_VH = torch.randn(vocabulary_size, hidden_size, generator=generator)
    decoder = Decoder(weight_VH, torch.randn(vocabulary_size, generator=generator))
    random_P = torch.rand(sum(LENGTHS), generator=generator).double()
    return Predictions(decoder(hidden_PH), hidden_PH, random_P), decoder


def random_codec(name: CodecName, vocabulary_size: int) -> Codec:
    own: dict[str, Any] = {
        "dense": {},
        "topk": {"top_k": 7},
        "sampled": {"num_samples": 50, "temperature": 2},
        "hidden": {"hidden_size": 5},
    }[name]
    return CODECS[name](vocabulary_size=vocabulary_size, **own)


def parts(distribution: Distribution) -> tuple[torch.Tensor, ...]:
    return tuple(vars(distribution).values())


def half(values: Any) -> Any:
    """Rounded to float16, as float64."""
    return np.asarray(values).astype(np.float16).astype(np.float64)


def test_dense_by_hand() -> None:
    columns, mass_P = CODECS_BY_NAME["dense"].encode(by_hand())
    bits = np.array(columns["log_probs"].to_pylist()[0], dtype=np.uint16)
    assert bits.view(np.float16).tolist() == half(np.log(P_BY_HAND)).tolist()
    assert columns["log_z"].to_pylist() == pytest.approx([3])
    assert mass_P.tolist() == [1]
    decoded = CODECS_BY_NAME["dense"].decode(columns, 2, None)
    roots = np.sqrt(P_BY_HAND)
    assert parts(decoded)[0][0].tolist() == pytest.approx(roots / roots.sum(), abs=1e-3)


def test_topk_by_hand() -> None:
    codec = CODECS_BY_NAME["topk"]
    columns, mass_P = codec.encode(by_hand())
    assert columns["candidates"].to_pylist() == [[0, 1]]
    log_probs = np.array(columns["log_probs"].to_pylist(), dtype=np.uint16).view(np.float16).astype(float)
    logits = by_hand().logits_PV[0, :2].tolist()
    assert (log_probs[0] + columns["log_z"].to_pylist()[0]).tolist() == pytest.approx(logits, abs=1e-3)
    assert mass_P.tolist() == pytest.approx([3 / 4])
    kept = codec.decode(columns, 1, None)
    assert isinstance(kept, Sparse)
    assert (kept.position_E.tolist(), kept.token_E.tolist()) == ([0, 0], [0, 1])
    assert kept.probability_E.tolist() == pytest.approx([1 / 2, 1 / 4], abs=2e-4)
    assert kept.rest_P.tolist() == pytest.approx([1 / 4], abs=3e-4)


def test_hidden_by_hand() -> None:
    codec = CODECS_BY_NAME["hidden"]
    columns, mass_P = codec.encode(by_hand())
    assert columns["hidden"].to_pylist() == [[0x3800, 0xC000]]  # 0.5 and -2 in float16
    assert mass_P.tolist() == [1]
    decoder = Decoder(torch.tensor([[2.0, 0], [0, 1], [0, 0], [-2, 0.5]]), torch.tensor([0.0, 0, 0, 1]))
    for temperature in (1, 4):
        (probability_PV,) = parts(codec.decode(columns, temperature, decoder))
        np.testing.assert_allclose(probability_PV[0], softmax(np.array([1, -2, 0, -1]) / temperature), rtol=1e-6)


def test_sampled_by_hand() -> None:
    codec = SampledCodec(vocabulary_size=4, num_samples=4, temperature=1)
    columns, mass_P = codec.encode(by_hand())  # the points 0.15, 0.4, 0.65 and 0.9
    assert columns["candidates"].to_pylist() == [[0, 1, 3]]
    assert columns["counts"].to_pylist() == [[2, 1, 1]]
    assert mass_P.tolist() == pytest.approx([1 / 2 + 1 / 4 + 1 / 8])
    kept = codec.decode(columns, 1, None)
    assert [part.tolist() for part in parts(kept)] == [[0, 0, 0], [0, 1, 3], [0.5, 0.25, 0.25], [0]]


def through_a_file(codec: Codec, said: dict[str, pa.Array], path: Path) -> tuple[MaskedRows, dict[str, pa.Array]]:
    """Writes two row groups, reads them again and puts them together."""
    numbers = np.arange(len(LENGTHS))
    positions = Ragged.of([list(range(length)) for length in LENGTHS])
    targets = Ragged.of([[codec.vocabulary_size - 1 - k for k in range(length)] for length in LENGTHS])
    rows = MaskedRows(numbers, numbers + 10, numbers % 2, Ragged.repeated([0] * 7, len(LENGTHS)), positions, targets)
    table = tokens_table(codec, "train", rows, said)
    write_tokens(path, codec, [table.slice(0, 1), table.slice(1)], {}, {})
    groups = list(read_groups(path))
    assert [group.num_rows for group in groups] == [1, 3]
    back = pa.concat_tables(groups)
    assert back.schema.remove_metadata() == tokens_schema(codec)
    assert back.equals(table)
    return split_table(back)


@pytest.mark.parametrize("vocabulary_size", [300, 70_000])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_what_is_read(name: CodecName, vocabulary_size: int, tmp_path: Path) -> None:
    codec = random_codec(name, vocabulary_size)
    said, decoder = random_predictions(vocabulary_size)
    columns, _ = codec.encode(said)
    rows, back = through_a_file(codec, columns, tmp_path / "x.parquet")
    assert (rows.piece_R.tolist(), rows.copy_R.tolist()) == ([10, 11, 12, 13], [0, 1, 0, 1])
    assert (rows.positions.lengths.tolist(), rows.targets[0].tolist()) == (list(LENGTHS), [vocabulary_size - 1])
    assert back.keys() == columns.keys() == codec.fields().keys()
    assert codec.problem(back) is None
    decoded = [parts(codec.decode(c, codec.stored_temperature, decoder)) for c in (columns, back)]
    for before, after in zip(*decoded, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("temperature", [0.5, 1, 3])
def test_dense_and_hidden_know_every_temperature(temperature: float) -> None:
    said, decoder = random_predictions(300)
    log_probs_PV = half(said.logits_PV.log_softmax(dim=1))
    logits_PV = half(said.hidden_PH) @ decoder.weight_VH.double().numpy().T + decoder.bias_V.numpy()
    expected: dict[CodecName, Any] = {"dense": log_probs_PV, "hidden": logits_PV}
    for name, scores_PV in expected.items():
        codec = random_codec(name, 300)
        columns, _ = codec.encode(said)
        decoded = codec.decode(columns, temperature, decoder)
        assert isinstance(decoded, Dense)
        np.testing.assert_allclose(
            decoded.probability_PV, softmax(scores_PV / temperature, axis=1), rtol=2e-5, atol=1e-9
        )


def test_topk_keeps_the_likeliest_and_the_tails_mass() -> None:
    said, _ = random_predictions(300)
    codec = random_codec("topk", 300)
    columns, mass_P = codec.encode(said)
    logits_PV = said.logits_PV.double().numpy()
    token_PK = np.argsort(-logits_PV, axis=1)[:, :7]
    assert columns["candidates"].to_pylist() == token_PK.tolist()
    bits_PK = np.array(columns["log_probs"].to_pylist(), dtype=np.uint16)
    stored_PK = bits_PK.view(np.float16) + np.array(columns["log_z"].to_pylist())[:, None]
    np.testing.assert_allclose(stored_PK, np.take_along_axis(logits_PV, token_PK, 1), rtol=0, atol=8e-3)
    kept_P = np.take_along_axis(softmax(logits_PV, axis=1), token_PK, 1).sum(axis=1)
    np.testing.assert_allclose(mass_P, kept_P, rtol=1e-5)
    decoded = codec.decode(columns, 1, None)
    assert isinstance(decoded, Sparse)
    np.testing.assert_allclose(decoded.rest_P, 1 - kept_P, rtol=0, atol=2e-3)
    sums = torch.zeros(len(kept_P)).index_add(0, decoded.position_E, decoded.probability_E)
    np.testing.assert_allclose(sums + decoded.rest_P, 1, rtol=0, atol=1e-6)


def test_the_tail_is_never_negative() -> None:
    # float16 rounds the logarithm of 0.4999 up: twice of it would be more than 1
    codec = TopKCodec(vocabulary_size=2, top_k=2)
    probability_PV = torch.linspace(0.01, 0.5, 500)[:, None] * torch.tensor([[1.0, -1]]) + torch.tensor([[0.0, 1]])
    said = Predictions(probability_PV.log(), torch.zeros(500, 1), torch.zeros(500))
    columns, _ = codec.encode(said)
    kept = codec.decode(columns, 1, None)
    assert isinstance(kept, Sparse)
    assert kept.probability_E.view(500, 2).sum(dim=1).max() > 1  # it does happen
    assert kept.rest_P.min() >= 0


@pytest.mark.parametrize("name", NAMES)
def test_a_slice_of_the_columns_is_a_slice_of_the_positions(name: CodecName) -> None:
    codec = random_codec(name, 300)
    said, decoder = random_predictions(300)
    columns, _ = codec.encode(said)
    sliced = {key: column[4:9] for key, column in columns.items()}
    alone, _ = codec.encode(Predictions(said.logits_PV[4:9], said.hidden_PH[4:9], said.random_P[4:9]))
    assert next(iter(sliced.values())).offset == 4
    decoded = [parts(codec.decode(c, codec.stored_temperature, decoder)) for c in (sliced, alone)]
    for mine, expected in zip(*decoded, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)
    assert codec.problem(sliced) is None


def test_which_temperatures_are_honoured() -> None:
    def honoured(codec: Codec) -> list[float]:
        return [t for t in (0.5, 1, 2) if codec.honours(t)]

    assert honoured(CODECS_BY_NAME["dense"]) == honoured(CODECS_BY_NAME["hidden"]) == [0.5, 1, 2]
    assert honoured(CODECS_BY_NAME["topk"]) == [1]
    assert honoured(CODECS_BY_NAME["sampled"]) == [1]
    assert honoured(CODECS_BY_NAME["sampled"].model_copy(update={"temperature": 2.0})) == [2]


def column(values: list[list[int]], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.list_(kind))


ONE = int(np.float16(-1).view(np.uint16))
NAN, INF = 0x7E00, 0xFC00
TWO_IDS, TWO_LOGS = column([[0, 3], [1, 2]], pa.uint16()), column([[ONE, ONE], [ONE, ONE]], pa.uint16())
FOUR_LOGS, LOG_Z = column([[ONE] * 4] * 2, pa.uint16()), pa.array([0.5, -1], pa.float32())
COUNTS = column([[3, 5], [7, 1]], pa.uint8())
SOUND: dict[CodecName, dict[str, pa.Array]] = {
    "dense": {"log_probs": FOUR_LOGS, "log_z": LOG_Z},
    "topk": {"candidates": TWO_IDS, "log_probs": TWO_LOGS, "log_z": LOG_Z},
    "sampled": {"candidates": TWO_IDS, "counts": COUNTS},
    "hidden": {"hidden": TWO_LOGS},
}


@pytest.mark.parametrize("name", NAMES)
def test_sound_columns(name: CodecName) -> None:
    assert CODECS_BY_NAME[name].problem(SOUND[name]) is None


@pytest.mark.parametrize(
    ("name", "changed", "values", "message"),
    [
        ("dense", "log_probs", column([[ONE] * 4, [ONE] * 3], pa.uint16()), "4 numbers"),
        ("dense", "log_probs", column([[ONE] * 5] * 2, pa.uint16()), "4 numbers"),
        ("dense", "log_probs", column([[ONE] * 4, [ONE, NAN, ONE, ONE]], pa.uint16()), "NaN"),
        ("dense", "log_probs", column([[ONE] * 4, [ONE, INF, ONE, ONE]], pa.uint16()), "NaN"),
        ("dense", "log_z", pa.array([0, np.nan], pa.float32()), "NaN"),
        ("topk", "candidates", column([[0, 3], [1]], pa.uint16()), "2 numbers"),
        ("topk", "candidates", column([[0, 3], [1, 4]], pa.uint16()), "candidate 4"),
        ("topk", "log_probs", column([[ONE] * 3, [ONE]], pa.uint16()), "2 numbers"),
        ("topk", "log_probs", column([[ONE, NAN], [ONE, ONE]], pa.uint16()), "NaN"),
        ("topk", "log_z", pa.array([np.inf, 0], pa.float32()), "NaN"),
        ("sampled", "counts", column([[3, 5], [7, 2]], pa.uint8()), "8"),
        ("sampled", "counts", column([[3, 4], [7, 1]], pa.uint8()), "8"),
        ("sampled", "counts", column([[3, 5], [8]], pa.uint8()), "candidates and counts"),
        ("sampled", "candidates", column([[0, 3, 1], [1]], pa.uint16()), "candidates and counts"),
        ("sampled", "candidates", column([[0, 3], [1, 4]], pa.uint16()), "candidate 4"),
        ("hidden", "hidden", column([[ONE], [ONE, ONE]], pa.uint16()), "2 numbers"),
        ("hidden", "hidden", column([[ONE, ONE], [INF, ONE]], pa.uint16()), "NaN"),
    ],
)
def test_damaged_columns_are_found(name: CodecName, changed: str, values: pa.Array, message: str) -> None:
    assert message in (CODECS_BY_NAME[name].problem(SOUND[name] | {changed: values}) or "")


def test_a_position_of_which_nothing_is_kept_is_found() -> None:
    empty = {"candidates": column([[0, 3], []], pa.uint16()), "counts": column([[3, 5], []], pa.uint8())}
    assert "candidates and counts" in (CODECS_BY_NAME["sampled"].problem(empty) or "")


def test_the_table_knows_every_codec_by_its_own_name() -> None:
    assert {name: codec.model_fields["name"].default for name, codec in CODECS.items()} == {n: n for n in NAMES}
    assert set(get_args(CodecName)) == set(NAMES)
    assert set(get_args(get_args(AnyCodec)[0])) == set(CODECS.values())


def test_how_a_codec_is_called() -> None:
    warm = CODECS_BY_NAME["sampled"].model_copy(update={"temperature": 2.5})
    assert [str(CODECS_BY_NAME[name]) for name in NAMES] == ["dense", "topk-2", "sampled-8", "hidden"]
    assert str(warm) == "sampled-8 at T=2.5"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("sampled", {"num_samples": 256}),
        ("sampled", {"temperature": 0}),
        ("topk", {"top_k": 0}),
        ("dense", {"top_k": 2}),
        ("dense", {"vocabulary_size": 1}),
        ("hidden", {"hidden_size": 0}),
        ("dense", {"width": 3}),
        ("dense", {"name": "x"}),
    ],
)
def test_settings_that_no_codec_can_have(name: CodecName, wrong: dict[str, Any]) -> None:
    sound = CODECS_BY_NAME[name].model_dump()
    assert TypeAdapter[AnyCodec](AnyCodec).validate_python(sound) == CODECS_BY_NAME[name]
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        TypeAdapter[AnyCodec](AnyCodec).validate_python(sound | wrong)


def test_a_file_that_is_no_decoder(tmp_path: Path) -> None:
    path = tmp_path / "decoder.safetensors"
    with pytest.raises(IntegrityError, match=r"decoder\.safetensors"):
        read_decoder(path, 4, 2)
    path.write_bytes(b"nonsense" * 9)
    with pytest.raises(IntegrityError, match=r"decoder\.safetensors"):
        read_decoder(path, 4, 2)
    save_file({"weight": torch.zeros(4, 2)}, path)
    with pytest.raises(IntegrityError, match=naming("decoder.safetensors", "'bias'")):
        read_decoder(path, 4, 2)
    save_file({"weight": torch.zeros(4, 3), "bias": torch.zeros(4)}, path)
    with pytest.raises(IntegrityError, match=naming("decoder.safetensors", (4, 3), (4,))):
        read_decoder(path, 4, 2)
