import json
import shutil
from math import log
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError, DataError, DistillError, QueryError
from pipeline.query.mixture import Mixture, compare_teachers, open_sets
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import FILE_NAME
from pipeline.sets.signals.rows import logits_of
from pipeline.sharing.push import without_text
from pipeline.sql.read_only_query import open_files, select
from pipeline.tasks.target import softmax
from tests.helpers.messages import naming
from tests.helpers.rewritten_sets import Row, rewritten, with_logits


def sure_of(row: int) -> list[float]:
    """Probabilities 3/4 and 1/4, for the first class of even rows and for the second of odd ones."""
    return [0.0, log(3)] if row % 2 else [log(3), 0.0]


def same(_: str, rows: list[Row]) -> list[Row]:
    return rows


@pytest.fixture(scope="module")
def undecided(opinion_set: ExampleSet, tmp_path_factory: pytest.TempPathFactory) -> ExampleSet:
    """The rows of `opinion_set`, with logits of a teacher that guesses."""
    return rewritten(opinion_set, tmp_path_factory.mktemp("sets") / "undecided", with_logits(lambda _: [5.0, 5.0]))


@pytest.fixture(scope="module")
def decided(opinion_set: ExampleSet, tmp_path_factory: pytest.TempPathFactory) -> ExampleSet:
    """The same rows, of the teacher `sure_of`."""
    return rewritten(opinion_set, tmp_path_factory.mktemp("sets") / "decided", with_logits(sure_of))


def probabilities(logit_set: ExampleSet, split: str = "train", where: str | None = None) -> list[list[float]]:
    rows: list[list[float]] = softmax(logits_of(logit_set.read(split, ("logits",), where), 2)).tolist()
    return rows


@pytest.mark.parametrize(
    ("mix", "first"), [(None, 5 / 8), ("mean", 5 / 8), ("weighted:1,3", 11 / 16), ("weighted:0.75,0.25", 9 / 16)]
)
def test_a_mixture_by_hand(undecided: ExampleSet, decided: ExampleSet, mix: str | None, first: float) -> None:
    mixed = open_sets([undecided.root, decided.root], mix)
    assert mixed.read("train", ("source_row",)).column("source_row").to_pylist() == list(range(96))
    even, odd = [first, 1 - first], [1 - first, first]
    assert np.array(probabilities(mixed)) == pytest.approx(np.array([even, odd] * 48), abs=1e-6)


def test_a_vote_leaves_out_the_minority(undecided: ExampleSet, decided: ExampleSet, opinion_set: ExampleSet) -> None:
    mixed = open_sets([undecided.root, decided.root, opinion_set.root], "vote")
    # the undecided teacher's arg max is the first class
    expected = []
    for row, own in enumerate(probabilities(opinion_set)):
        says = [[0.5, 0.5], [0.25, 0.75] if row % 2 else [0.75, 0.25], own]
        chosen = [0, row % 2, int(own[1] > own[0])]
        kept = [p for p, c in zip(says, chosen, strict=True) if chosen.count(c) > 1]
        expected.append(np.mean(kept, axis=0).tolist())
    assert np.array(probabilities(mixed)) == pytest.approx(np.array(expected), abs=1e-6)


def test_all_but_the_logits_is_the_first_sets(undecided: ExampleSet, decided: ExampleSet) -> None:
    columns = ("source_row", "variant", "sentence1", "sentence2", "ids1", "label", "score")
    mixed = open_sets([undecided.root, decided.root])
    assert mixed.read("validation", columns).equals(undecided.read("validation", columns))
    assert mixed.record == undecided.record


def test_a_condition_sees_the_mixed_rows(undecided: ExampleSet, decided: ExampleSet) -> None:
    mixed = open_sets([undecided.root, decided.root])  # margins are 1/4 in the mixture, 0 and 1/2 in the sets
    where = "margin(logits) between 0.24 and 0.26 and argmax(logits) = 1"
    assert len(probabilities(mixed, where=where)) == 48
    with pytest.raises(QueryError, match=naming("SQL", "'1=1) union all (select 1'")):
        probabilities(mixed, where="1=1) union all (select 1")


