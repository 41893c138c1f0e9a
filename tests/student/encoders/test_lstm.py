"""LSTM encoders against torch's LSTM on one sequence at a time, and arithmetic written out."""

import pytest
import torch
from torch import nn

from pipeline.errors import ConfigError
from student.describe import describe_config
from student.encoders.biattentive import BiattentiveEncoder
from student.encoders.encoder import Encoder
from student.encoders.lstm import LstmEncoder
from student.model.build_config import build_config
from student.model.heads import HEADS
from student.model.student import Student
from student.pretrain_settings import PretrainSettings
from student.settings import TrainSettings
from tests.helpers.messages import naming
from tests.helpers.shipped_tasks import facts
from tests.helpers.toy_students import lstm_student, padded, ragged, student_config, trained_weights

SENTENCES = [[3, 1, 4], [], [7], [2, 2, 9, 5, 3], [], [6, 8]]
PAD = 0


def encoder_of(embedding: str, **changes: object) -> Encoder:
    return lstm_student(embedding, **changes).encoder


def run_alone(lstm: nn.Module, features_LE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The states at each token and the last ones, of one sequence."""
    states_LD, (last_2H, _) = lstm(features_LE)
    return states_LD, last_2H.flatten()


@pytest.mark.parametrize("channels", [1, 2])
def test_last_states_are_those_of_each_sequence_alone(channels: int) -> None:
    encoder = encoder_of("lstm", channels=channels)
    assert isinstance(encoder, LstmEncoder)
    ids_T, starts_S = ragged(SENTENCES)
    features_ND, states_TD = encoder.reduce(ids_T, starts_S), encoder.scan(ids_T, starts_S)
    assert features_ND.shape == (6, encoder.size)
    for sentence, feature_D, start in zip(SENTENCES, features_ND, starts_S.tolist(), strict=False):
        if not sentence:
            assert not feature_D.any()
            continue
        vectors_LE = torch.cat([table.weight[sentence] for table in encoder.tables()], dim=1)
        states_LD, last_D = run_alone(encoder.lstm.lstm, vectors_LE)
        torch.testing.assert_close(feature_D, last_D)
        torch.testing.assert_close(states_TD[start : start + len(sentence)], states_LD)


@pytest.mark.parametrize("embedding", ["lstm", "biattentive"])
def test_padding_says_nothing_wherever_it_stands(embedding: str) -> None:
    encoder = encoder_of(embedding)
    expected_ND = encoder.reduce(*ragged(SENTENCES))
    torch.testing.assert_close(encoder(padded(SENTENCES)), expected_ND)
    gaps = [[PAD, *(part for token in sentence for part in (token, PAD))] for sentence in SENTENCES]
    torch.testing.assert_close(encoder.reduce(*ragged(gaps)), expected_ND)
    torch.testing.assert_close(encoder(padded(gaps)), expected_ND)
    for number, sentence in enumerate(SENTENCES):  # nor does the rest of a batch
        torch.testing.assert_close(encoder.reduce(*ragged([sentence]))[0], expected_ND[number])


def test_states_of_tokens_stand_where_the_tokens_do() -> None:
    encoder = encoder_of("lstm")
    states_TD = encoder.scan(*ragged([[3, PAD, 1], [PAD]]))
    expected_TD = encoder.scan(*ragged([[3, 1]]))
    torch.testing.assert_close(states_TD[[0, 2]], expected_TD)
    assert not states_TD[[1, 3]].any()


def biattentive_alone(encoder: BiattentiveEncoder, x: list[int], y: list[int]) -> torch.Tensor:
    """The representation of one pair of sentences that are not empty, as the paper writes it."""
    weight_VE = encoder.vectors.trained.weight
    x_nD, _ = run_alone(encoder.lstm.lstm, encoder.map(weight_VE[x]))
    y_mD, _ = run_alone(encoder.lstm.lstm, encoder.map(weight_VE[y]))
    a_nm = x_nD @ y_mD.T
    of_x_nm, of_y_mn = a_nm.softmax(dim=0), a_nm.T.softmax(dim=0)
    c_mD, c_nD = of_x_nm.T @ x_nD, of_y_mn.T @ y_mD
    pools = []
    for reader, own, seen in ((encoder.first, x_nD, c_nD), (encoder.second, y_mD, c_mD)):
        states, _ = run_alone(reader.lstm.lstm, torch.cat([own, own - seen, own * seen], dim=1))
        weight_L1 = (states @ reader.weigh.weight.T + reader.weigh.bias).softmax(dim=0)
        pools += [states.amax(dim=0), states.mean(dim=0), (weight_L1 * states).sum(dim=0)]
    return torch.cat(pools)


def test_attention_is_what_the_paper_writes() -> None:
    encoder = encoder_of("biattentive")
    assert isinstance(encoder, BiattentiveEncoder)
    ones, others = [[3, 1, 4], [7], [2, 2, 9, 5, 3]], [[6], [8, 2, 4, 1], [5, 5]]
    pairs_BF = encoder.reduce_pairs(*ragged([*ones, *others]))
    alone_BF = encoder.reduce(*ragged(ones))
    for number, (x, y) in enumerate(zip(ones, others, strict=True)):
        torch.testing.assert_close(pairs_BF[number], biattentive_alone(encoder, x, y))
        torch.testing.assert_close(alone_BF[number], biattentive_alone(encoder, x, x))


def test_empty_sentences_of_a_pair_are_seen_as_nothing() -> None:
    encoder = encoder_of("biattentive")
    half = encoder.size // 2
    pairs_BF = encoder.reduce_pairs(*ragged([[3, 1], [], [], [4]]))
    for number, nothing in ((0, slice(half, None)), (1, slice(half))):
        assert pairs_BF[number].isfinite().all()
        assert not pairs_BF[number][nothing].any()
        assert pairs_BF[number].any()
    assert not encoder.reduce_pairs(*ragged([[], []])).any()


@pytest.mark.parametrize("embedding", ["lstm", "biattentive"])
@pytest.mark.parametrize("is_pair", [False, True])
def test_gradients_by_rows_move_it_as_those_of_whole_tables_do(embedding: str, is_pair: bool) -> None:
    def new() -> Student:
        return lstm_student(embedding, is_pair=is_pair, **({"channels": 2} if embedding == "lstm" else {}))

    batches: list[list[list[int]]] = [SENTENCES[2:], SENTENCES[:4], [[], []], [[3], [PAD, 3]]]
    trained = [trained_weights(new(), batches, by_rows) for by_rows in (True, False)]
    start = new().state_dict()
    for name, weight in trained[0].items():
        if name.endswith("weigh.bias"):  # before a softmax: its gradient is rounding alone, of which Adam makes steps
            continue
        torch.testing.assert_close(weight, trained[1][name], rtol=0, atol=1e-3)  # of steps of 0.1
        assert torch.equal(weight, start[name]) == ("frozen" in name), name
    assert not trained[0]["encoder.vectors.trained.weight"][PAD].any()


def test_both_channels_start_alike_and_one_is_trained() -> None:
    encoder = encoder_of("lstm", channels=2)
    frozen, trained = encoder.tables()
    assert torch.equal(frozen.weight, trained.weight)
    assert encoder.trained_tables() == [trained]
    encoder.start_vectors(torch.tensor([2, 5]), torch.full((2, 3), 9.0))
    for table in (frozen, trained):
        assert table.weight[[2, 5], :3].eq(9).all()
        assert table.weight[1:, 3:].abs().max() <= 0.25
    assert encoder.used_ids().tolist() == list(range(10))
    encoder.neutralise(torch.arange(10) == 2)
    assert encoder.used_ids().tolist() == [0, 1, 3, 4, 5, 6, 7, 8, 9]
    assert not frozen.weight[2].any()
    assert frozen.weight.numel() + trained.weight.numel() + 2 * 4 * 4 * (10 + 4 + 2) == sum(
        p.numel() for p in encoder.parameters()
    )


def test_parameters_beside_the_tables_are_those_that_give_mkds_10_2_million() -> None:
    """Those of Tang et al. are in `tests.student.test_recipe`."""
    flags = TrainSettings.from_flags(embedding="biattentive", head="plain-mlp", hidden_size=512)
    described = describe_config(build_config(flags, facts("mnli")))
    parameters = described["parameters"]
    assert parameters["total"] - parameters["vectors"] == 10_157_249
    assert parameters["vectors"] == 30522 * 300
    first, second = (8 * 256 * (size + 256) for size in (300, 3 * 512))
    assert described["multiply_adds"] == {"per_token": 300 * 300 + first + second, "per_input": 3072 * 512 + 512 * 3}


def test_the_plain_head_is_two_layers_with_dropout_between() -> None:
    model = lstm_student(head="plain-mlp", hidden_dropout=0.5).train()
    layers = list(model.head.children())
    assert [type(layer) for layer in layers] == [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]
    assert layers[2].p == 0.5
    assert isinstance(model.dropout, nn.Dropout)
    assert model.dropout.p == 0
    assert HEADS["plain-mlp"].words in model.generate_model_card().text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"embedding": "lstm", "bidirectional": False}, "--no-bidirectional: "),
        ({"embedding": "hybrid", "lstm_size": 3}, naming("--lstm-size: ", "--embedding lstm")),
        ({"embedding": "cmow", "channels": 2}, naming("--channels: ", "--embedding lstm")),
        ({"embedding": "biattentive", "channels": 2}, naming("--channels: ", "--embedding lstm")),
        ({"embedding": "lstm", "matrix_size": 3}, "--matrix-size: "),
        ({"embedding": "lstm", "pooling": "sum+max"}, naming("--pooling: ", "--embedding cbow")),
        (
            {"embedding": "lstm", "initializer_range": 0.1},
            "--initializer-range: ",
        ),
        ({"embedding": "lstm", "window_size": 9}, "--window-size: "),
        ({"embedding": "lstm", "head": "cnn"}, naming("--head cnn: ", "--embedding lstm")),
        ({"embedding": "lstm", "pairing": "attention"}, naming("--pairing attention: ", "--embedding lstm")),
        ({"embedding": "biattentive", "head": "bilstm"}, "--head bilstm"),
    ],
    ids=str,
)
def test_flags_of_other_encoders_are_refused(flags: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_config(TrainSettings.from_flags(**flags), facts("mrpc"))


def test_every_token_is_compared_with_every_other_of_short_texts_alone() -> None:
    flags = TrainSettings.from_flags(embedding="biattentive")
    assert build_config(flags, facts("mrpc") | {"max_seq_length": 1024}).max_seq_length == 1024
    with pytest.raises(ConfigError, match=naming("--embedding biattentive: ", "1,024", "1,025", "--max-seq-length")):
        build_config(flags, facts("mrpc") | {"max_seq_length": 1025})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lstm_size": 0}, "lstm_size"),
        ({"pooling": "sum+max"}, "pooling"),
        ({"window_size": 4}, "window_size"),
        ({"table_dtype": "int8"}, "'lstm'"),
        ({"is_pair": True, "pairing": "attention"}, naming("'lstm'", "attention")),
        ({"embedding": "biattentive", "channels": 2}, "channel"),
        (
            {"embedding": "biattentive", "max_seq_length": 1025},
            naming("--embedding biattentive: ", "1,025"),
        ),
        ({"embedding": "hybrid", "lstm_size": 2}, "lstm_size"),
    ],
    ids=str,
)
def test_a_config_that_contradicts_itself_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lstm_student(**{"embedding": "lstm"} | changes)  # type: ignore[arg-type]


def test_a_config_claims_no_more_bytes_than_its_weights_have() -> None:
    for model in (lstm_student(channels=2), lstm_student("biattentive", head="linear", hidden_size=None)):
        stored = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
        assert model.config.least_bytes <= stored
    huge = student_config(embedding="lstm", lstm_size=2**16)
    assert huge.least_bytes > 2**34


@pytest.mark.parametrize("embedding", ["lstm", "biattentive"])
def test_they_are_not_pretrained(embedding: str) -> None:
    with pytest.raises(ConfigError, match=f"--embedding {embedding}: "):
        PretrainSettings.from_flags(set="x", embedding=embedding)
