"""Corpora: unlabelled text for masked language modelling, one YAML file each."""

from importlib.resources import files
from pathlib import Path

from pydantic import Field

from pipeline.config import parse_model
from pipeline.errors import ConfigError, did_you_mean
from pipeline.tasks.task import DefaultTeacher, Hub, Manifest, Names, own_manifest, parse_manifest

FOLDER = "corpora"


class Corpus(Manifest):
    """One corpus, as its manifest in ``data_manifests/corpora/`` describes it.

    Attributes:
        columns: names under which a source may hold the text; the first one present is used.
        language: ISO 639-1 code, for cutting into sentences.
    """

    columns: Names = ("text",)
    language: str = Field("en", pattern=r"^[a-z]{2,3}$")
    hub: Hub | None = None
    hub_split: str = "train"
    licence: str = "unknown"
    teacher: DefaultTeacher | None = None


def corpus_names() -> list[str]:
    """Names of the corpora shipped with the package."""
    entries = files("data_manifests").joinpath(FOLDER).iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


def load_corpus(name: str | None = None, manifest: Path | None = None, data: Path | None = None) -> Corpus:
    """Reads a shipped corpus by name or a user's own from a YAML file; a name of one's own goes with ``data``.

    Args:
        name: a shipped corpus, or what to call the text in ``data``.
        manifest: YAML file with a corpus of one's own.
        data: where its text lies, if the user says so.

    Raises:
        ConfigError: for an unknown name or a manifest that does not parse, listing every problem.
    """
    if manifest is not None:
        return own_manifest(Corpus, manifest, name, "--corpus")
    if name is None:
        raise ConfigError("no corpus given: use --corpus NAME (see `distill corpora`) or --manifest FILE")
    if name in corpus_names():
        text = files("data_manifests").joinpath(FOLDER).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
        return parse_manifest(Corpus, text, f"data_manifests/{FOLDER}/{name}.yaml")
    if data is None:
        known = did_you_mean(name, corpus_names())
        raise ConfigError(f"--corpus: unknown corpus {name!r}: {known} For text of your own add --data PATH")
    return parse_model(Corpus, {"name": name}, "--corpus")
