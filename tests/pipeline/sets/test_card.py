import re
from pathlib import Path
from typing import Any

import datasets
import duckdb
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import BaseModel

from pipeline.sets.card import card_text
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.open import load_set_tokenizer
from pipeline.sets.record import SetRecord, read_set_record
from pipeline.tasks.task import Task
from teacher.dumps import dump
from tests.helpers.dumps import dump_config


def front_matter(text: str) -> dict[str, Any]:
    _, yaml_text, _ = text.split("---\n", 2)
    return dict(yaml.safe_load(yaml_text))


def test_front_matter_is_yaml_that_names_the_files(opinion_set: ExampleSet) -> None:
    text = (opinion_set.root / "README.md").read_text()
    assert text == card_text(opinion_set.record)
    values = front_matter(text)
    assert values["license"] == "other"
    assert values["license_name"] == "CC0-1.0"
    assert values["size_categories"] == ["n<1K"]
    (config,) = values["configs"]
    assert config["config_name"] == "examples"
    found = {
        part["split"]: sorted(p.name for p in opinion_set.root.glob(part["path"])) for part in config["data_files"]
    }
    record = opinion_set.record
    assert found == {split: [Path(s.path).name for s in record.shards_of(split)] for split in record.splits}


def test_every_place_of_the_template_is_filled(roles_set: ExampleSet) -> None:
    text = card_text(roles_set.record)
    assert "{{" not in text
    for expected in ("| train | 96 | 4 |", "`different`, `same`", roles_set.record.fingerprint, "nothing unusual"):
        assert expected in text
    noted = roles_set.record.model_copy(update={"notes": ("half the split is missing",)})
    assert "- half the split is missing" in card_text(noted)


def test_odd_names_stay_yaml(opinion_set: ExampleSet) -> None:
    assert opinion_set.record.task
    task = opinion_set.record.task.model_copy(update={"licence": 'other: "see" https://x.org # yes'})
    teacher = opinion_set.record.teacher.model_copy(update={"name": "C:\\models: 'é'"})
    values = front_matter(card_text(opinion_set.record.model_copy(update={"task": task, "teacher": teacher})))
    assert values["license_name"] == 'other: "see" https://x.org # yes'
    assert values["pretty_name"] == "opinion: logits of C:\\models: 'é'"


@pytest.mark.parametrize("split", ["train", "validation"])
def test_datasets_loads_the_folder(
    roles_set: ExampleSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    rows = datasets.load_dataset(str(roles_set.root), "examples", split=split)
    ours = roles_set.read(split, ("source_row", "sentence2", "label", "ids1", "logits"))
    for name in ours.column_names:
        assert list(rows[name]) == ours.column(name).to_pylist(), name
    assert datasets.load_dataset(str(roles_set.root), split=split).num_rows == ours.num_rows


def test_sql_of_the_card_runs(roles_set: ExampleSet) -> None:
    text = card_text(roles_set.record)
    query = text.split("-- duckdb\n")[1].split("```")[0].replace("PATH", str(roles_set.root.parent))
    split = next(iter(roles_set.record.splits))
    tables = [pq.read_table(roles_set.root / s.path, partitioning=None) for s in roles_set.record.shards_of(split)]
    rows = [row for table in tables for row in table.to_pylist()]
    means = {label: [r["logits"][0] for r in rows if r["label"] == label] for label in (0, 1)}
    expected = {label: pytest.approx(sum(values) / len(values)) for label, values in means.items()}
    assert dict(duckdb.execute(query).fetchall()) == expected


EVIL = "x` <img src=x> ![x](http://evil) |\n# heading\n"
VALIDATED = {"name", "kind", "folder", "state", "fingerprint", "split", "method", "codec", "splits", "shards"}


def spoiled(value: Any, name: str = "") -> Any:
    """The same with something hostile for every text, however deep, that nothing else checks."""
    if isinstance(value, BaseModel):
        is_set = isinstance(value, SetRecord)
        kept = VALIDATED - (set() if is_set else {"name"})
        return value.model_copy(update={k: v if k in kept else spoiled(v, k) for k, v in value})
    if isinstance(value, tuple):
        return tuple(map(spoiled, value))
    if isinstance(value, dict):
        return {k if name == "scores" else EVIL: spoiled(v) for k, v in value.items()}
    return EVIL if isinstance(value, str) else value


@pytest.mark.parametrize("kind", ["examples", "variants", "masked_words"])
def test_what_strangers_wrote_is_no_markup(
    kind: str, opinion_set: ExampleSet, augmented_set: ExampleSet, token_store: Path
) -> None:
    roots = {"examples": opinion_set.root, "variants": augmented_set.root, "masked_words": token_store / "sampled"}
    record = read_set_record(roots[kind])
    text = card_text(spoiled(record)).split("---\n", 2)[2]
    assert "<img" not in text
    assert not re.search(r"(?<!\\)\[[^]]*\]\(", re.sub("`[^`\n]*`", "", text))  # a link or an image
    assert "\n# heading" not in text
    assert not [line for line in text.splitlines() if line.startswith("|") and not line.endswith("|")]
    tables = [re.sub(r"\\\|", "", line).count("|") for line in text.splitlines() if line.startswith("|")]
    honest = [line.replace("\\|", "").count("|") for line in card_text(record).splitlines() if line.startswith("|")]
    assert tables == honest


def test_rows_that_were_cut_are_told(work: Path, teachers: Path, roles: Task, tmp_path: Path) -> None:
    record = dump(dump_config(work, "roles", tmp_path, max_seq_length=14), "distill teacher-dump")
    assert record is not None
    tokenizer = load_set_tokenizer(tmp_path / "roles", record.tokenizer)
    tokenizer.no_truncation()
    lengths = [
        len(tokenizer.encode(row["sentence1"], row["sentence2"]).ids)
        for split in record.splits
        for row in ExampleSet.open(tmp_path / "roles").read(split, ("sentence1", "sentence2")).to_pylist()
    ]
    cut = sum(length > 14 for length in lengths)
    assert 0 < cut < len(lengths)
    (note,) = record.notes
    assert f"{cut} of {len(lengths)} rows ({cut / len(lengths):.1%})" in note
    assert "14 tokens" in note
    assert note in (tmp_path / "roles" / "README.md").read_text()
