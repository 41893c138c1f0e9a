"""Folders that hold something of a model and are none that can be loaded, each refused with what to do about it."""

from pathlib import Path

from pipeline.errors import DataError
from pipeline.untrusted import parse_json

CONFIG, ADAPTER = "config.json", "adapter_config.json"
SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def require_model_folder(name: str) -> None:
    """Raises DataError for a folder that is not there, has its model elsewhere, or holds what is not read.

    Args:
        name: a folder; a hub id passes.
    """
    folder = Path(name)
    if name.startswith((".", "/")) and not folder.exists():
        raise DataError(f"model {name}: no such folder")
    if _has(folder, ADAPTER):
        raise DataError(
            f"model {name}: holds an adapter (LoRA or its like), not a model. Merge the two, with `peft`: "
            f"AutoPeftModelForSequenceClassification.from_pretrained({name!r}, num_labels=NUMBER).merge_and_unload()"
            ".save_pretrained(OTHER_FOLDER), and save the tokenizer in that folder, too"
        )
    if folder.is_dir() and not _has(folder, CONFIG):
        models = [path.parent for path in folder.glob(f"*/{CONFIG}") if _has(path.parent, *SAFE_WEIGHTS)]
        if models:  # of `Trainer`, checkpoints by their steps; of old sentence-transformers, the first module
            names = ", ".join(str(path) for path in sorted(models, key=lambda path: (len(path.name), path.name)))
            raise DataError(f"model {name}: has no {CONFIG}, but there are models in it; name one of them: {names}")
    if _has(folder, *PICKLED_WEIGHTS) and not _has(folder, *SAFE_WEIGHTS):
        raise DataError(
            f"model {name}: has its weights as a pickle ({PICKLED_WEIGHTS[0]}), which may hold any program and is not "
            f'read. If you trust it, convert it: python -c "from transformers import {_architecture(folder)} as Model; '
            f'Model.from_pretrained({name!r}).save_pretrained({name!r})"'
        )


def _has(folder: Path, *files: str) -> bool:
    return any((folder / file).exists() for file in files)


def _architecture(folder: Path) -> str:
    """The class in transformers that its config names; that of classifiers if it names none."""
    try:
        first = parse_json((folder / CONFIG).read_bytes())["architectures"][0]
    except (OSError, ValueError, LookupError, TypeError):
        first = None
    is_name = isinstance(first, str) and first.isidentifier()
    return first if is_name else "AutoModelForSequenceClassification"
