"""Flat flags become a tree of parts and back; what belongs to a part that was not chosen is refused."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given as given_by
from hypothesis import strategies as st
from pydantic import Field

from pipeline.errors import ConfigError
from pipeline.parsing import as_names, names_of
from pipeline.settings import Settings, as_flags, build, deciding, defaults, flags, flat, given
from student.settings import TrainSettings
from tests.helpers.flags import parsed


class Sum(Settings):
    """Sums of vectors."""

    embedding: Literal["sum"] = "sum"
    width: int = Field(784, ge=1, description="Size of a vector.")


class Products(Settings):
    """Ordered products."""

    panel: ClassVar = "Matrices"
    embedding: Literal["products", "matrices"] = "products"
    side: int = Field(28, ge=1, description="Side of a matrix.")


class Both(Settings):
    """Sums and products."""

    embedding: Literal["both"] = "both"
    width: int = Field(400, ge=1, description="Size of a vector.")
    side: int = Field(20, ge=1, description="Side of a matrix.")


class Squares(Settings):
    """Squared errors."""

    loss: Literal["mse"] = "mse"


class Divergence(Settings):
    """Divergences."""

    loss: Literal["kl"] = "kl"
    temperature: float = Field(1.0, gt=0, description="Softens both.")


class FromTask(Settings):
    """Rows of a task."""

    chosen_by: ClassVar = "task"
    task: str = Field(description="A task.")
    signal: Divergence | Squares = Field(default_factory=Divergence, discriminator="loss")


class FromCorpus(Settings):
    """Text."""

    chosen_by: ClassVar = "corpus"
    corpus: str = Field(description="A corpus.")
    documents: int | None = Field(None, description="So many.")


class Layers(Settings):
    """What is learnt from layers."""

    chosen_by: ClassVar = "layers"
    layers: str = Field(description="Which.")
    layer_weight: float = Field(1.0, description="How much.")


class Output(Settings):
    """Where results go."""

    folder: Path | None = Field(None, description="A folder.", json_schema_extra={"decides": False})
    json_output: bool = Field(False, description="As JSON.", json_schema_extra={"decides": False})
    bidirectional: bool = Field(True, description="Both ways.")


class Train(Output):
    """A command."""

    names: tuple[str, ...] = Field((), description="Sets.", json_schema_extra={"argument": True, "aliases": ["logits"]})
    source: FromTask | FromCorpus
    encoder: Both | Products | Sum = Field(default_factory=Both, discriminator="embedding")
    layers_part: Layers | None = None
    seed: int = Field(42, ge=0, description="Seed.")


def problems(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build(Train, values)
    return str(caught.value)


def test_the_flag_that_names_a_part_chooses_it_and_its_defaults() -> None:
    assert build(Train, {"task": "rte"}).encoder == Both(width=400, side=20)
    assert build(Train, {"task": "rte", "embedding": "sum"}).encoder == Sum(width=784)
    assert build(Train, {"task": "rte", "embedding": "matrices", "side": 3}).encoder == Products(
        embedding="matrices", side=3
    )


def test_the_flag_that_only_one_part_has_chooses_it() -> None:
    assert build(Train, {"corpus": "wiki", "documents": 3}).source == FromCorpus(corpus="wiki", documents=3)
    assert build(Train, {"task": "rte", "layers": "1"}).layers_part == Layers(layers="1")
    assert build(Train, {"task": "rte"}).layers_part is None


def test_flags_of_parts_that_were_not_chosen_are_refused_with_those_that_choose_them() -> None:
    message = problems(task="rte", documents=3, embedding="sum", side=4, layer_weight=2.0)
    assert "--documents: belongs to --corpus" in message
    assert "--side: belongs to --embedding both or --embedding products or --embedding matrices" in message
    assert "--layer-weight: belongs to --layers" in message


def test_all_problems_are_reported_at_once() -> None:
    message = problems(task="rte", seed=-1, temperature=0, width=0, sede=3)
    assert all(flag in message for flag in ("--seed", "--temperature", "--width", "--sede"))
    assert "seed" in message.partition("--sede")[2]  # the one that may have been meant


def test_a_name_that_no_part_has_is_refused_with_the_ones_that_there_are() -> None:
    assert "--embedding summ" in problems(task="rte", embedding="summ")


def test_two_parts_cannot_be_chosen_at_once() -> None:
    assert "--task or --corpus" in problems(task="rte", corpus="wiki")


def test_a_part_inside_a_part_is_chosen_by_its_own_flag() -> None:
    assert build(Train, {"task": "rte", "loss": "mse"}).source == FromTask(task="rte", signal=Squares())
    assert "--temperature: belongs to --loss kl" in problems(task="rte", loss="mse", temperature=2.0)
    assert "--loss: belongs to --task" in problems(corpus="wiki", loss="mse")


def test_other_spellings_are_accepted() -> None:
    assert build(Train, {"task": "rte", "logits": ("a",)}).names == ("a",)


class PartOfTask(FromTask):
    """Some rows of a task."""

    share: float = Field(1.0, description="Share of the rows.")


class OfRows(Settings):
    """Rows."""

    rows: PartOfTask | FromCorpus


def test_the_flag_that_chooses_a_part_comes_before_the_others() -> None:
    assert list(flags(OfRows)) == ["task", "share", "loss", "temperature", "corpus", "documents"]


def test_flags_know_their_places() -> None:
    known = flags(Train)
    assert next(iter(known)) == "names"
    assert known["names"].is_argument
    assert known["side"].panel == "Options"
    assert (known["width"].default, known["temperature"].default) == (None, 1.0)
    assert known["embedding"].choices == ("both", "products", "matrices", "sum")
    assert "folder" not in defaults(Train)


def test_only_what_decides_is_recorded() -> None:
    settings = build(Train, {"task": "rte", "folder": Path("x"), "json_output": True})
    assert deciding(settings) == {
        "bidirectional": True,
        "names": [],
        "task": "rte",
        "loss": "kl",
        "temperature": 1.0,
        "embedding": "both",
        "width": 400,
        "side": 20,
        "seed": 42,
    }
    assert deciding(settings.encoder, None) == {"embedding": "both", "width": 400, "side": 20}


VALUES = st.fixed_dictionaries(
    {"task": st.just("rte")},
    optional={
        "seed": st.integers(0, 9),
        "loss": st.sampled_from(["kl", "mse"]),
        "embedding": st.sampled_from(["both", "sum", "products"]),
        "bidirectional": st.booleans(),
        "folder": st.just(Path("a b")),
        "names": st.lists(st.sampled_from("ab"), min_size=1).map(tuple),
    },
)


@given_by(VALUES)
def test_the_tree_and_its_flags_are_the_same(values: dict[str, Any]) -> None:
    settings = build(Train, values)
    assert given(settings) == values
    assert build(Train, given(settings)) == settings
    assert flat(settings).items() >= values.items()


def test_the_command_line_of_settings() -> None:
    settings = build(Train, {"task": "rte", "bidirectional": False, "embedding": "sum", "names": ("a", "b")})
    assert as_flags(settings) == [
        *("--no-bidirectional", "--names", "a", "--names", "b"),
        *("--task", "rte", "--embedding", "sum"),
    ]
    assert as_flags(settings, ["width"]) == ["--width", "784"]


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
    assert given(again).keys() == {name for name, value in settings.items() if value is not None}


def test_a_seed_fits_into_64_bits() -> None:
    assert TrainSettings.from_flags(seed=2**63 - 1).seed == 2**63 - 1
    with pytest.raises(ConfigError, match="--seed: "):
        TrainSettings.from_flags(seed=2**63)


def test_what_is_left_to_its_default_is_no_flag() -> None:
    assert as_flags(TrainSettings.from_flags()) == []
    words = as_flags(TrainSettings.from_flags(per_device_train_batch_size=4, bidirectional=False))
    assert words == ["--no-bidirectional", "--per-device-train-batch-size", "4"]
    assert as_flags(Settings()) == []


@given_by(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Z"]), min_size=1), min_size=1))
def test_names_with_commas_and_quotes_come_back(names: list[str]) -> None:
    assert names_of(as_names(names)) == tuple(names)


def test_names_are_listed_with_commas_and_spaces_beside_them_do_not_count() -> None:
    assert names_of('one, "two, three" ,four,') == ("one", "two, three", "four")
    assert names_of(None) == names_of("") == ()
