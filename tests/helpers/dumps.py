"""Settings of dumps of the tiny tasks and the tiny corpus that the fixtures write."""

from collections.abc import Mapping
from pathlib import Path

from teacher.corpus.text import Text, open_text
from teacher.settings import DumpCorpus, DumpSettings

TRAIN_ROWS, VALIDATION_ROWS = 96, 40


SIGNALS = ("states", "cls", "attention", "values")


def kept(changes: Mapping[str, object]) -> dict[str, object]:
    """Puts layers (``states="1,2"``) and their codecs (``states_codec="pca-8"``) into the text of ``--keep``."""
    parts = [
        f"{name}={changes[name]}" + (f":{changes[f'{name}_codec']}" if f"{name}_codec" in changes else "")
        for name in SIGNALS
        if name in changes
    ]
    parts += [f"init={changes['init_layers']}"] if "init_layers" in changes else []
    own = {*SIGNALS, *(f"{name}_codec" for name in SIGNALS), "init_layers"}
    others = {name: value for name, value in changes.items() if name not in own}
    return others | ({"keep": " ".join(parts)} if parts else {})


def dump_config(work: Path, task: str, store: Path, **changes: object) -> DumpSettings:
    """Settings that dump a tiny task in a few shards."""
    settings: dict[str, object] = {
        "manifest": work / f"{task}.yaml",
        "data": work / "data",
        "model_name_or_path": str(work / "teachers" / task),
        "store": store,
        "max_seq_length": 32,
        "rows_per_shard": 25,
        "token_vectors": False,
    }
    return DumpSettings.from_flags(**settings | kept(changes))


def corpus_config(work: Path, store: Path, **changes: object) -> DumpSettings:
    """Settings that dump the tiny corpus in a few shards."""
    settings: dict[str, object] = {
        "corpus": "tiny",
        "data": work / "corpus.txt",
        "model_name_or_path": str(work / "teachers" / "mlm"),
        "store": store,
        "max_seq_length": 32,
        "min_seq_length": 4,
        "validation_every": 5,
        "rows_per_shard": 25,
        "num_copies": 2,
    }
    codec = changes.get("codec", "sampled")
    named = {"codec": "sampled-20"} if codec == "sampled" else {}
    return DumpSettings.from_flags(**settings | changes | named)


def vectors_config(work: Path, store: Path, **changes: object) -> DumpSettings:
    """Settings that dump the vectors of the tiny corpus, of the tiny BERT without a head, in a few shards."""
    settings: dict[str, object] = {
        "corpus": "tiny",
        "signal": "vectors",
        "data": work / "corpus.txt",
        "model_name_or_path": str(work / "bert"),
        "store": store,
        "max_seq_length": 32,
        "min_seq_length": 4,
        "validation_every": 5,
        "rows_per_shard": 25,
        "token_vectors": False,
    }
    return DumpSettings.from_flags(**settings | changes)


def text_for(config: DumpSettings) -> Text:
    """The corpus that settings of a dump name, opened."""
    assert isinstance(config.rows, DumpCorpus)
    return open_text(config.rows, config.run.forward.max_seq_length)
