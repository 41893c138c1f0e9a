from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.tasks.task import Hub, corpus_names, load_corpus
from tests.helpers.messages import naming

HUB = {
    "bookcorpus": ("bookcorpus/bookcorpus", "plain_text"),
    "wikipedia": ("wikimedia/wikipedia", "20231101.en"),
    "wikitext": ("Salesforce/wikitext", "wikitext-103-raw-v1"),
}
GOOD = """
name: mine
columns: [body, content]
language: de
hub: {id: me/mine}
"""


def own(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_three_corpora_are_shipped() -> None:
    assert corpus_names() == sorted(HUB)


@pytest.mark.parametrize("name", HUB)
def test_shipped_manifest(name: str) -> None:
    corpus = load_corpus(name)
    assert (corpus.name, corpus.language, corpus.columns, corpus.hub_split) == (name, "en", ("text",), "train")
    assert corpus.hub is not None
    assert (corpus.hub.id, corpus.hub.config) == HUB[name]
    assert corpus.teacher is not None
    assert corpus.teacher.model == "bert-base-uncased"
    assert corpus.licence != "unknown"  # a bad result is printed, too


def test_unknown_name_is_answered_with_the_nearest() -> None:
    nearest = ("'wikitex'", "'wikitext'", "bookcorpus, wikipedia, wikitext")
    with pytest.raises(ConfigError, match=naming("--corpus: ", *nearest, "--data PATH")):
        load_corpus("wikitex")
    with pytest.raises(ConfigError, match=naming("--corpus NAME", "--manifest FILE")):
        load_corpus()


def test_text_of_ones_own_needs_no_manifest(tmp_path: Path) -> None:
    corpus = load_corpus("diary", data=tmp_path)
    assert (corpus.name, corpus.columns, corpus.language, corpus.hub) == ("diary", ("text",), "en", None)
    assert corpus.teacher is None
    assert corpus.licence == "unknown"


def test_data_does_not_change_a_shipped_corpus(tmp_path: Path) -> None:
    assert load_corpus("wikitext", data=tmp_path) == load_corpus("wikitext")


@pytest.mark.parametrize("name", ["on", "null"])
def test_own_text_may_have_a_name_special_in_yaml(name: str, tmp_path: Path) -> None:
    assert load_corpus(name, data=tmp_path).name == name


@pytest.mark.parametrize("name", ["My Diary", "../diary", "7days", ""])
def test_name_that_is_no_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--corpus: name: "):
        load_corpus(name, data=tmp_path)


def test_own_manifest(tmp_path: Path) -> None:
    corpus = load_corpus(manifest=own(tmp_path, GOOD))
    assert (corpus.name, corpus.columns, corpus.language) == ("mine", ("body", "content"), "de")
    assert corpus.hub == Hub(id="me/mine")
    assert load_corpus("mine", own(tmp_path, GOOD)) == corpus
    assert load_corpus(manifest=own(tmp_path, "name: mine\ncolumns: body")).columns == ("body",)
    with pytest.raises(ConfigError, match=naming("--corpus 'yours'", "--manifest", "mine.yaml", "'mine'")):
        load_corpus("yours", own(tmp_path, GOOD))


def test_every_mistake_is_listed_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("columns", "colums").replace("de", "Deutsch").replace("name: mine", "version: 0")
    with pytest.raises(ConfigError) as caught:
        load_corpus(manifest=own(tmp_path, text))
    message = str(caught.value)
    assert "mine.yaml: 4 problems" in message
    assert "'colums'. Did you mean 'columns'?" in message
    assert "'name'" in message
    assert "'Deutsch'" in message
    assert "version: " in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b", "mine.yaml: "),
        ("name: [", "YAML"),
        ("name: mine\ncolumns: []", "columns: "),
        ("name: mine\nhub: {config: raw}", "hub.id"),
    ],
)
def test_wrong_manifest_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=naming("mine.yaml: ", message)):
        load_corpus(manifest=own(tmp_path, text))


def test_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--manifest", "gone.yaml: ")):
        load_corpus(manifest=tmp_path / "gone.yaml")