def turned(_: str, rows: list[Row]) -> list[Row]:
    """The same teacher, with its two labels in the other order."""
    return [row | {"logits": row["logits"][::-1], "label": 1 - row["label"]} for row in rows]


def test_labels_in_another_order_are_put_in_the_first_sets(opinion_set: ExampleSet, tmp_path: Path) -> None:
    names = opinion_set.record.target.names
    other = rewritten(opinion_set, tmp_path / "turned", turned, names=names[::-1])
    mixed = open_sets([opinion_set.root, other.root], "weighted:1,9")
    assert np.array(probabilities(mixed)) == pytest.approx(np.array(probabilities(opinion_set)), abs=1e-6)
    with mixed.opened("train") as connection:
        sql = "select count(*) from turned join opinion using (source_row) where turned.label = opinion.label "
        assert select(connection, sql + "and turned.logits = opinion.logits").fetchall() == [(96,)]
    back = open_sets([other.root, opinion_set.root])
    assert np.array(probabilities(back)) == pytest.approx(np.array(probabilities(other)), abs=1e-6)


def test_three_labels_are_put_in_order_by_name(opinion_set: ExampleSet, tmp_path: Path) -> None:
    def wide(logits: list[float], labels: tuple[int, int]) -> object:
        return lambda _, rows: [row | {"logits": logits, "label": labels[row["label"]]} for row in rows]

    def three(name: str, names: tuple[str, ...], logits: list[float], labels: tuple[int, int]) -> ExampleSet:
        return rewritten(opinion_set, tmp_path / name, wide(logits, labels), names=names)  # type: ignore[arg-type]

    first = three("first", ("a", "b", "c"), [log(6), log(3), log(1)], (0, 1))
    other = three("other", ("c", "a", "b"), [log(2), log(7), log(1)], (1, 2))
    mixed = open_sets([first.root, other.root])
    (row,) = mixed.read("train", ("logits",), "source_row = 0").column("logits").to_pylist()
    assert np.exp(row) == pytest.approx([13 / 20, 4 / 20, 3 / 20])


def test_rows_that_not_every_set_has_are_left_out_and_counted(opinion_set: ExampleSet, tmp_path: Path) -> None:
    less = rewritten(opinion_set, tmp_path / "less", lambda split, rows: rows[: 30 if split == "train" else 40])
    for order in ([opinion_set.root, less.root], [less.root, opinion_set.root]):
        mixed = open_sets(order)
        assert isinstance(mixed, Mixture)
        assert mixed.read("train", ("source_row",)).column("source_row").to_pylist() == list(range(30))
        comparison = compare_teachers(mixed)
        assert (comparison["train"]["rows"], comparison["validation"]["rows"]) == (30, 40)
        assert comparison["train"]["left_out"] == {"opinion": 66, "less": 0}
        assert comparison["validation"]["left_out"] == {"opinion": 0, "less": 0}


def test_variants_that_the_other_set_has_not_are_left_out(augmented_set: ExampleSet, opinion_set: ExampleSet) -> None:
    mixed = open_sets([augmented_set.root, opinion_set.root])
    assert mixed.read("train", ("origin",)).column("origin").to_pylist() == ["original"] * 96


