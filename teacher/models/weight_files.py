"""Refuses weights under longer names, or rounded to integers, as some programs write them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers.utils import cached_file

from pipeline.errors import TeacherError

SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
# Quantized weights of these types mean nothing without their scales.
ROUNDED = {"I8", "U8", "F8_E4M3", "F8_E5M2"}


def refuse_longer_names(name: str, missing: Sequence[str], unexpected: Sequence[str]) -> None:
    """Raises TeacherError if missing weights of a model exist with a prefix before their names.

    Wrappers of training add such prefixes: ``module.`` DataParallel, ``_orig_mod.`` torch.compile, ``model.``
    Lightning.

    Args:
        name: the name of the model.
        missing: the missing weights.
        unexpected: the weights in its files that the model does not have.
    """
    # Otherwise the message would be about missing weights, although they exist under other names.
    longer = next(((key, other) for key in missing for other in unexpected if other.endswith(f".{key}")), None)
    if longer is None:
        return
    prefix, file = longer[1].removesuffix(longer[0]), str(Path(name) / SAFE_WEIGHTS[0])
    raise TeacherError(
        f"model {name}: its weights have other names than the model's, {longer[1]} for {longer[0]}. Rename them: "
        f'python -c "from safetensors.torch import load_file, save_file; file = {file!r}; '
        f"save_file({{key.removeprefix({prefix!r}): weight for key, weight in load_file(file).items()}}, file, "
        "{'format': 'pt'})\""
    )


def refuse_rounded(name: str, revision: str | None, model: Any) -> None:
    """Raises TeacherError if weights of a model are stored as integers, or in 8 bits, without their scales.

    They would be used unscaled, and the model would predict nonsense. Transformers itself handles a
    ``quantization_config``.
    """
    if getattr(model.config, "quantization_config", None) is not None:
        return
    parameters = [key for key, _ in model.named_parameters()]
    for path in _files(name, revision):
        with safe_open(path, framework="pt") as file:
            rounded = [key for key in file.keys() if file.get_slice(key).get_dtype() in ROUNDED]  # noqa: SIM118
        for key in rounded:
            if any(parameter == key or parameter.endswith(f".{key}") for parameter in parameters):
                raise TeacherError(
                    f"model {name}: its weights are rounded to 8 bits, {key} in {path.name}, without their "
                    "scales. Use the model before quantization."
                )


def _files(name: str, revision: str | None) -> Iterator[Path]:
    for file in SAFE_WEIGHTS:
        found = cached_file(name, file, revision=revision, _raise_exceptions_for_missing_entries=False)
        if found is not None:
            yield from sorted(Path(found).parent.glob("model*.safetensors"))
            return
