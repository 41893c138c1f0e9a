"""Sets of tokens: written and verified by hand, and every damage found."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from pipeline.errors import ConfigError, IntegrityError
from pipeline.parquet import read_groups
from pipeline.sets.card import card_text
from pipeline.sets.codec_text import CodecName
from pipeline.sets.codecs.codec import DECODER_FILE, write_decoder
from pipeline.sets.files import footer_of
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.kinds.masked_words import MaskedWordSet, split_table, tokens_schema
from pipeline.sets.verify import verify_shards
from tests.helpers.damage import damage as flipped
from tests.helpers.messages import naming
from tests.helpers.shards import write_tokens
from tests.helpers.token_sets import (
    BLUE,
    CODECS_BY_NAME,
    DECODER,
    GREEN,
    MASK,
    RED,
    SHARDS,
    hidden_of,
    masked_rows,
    recorded,
    rewrite,
    with_column,
    word_tokenizer,
    write_set,
)

NAMES: tuple[CodecName, ...] = ("dense", "topk", "sampled", "hidden")
Groups = list[pa.Table]


@pytest.fixture(params=NAMES)
def token_set(request: pytest.FixtureRequest, tmp_path: Path) -> MaskedWordSet:
    """The set of each codec, free to be changed."""
    return write_set(tmp_path / "colours", CODECS_BY_NAME[request.param])


@pytest.fixture
def sampled(tmp_path: Path) -> MaskedWordSet:
    """The set of one codec, free to be changed."""
    return write_set(tmp_path / "colours", CODECS_BY_NAME["sampled"])


@pytest.fixture
def hidden(tmp_path: Path) -> MaskedWordSet:
    """The set whose decoder is a file of its own, free to be changed."""
    return write_set(tmp_path / "colours", CODECS_BY_NAME["hidden"])


def test_what_was_written_is_verified_and_read(token_set: MaskedWordSet) -> None:
    assert MaskedWordSet.open(token_set.root) == token_set
    assert (token_set.record.state, token_set.record.num_rows) == ("verified", 7)
    verify_shards(token_set.root, token_set.record)
    for shard in token_set.record.shards:
        rows, _ = split_table(pa.concat_tables(token_set.read_shard(shard)))
        expected = masked_rows(SHARDS[shard.split, shard.index])
        for name in ("source_row_R", "piece_R", "copy_R"):
            assert getattr(rows, name).tolist() == getattr(expected, name).tolist()
        for name in ("ids", "positions", "targets"):
            mine, theirs = getattr(rows, name), getattr(expected, name)
            assert [mine[k].tolist() for k in range(len(mine))] == [theirs[k].tolist() for k in range(len(theirs))]


def test_row_groups_are_found_in_order(sampled: MaskedWordSet) -> None:
    sizes = [(shard.index, number, rows) for (shard, number), rows in sampled.groups("train")]
    assert sizes == [(0, 0, 3), (0, 1, 1), (1, 0, 2)]
    last, _ = sampled.groups("train")[1]
    assert sampled.read_group(last).column("piece").to_pylist() == [1]
    with pytest.raises(ConfigError, match=naming("'tain'", "'train'", "train, validation")):
        sampled.shards("tain")


def softmax(logits: list[float]) -> list[float]:
    total = sum(map(math.exp, logits))
    return [math.exp(logit) / total for logit in logits]


def test_scores_by_hand(token_set: MaskedWordSet) -> None:
    codec = token_set.record.codec
    for split, scores in token_set.record.scores.items():
        rows = masked_rows([row for (name, _), part in SHARDS.items() if name == split for row in part])
        p_PV = [softmax([a, b + 0.25, 0.5 - a, -b - 1]) for a, b in hidden_of(rows).tolist()]
        pairs = list(zip(p_PV, rows.targets.flat.tolist(), strict=True))
        assert scores["positions"] == len(pairs) == {"train": 8, "validation": 1}[split]
        assert scores["masked_accuracy"] == sum(max(p) == p[target] for p, target in pairs) / len(pairs)
        nats = -sum(math.log(p[target]) for p, target in pairs) / len(pairs)
        assert scores["perplexity"] == pytest.approx(math.exp(nats), rel=1e-5)
        kept = [list(range(4)) for _ in pairs]
        if codec.name in ("topk", "sampled"):
            tables = [pa.concat_tables(token_set.read_shard(shard)) for shard in token_set.shards(split)]
            kept = pa.concat_tables(tables).column("candidates").combine_chunks().flatten().to_pylist()
        mass = sum(p[token] for p, tokens in zip(p_PV, kept, strict=True) for token in tokens)
        assert scores["kept_mass"] == pytest.approx(mass / len(pairs), rel=1e-5)
        size = sum((token_set.root / shard.path).stat().st_size for shard in token_set.shards(split))
        assert scores["bytes_per_position"] == size / len(pairs)


def test_a_split_without_positions_has_no_scores(sampled: MaskedWordSet) -> None:
    shard = sampled.record.shards[2]
    zeros = dict.fromkeys(("positions", "right", "nats", "kept_mass"), 0.0)
    write_tokens(sampled.root / shard.path, sampled.record.codec, [], footer_of(sampled.record, shard), zeros)
    assert list(sampled.scores()) == ["train"]
    verify_shards(sampled.root, recorded(sampled, 2, rows=0))


def column(name: str, values: list[Any]) -> Callable[[Groups], Groups]:
    """Other values in the first row group, which has three rows and four positions."""
    return lambda groups: [with_column(groups[0], name, values), *groups[1:]]


def repeated(groups: Groups) -> Groups:
    return [pa.concat_tables([groups[0], groups[0].slice(2)]), *groups[1:]]


def repeated_across_groups(groups: Groups) -> Groups:
    return [groups[0], groups[0].slice(2), groups[1]]


def one_more(groups: Groups) -> Groups:
    counts = groups[0].column("counts").to_pylist()
    counts[1][1][0] += 1
    return [with_column(groups[0], "counts", counts), *groups[1:]]


def without_positions(groups: Groups) -> Groups:
    table = groups[0]
    for name in ("positions", "targets", "candidates", "counts"):
        table = with_column(table, name, [[], *table.column(name).to_pylist()[1:]])
    return [table, *groups[1:]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda groups: groups[::-1], "row group 1: .*keys"),
        (lambda groups: [groups[0].take([1, 0, 2]), groups[1]], "row group 0: .*keys"),
        (repeated, "row group 0: .*keys"),
        (repeated_across_groups, "row group 1: .*keys"),
        (column("source_row", [-1, 0, 1]), "row group 0: .*keys"),
        (lambda groups: [groups[0], with_column(groups[1], "source_row", [2])], "row group 1: .*0 to 2"),
        (column("split", ["train", "validation", "train"]), "'train'"),
        (column("positions", [[0], [1, 3], [1]]), "masked position .*tokens"),
        (column("positions", [[0], [1, 2], [2]]), "masked position .*tokens"),
        (without_positions, "masked position"),
        (column("positions", [[0, 1], [1], [1]]), "targets"),
        (column("targets", [[RED], [GREEN, BLUE], [RED, RED]]), "targets"),
        (column("targets", [[RED], [GREEN, 4], [RED]]), "vocabulary"),
        (column("ids", [[MASK, GREEN, 4], [RED, MASK, MASK], [GREEN, MASK]]), "vocabulary"),
        (column("counts", [[[8]], [[8], [8]], []]), "counts"),
        (column("counts", [[[8]], [[8], None], [[8]]]), "counts is null"),
        (one_more, "counts .*8"),
    ],
)
def test_wrong_rows_are_found(sampled: MaskedWordSet, change: Callable[[Groups], Groups], message: str) -> None:
    with pytest.raises(IntegrityError, match=r"masked_words/train-00000-of-00002\.parquet") as caught:
        verify_shards(sampled.root, rewrite(sampled, change))
    assert caught.match(message)


def test_a_document_before_the_shard_is_found(sampled: MaskedWordSet) -> None:
    record = rewrite(sampled, lambda groups: [with_column(groups[0], "source_row", [1, 3])], number=1)
    with pytest.raises(IntegrityError, match=naming("train-00001-of-00002", "2 to 4")):
        verify_shards(sampled.root, record)


def test_entries_of_a_neighbouring_row_are_found(sampled: MaskedWordSet) -> None:
    """As many entries in all as masked positions, but not row by row."""

    def moved(groups: Groups) -> Groups:
        table = with_column(groups[0], "candidates", [[[0], [0]], [[0]], [[0]]])
        return [with_column(table, "counts", [[[8], [8]], [[8]], [[8]]]), *groups[1:]]

    with pytest.raises(IntegrityError, match=naming("masked_words/train-00000-of-00002.parquet", "candidates")):
        verify_shards(sampled.root, rewrite(sampled, moved))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ids", [[MASK, None, BLUE], [RED, MASK, MASK], [GREEN, MASK]]),
        ("positions", [[None], [1, 2], [1]]),
        ("targets", [[None], [GREEN, BLUE], [RED]]),
        ("candidates", [[[None]], [[0], [0]], [[0]]]),
        ("counts", [[[None]], [[8], [8]], [[8]]]),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
def test_nothing_where_a_number_belongs_is_found(sampled: MaskedWordSet, name: str, values: list[Any]) -> None:
    def emptied(groups: Groups) -> Groups:
        table = with_column(groups[0], "candidates", [[[0]], [[0], [0]], [[0]]])
        table = with_column(table, "counts", [[[8]], [[8], [8]], [[8]]])
        return [with_column(table, name, values), *groups[1:]]

    with pytest.raises(IntegrityError, match=r"train-00000-of-00002\.parquet"):
        verify_shards(sampled.root, rewrite(sampled, emptied))


def test_a_row_group_without_rows_is_no_crash(sampled: MaskedWordSet) -> None:
    record = rewrite(sampled, lambda groups: [groups[0], groups[0].slice(0, 0), groups[1]])
    assert [table.num_rows for table in read_groups(sampled.root / record.shards[0].path)] == [3, 0, 1]
    verify_shards(sampled.root, record)


def test_columns_of_another_codec_are_found(token_set: MaskedWordSet, tmp_path: Path) -> None:
    name = token_set.record.codec.name
    other = CODECS_BY_NAME["sampled" if name != "sampled" else "topk"]
    source = write_set(tmp_path / "other", other)
    shard = token_set.record.shards[0]
    groups = list(read_groups(source.root / shard.path))
    write_tokens(token_set.root / shard.path, other, groups, footer_of(token_set.record, shard), {})
    missing = [f for f in tokens_schema(token_set.record.codec).names if f not in tokens_schema(other).names]
    with pytest.raises(IntegrityError, match=", ".join(missing)):
        verify_shards(token_set.root, recorded(token_set))


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


@pytest.mark.parametrize(("damage", "message"), [(Path.unlink, "missing"), (linked, "missing"), (flipped, "SHA-256")])
def test_a_damaged_file_is_neither_verified_nor_read(
    sampled: MaskedWordSet, damage: Callable[[Path], None], message: str
) -> None:
    shard = sampled.record.shards[1]
    damage(sampled.root / shard.path)
    for use in (
        lambda: verify_shards(sampled.root, sampled.record),
        lambda: sampled.check_shards(sampled.shards("train")),
        lambda: next(sampled.read_shard(shard)),
    ):
        with pytest.raises(IntegrityError, match=naming("masked_words/train-00001-of-00002.parquet", message)):
            use()


def test_numbers_lie_on_disk_as_they_compress_best(token_set: MaskedWordSet) -> None:
    """Ids, floats and their bits byte by byte, what repeats in dictionaries; keys can be looked up by page."""
    group = pq.read_metadata(token_set.root / token_set.record.shards[0].path).row_group(0)
    columns = {column.path_in_schema.split(".")[0]: column for column in map(group.column, range(group.num_columns))}
    split = {name for name, column in columns.items() if "BYTE_STREAM_SPLIT" in column.encodings}
    assert split == {"ids", "targets", "log_probs", "log_z", "hidden", "candidates"} & columns.keys()
    in_dictionary = {name for name, column in columns.items() if column.has_dictionary_page}
    assert in_dictionary == {"split", "copy", "positions", "counts"} & columns.keys()
    assert {name for name, column in columns.items() if column.has_column_index} == {"split", "source_row", "copy"}
    assert {column.compression for column in columns.values()} == {"ZSTD"}


def test_which_temperatures_a_set_can_be_read_at(token_set: MaskedWordSet) -> None:
    token_set.check_temperature(1)
    if token_set.record.codec.name in ("dense", "hidden"):
        token_set.check_temperature(2)
        return
    name = {"topk": "topk-2", "sampled": "sampled-8"}[token_set.record.codec.name]
    with pytest.raises(ConfigError, match=naming("--temperature 2: ", repr(name), "--temperature 1")):
        token_set.check_temperature(2)


def test_draws_at_another_temperature_are_for_that_alone(tmp_path: Path) -> None:
    warm = write_set(tmp_path / "warm", CODECS_BY_NAME["sampled"].model_copy(update={"temperature": 2.5}))
    warm.check_temperature(2.5)
    with pytest.raises(ConfigError, match=naming("--temperature 1", "'sampled-8 at T=2.5'", "--temperature 2.5")):
        warm.check_temperature(1)


def test_a_set_of_the_other_kind_is_refused_with_advice(sampled: MaskedWordSet, opinion_set: ExampleSet) -> None:
    with pytest.raises(ConfigError, match=naming("opinion: ", "--signal mlm")):
        MaskedWordSet.open(opinion_set.root)
    with pytest.raises(ConfigError, match=naming("colours: ", "distill pretrain-student")):
        ExampleSet.open(sampled.root)


def test_the_decoder_is_the_teachers_last_layer(hidden: MaskedWordSet, tmp_path: Path) -> None:
    decoder = hidden.decoder()
    assert decoder is not None
    assert torch.equal(decoder.weight_VH, DECODER.weight_VH)
    assert torch.equal(decoder.bias_V, DECODER.bias_V)
    assert write_set(tmp_path / "other", CODECS_BY_NAME["dense"]).decoder() is None


def other_decoder(path: Path) -> None:
    write_decoder(path.parent, type(DECODER)(DECODER.weight_VH + 1, DECODER.bias_V))


@pytest.mark.parametrize("damage", [Path.unlink, flipped, linked, other_decoder])
def test_a_decoder_that_does_not_belong_to_the_set_is_refused(
    hidden: MaskedWordSet, damage: Callable[[Path], None]
) -> None:
    damage(hidden.root / DECODER_FILE)
    with pytest.raises(IntegrityError, match=r"decoder\.safetensors: "):
        hidden.decoder()


def test_a_decoder_of_another_size_is_refused(hidden: MaskedWordSet) -> None:
    """As it may come from someone else: its hash is in ``distill.json``, but it does not fit the codec."""
    write_decoder(hidden.root, type(DECODER)(DECODER.weight_VH[:, :1], DECODER.bias_V))
    changed = hidden.record.model_copy(update={"signals": hidden.record.signals.measured(hidden.root)})
    with pytest.raises(IntegrityError, match=naming("decoder.safetensors", (4, 1), (4,))):
        MaskedWordSet(hidden.root, changed).decoder()


@pytest.mark.parametrize("text", ["{}", word_tokenizer({"red": 0}), "nonsense"])
def test_another_tokenizer_is_refused(sampled: MaskedWordSet, text: str) -> None:
    (sampled.root / "tokenizer.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"tokenizer\.json"):
        sampled.tokenizer_json()


def test_the_card_is_filled(token_set: MaskedWordSet) -> None:
    text = (token_set.root / "README.md").read_text()
    assert text == card_text(token_set.record)
    assert "{{" not in text
    for expected in (
        token_set.record.codec.card_line,
        f"Stored with codec '{token_set.record.codec}'.",
        "| train | 6 | 2 |",
        "| validation | 1 | 1 |",
        "sentences of 2 to 5 tokens",
        "15% of the tokens",
        token_set.record.fingerprint,
    ):
        assert expected in text
    front = yaml.safe_load(text.split("---\n")[1])
    assert (front["task_categories"], front["license_name"]) == (["fill-mask"], "CC0-1.0")


def test_datasets_reads_the_folder(sampled: MaskedWordSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    loaded = datasets.load_dataset(str(sampled.root), "masked_words")
    assert set(loaded) == {"train", "validation"}
    for split, rows in loaded.items():
        ours = pa.concat_tables([pa.concat_tables(sampled.read_shard(shard)) for shard in sampled.shards(split)])
        assert rows.column_names == ours.column_names
        assert list(rows) == ours.to_pylist()


def test_the_sql_of_the_card_runs(sampled: MaskedWordSet) -> None:
    text = card_text(sampled.record.model_copy(update={"name": sampled.root.name}))
    query = text.split("-- duckdb\n")[1].split("```")[0].replace("PATH", str(sampled.root.parent))
    assert duckdb.execute(query).fetchall() == [(6, 8)]


def test_a_set_may_be_reached_by_a_link(hidden: MaskedWordSet, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(hidden.root)
    linked_set = MaskedWordSet.open(tmp_path / "link")
    verify_shards(linked_set.root, linked_set.record)
    assert linked_set.scores() == hidden.record.scores
