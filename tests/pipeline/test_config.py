from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import Config, as_names, names_of
from pipeline.errors import ConfigError
from pipeline.flat_settings import as_flags
from pipeline.flat_settings import given as given_of
from student.settings import TrainSettings
from tests.helpers.flags import parsed


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"task": "rte", "alpha": 0.5, "seed": 42},
        {"alpha": 0.0, "seed": 0, "hidden_dropout": 0.0, "warmup_steps": 0},
        {"bidirectional": False, "learning_rate": 1e-05, "matrix_size": 3},
        {"bidirectional": True, "allow_unverified": True},
        {
            "task": "rte",
            "where": "margin(logits) < 0.9 and sentence1 <> 'it''s'",
            "store": Path("a b/c"),
            "init": Path("runs/x"),
        },
        {"task": "rte", "where": "-1 < source_row", "initializer_range": 1 / 3},
        {"where": None, "recipe": None, "set": ("sets/x",)},
        {"set": ("sets/x", "it's y"), "mix": "weighted:0.7,0.3"},
    ],
    ids=str,
)
def test_flags_of_a_configuration_make_it_again(settings: dict[str, Any]) -> None:
    config = TrainSettings.from_flags(**settings)
    again = parsed(as_flags(config))
    assert again == config
    assert given_of(again).keys() == {name for name, value in settings.items() if value is not None}


def test_a_seed_fits_into_64_bits() -> None:
    assert TrainSettings.from_flags(seed=2**63 - 1).seed == 2**63 - 1
    with pytest.raises(ConfigError, match="--seed: "):
        TrainSettings.from_flags(seed=2**63)


def test_what_is_left_to_its_default_is_no_flag() -> None:
    assert as_flags(TrainSettings.from_flags()) == []
    flags = as_flags(TrainSettings.from_flags(per_device_train_batch_size=4, bidirectional=False))
    assert flags == ["--no-bidirectional", "--per-device-train-batch-size", "4"]
    assert as_flags(Config()) == []


@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Z"]), min_size=1), min_size=1))
def test_names_with_commas_and_quotes_come_back(names: list[str]) -> None:
    assert names_of(as_names(names)) == tuple(names)


def test_names_are_listed_with_commas_and_spaces_beside_them_do_not_count() -> None:
    assert names_of('one, "two, three" ,four,') == ("one", "two, three", "four")
    assert names_of(None) == names_of("") == ()