def test_splits_not_in_every_set_are_left_out(
    opinion_set: ExampleSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_dev = rewritten(opinion_set, tmp_path / "no-dev", lambda split, rows: rows if split == "train" else None)
    mixed = open_sets([opinion_set.root, no_dev.root])
    assert mixed.splits == ("train",)
    assert "validation" in capsys.readouterr().err
    no_train = rewritten(opinion_set, tmp_path / "no-train", lambda split, rows: None if split == "train" else rows)
    with pytest.raises(ConfigError, match=naming("--set: ", "no-train: ", "validation")):
        open_sets([opinion_set.root, no_train.root])


def test_without_a_common_training_row_there_is_nothing_to_mix(opinion_set: ExampleSet, tmp_path: Path) -> None:
    empty = rewritten(opinion_set, tmp_path / "empty", lambda split, rows: [] if split == "train" else rows)
    with pytest.raises(DataError, match=naming("--set: ", "train")):
        open_sets([opinion_set.root, empty.root])


def test_shifted_rows_are_refused_with_the_first_one(opinion_set: ExampleSet, tmp_path: Path) -> None:
    def shifted(split: str, rows: list[Row]) -> list[Row]:
        text = [row["sentence1"] for row in rows]
        moved = text if split == "train" else [*text[:7], *text[8:], text[7]]
        return [row | {"sentence1": one} for row, one in zip(rows, moved, strict=True)]

    other = rewritten(opinion_set, tmp_path / "shifted", shifted)
    texts = opinion_set.read("validation", ("sentence1",)).column("sentence1").to_pylist()
    with pytest.raises(DataError) as caught:
        open_sets([opinion_set.root, other.root])
    assert f"validation, source row 7, variant 0: text {texts[7]!r}" in str(caught.value)
    assert f"{texts[8]!r}" in str(caught.value)


def test_with_another_tokenizer_the_texts_are_the_proof(opinion_set: ExampleSet, tmp_path: Path) -> None:
    other = rewritten(opinion_set, tmp_path / "other", same, new_tokenizer=True)
    mixed = open_sets([opinion_set.root, other.root])
    assert np.array(probabilities(mixed)) == pytest.approx(np.array(probabilities(opinion_set)), abs=1e-6)
    hashes = [one.read("train", ("hex(text_hash) as h",)).column("h").to_pylist() for one in (opinion_set, other)]
    assert not set(hashes[0]) & set(hashes[1])


def test_another_tokenizer_and_text_prove_nothing(
    opinion_set: ExampleSet, roles_set: ExampleSet, tmp_path: Path
) -> None:
    def second_sentence(_: str, rows: list[Row]) -> list[Row]:
        return [row | {"sentence2": "it's [red]" if row["source_row"] == 3 else row["sentence2"]} for row in rows]

    other = rewritten(roles_set, tmp_path / "roles2", second_sentence, new_tokenizer=True)
    with pytest.raises(DataError, match=naming("train, source row 3, variant 0: text", "it's [red]")):
        open_sets([roles_set.root, other.root])
    other = rewritten(opinion_set, tmp_path / "other", lambda _, rows: rows, new_tokenizer=True)
    with (
        without_text(other.root, other.record) as (bare, _),
        pytest.raises(DataError, match=naming("train, source row 0, variant 0: text")),
    ):
        open_sets([opinion_set.root, bare])


def test_of_sets_without_text_the_hashes_are_the_proof(opinion_set: ExampleSet, tmp_path: Path) -> None:
    def mistaken(_: str, rows: list[Row]) -> list[Row]:
        return [row | {"sentence1": "quite another"} if row["source_row"] == 9 else row for row in rows]

    same = rewritten(opinion_set, tmp_path / "same", with_logits(lambda row: [row, 0.0]))
    with without_text(same.root, same.record) as (bare, _):
        mixed = open_sets([opinion_set.root, bare], "weighted:1e-9,1")
        rows = mixed.read("train", ("source_row", "logits[1] - logits[2] as difference"))
    assert rows.column("difference").to_pylist()[:15] == pytest.approx(list(range(15)), abs=1e-3)
    other = rewritten(opinion_set, tmp_path / "other", mistaken)
    with (
        without_text(other.root, other.record) as (bare, _),
        pytest.raises(DataError, match=naming("source row 9, variant 0: text '")),
    ):
        open_sets([opinion_set.root, bare])


def test_other_gold_is_refused(opinion_set: ExampleSet, tmp_path: Path) -> None:
    def wrong(split: str, rows: list[Row]) -> list[Row]:
        return [row | {"label": 1 - row["label"] if row["source_row"] >= 11 else row["label"]} for row in rows]

    other = rewritten(opinion_set, tmp_path / "wrong", wrong)
    names = opinion_set.record.target.names
    label = opinion_set.read("train", ("label",)).column("label")[11].as_py()
    expected = ("train, source row 11, variant 0: gold ", repr(names[label]), repr(names[1 - label]))
    with pytest.raises(DataError) as caught:
        open_sets([opinion_set.root, other.root])
    assert all(part in str(caught.value) for part in expected)
    unknown = rewritten(opinion_set, tmp_path / "unknown", lambda _, rows: [row | {"label": None} for row in rows])
    with pytest.raises(DataError, match=naming("source row 0, variant 0: gold")):
        open_sets([opinion_set.root, unknown.root])


def test_sets_that_do_not_fit_are_told_all_at_once(
    opinion_set: ExampleSet, roles_set: ExampleSet, tmp_path: Path
) -> None:
    other = rewritten(opinion_set, tmp_path / "other", same, names=("bad", "god"))
    with pytest.raises(ConfigError) as caught:
        open_sets([opinion_set.root, other.root, roles_set.root, opinion_set.root])
    message = str(caught.value)
    assert f"{other.root}: " in message
    assert f"{roles_set.root} and {opinion_set.root}: " in message
    assert f"{opinion_set.root}: " in message


def test_sets_of_the_same_name_are_refused(opinion_set: ExampleSet, tmp_path: Path) -> None:
    copy = shutil.copytree(opinion_set.root, tmp_path / "Opinion")
    with pytest.raises(ConfigError, match=naming("--set: ", "Opinion", "'opinion'")):
        open_sets([opinion_set.root, copy])


@pytest.mark.parametrize(
    ("mix", "match"),
    [
        ("maen", "'mean'"),
        ("weighted", "weights"),
        ("weighted:1,x", "weights"),
        ("weighted:1", "1 weights"),
        ("weighted:1,2,3", "3 weights"),
        ("weighted:1,0", "finite"),
        ("weighted:1,-1", "finite"),
        ("weighted:nan,1", "finite"),
        ("weighted:inf,1", "finite"),
        ("weighted:1e-308,1e308", "finite"),
    ],
)
def test_a_wrong_mix_is_refused(undecided: ExampleSet, decided: ExampleSet, mix: str, match: str) -> None:
    with pytest.raises(ConfigError, match=naming("--mix", mix.partition(":")[0], match)):
        open_sets([undecided.root, decided.root], mix)


def test_a_damaged_set_is_not_mixed(opinion_set: ExampleSet, decided: ExampleSet, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(decided.root, tmp_path / "damaged"))
    shard = next((copy / "examples").glob("validation*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(DistillError, match=naming("damaged: ", "SHA-256")):
        open_sets([opinion_set.root, copy])
    record = read_record(copy / FILE_NAME)
    (copy / FILE_NAME).write_text(json.dumps(record | {"state": "complete"}))
    with pytest.raises(DistillError, match=naming("damaged: ", "'complete'")):
        open_sets([opinion_set.root, copy])


def test_the_comparison_says_what_the_macro_says(opinion_set: ExampleSet, decided: ExampleSet) -> None:
    mixed = open_sets([opinion_set.root, decided.root])
    assert isinstance(mixed, Mixture)
    comparison = compare_teachers(mixed)
    views = {one.view: [one.root / shard.path for shard in one.record.shards] for one in mixed.sets}
    with open_files(views) as connection:
        rows = select(connection, "select split, n, agreement, kl from agreement('opinion', 'decided')").fetchall()
    for split, count, agreement, kl in rows:
        values = comparison[split]["with_first"]["decided"]
        assert (comparison[split]["rows"], values["agreement"]) == (count, pytest.approx(agreement))
        assert values["kl"] == pytest.approx(kl, abs=1e-6)
    label = decided.read("validation", ("label",)).column("label").to_numpy()
    scores = comparison["validation"]["scores"]
    assert scores["decided"]["accuracy"] == pytest.approx((label == np.arange(40) % 2).mean())
    assert scores.keys() == {"opinion", "decided", "mixture"}
    assert "scores" not in comparison["train"]
