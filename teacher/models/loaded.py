"""Loads models and tokenizers with transformers, from a folder or the hub, and sets the precision they run in.

Weights under longer names, or rounded to integers as some programs write them, are refused. All code that runs a model
uses a `LoadedModel`. Classifiers, masked LMs and sentence encoders are subclasses.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import MODEL_MAPPING, AutoConfig, AutoTokenizer
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from pipeline.errors import ConfigError, DataError, TeacherError
from pipeline.file_names import FINETUNE_RECORD
from pipeline.files import refuse_lfs_pointer
from pipeline.record_file import read_work_record
from pipeline.tasks.task import HUB_ID
from pipeline.text.text_to_ids import TextReader
from pipeline.text.tokenizer import frame_ids, reported, vocabulary_size
from pipeline.training.checkpoint import tensors_sha256
from pipeline.untrusted import parse_json

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# Key of a run's result: the sentence encoder the teacher was fine-tuned from.
SENTENCE_ENCODER = "sentence_encoder"
# The same for the hub id of the model that the teacher was fine-tuned from.
BASE_MODEL = "base_model"
# These families number positions from pad_token_id + 1 on, so the first rows of their position table are never used.
AFTER_PADDING = {
    *("camembert", "data2vec-text", "ibert", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm"),
    *("xlm-roberta", "xlm-roberta-xl", "xmod"),
}

SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
# Quantized weights of these types mean nothing without their scales.
ROUNDED = {"I8", "U8", "F8_E4M3", "F8_E5M2"}


def refuse_longer_names(name: str, missing: Sequence[str], unexpected: Sequence[str]) -> None:
    """Raises TeacherError if missing weights of a model exist with a prefix before their names.

    Wrappers of training add such prefixes: ``module.`` DataParallel, ``_orig_mod.`` torch.compile, ``model.``
    Lightning.
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
    found = (
        cached_file(name, file, revision=revision, _raise_exceptions_for_missing_entries=False) for file in SAFE_WEIGHTS
    )
    first = next((path for path in found if path is not None), None)
    for path in sorted(Path(first).parent.glob("model*.safetensors")) if first else ():
        with safe_open(path, framework="pt") as file:
            rounded = [key for key in file.keys() if file.get_slice(key).get_dtype() in ROUNDED]  # noqa: SIM118
        for key in rounded:
            if any(parameter == key or parameter.endswith(f".{key}") for parameter in parameters):
                raise TeacherError(
                    f"model {name}: its weights are rounded to 8 bits, {key} in {path.name}, without their "
                    "scales. Use the model before quantization."
                )


CONFIG, ADAPTER = "config.json", "adapter_config.json"


@dataclass(frozen=True)
class LoadedTokenizer:
    """A model's tokenizer.

    Attributes:
        tokenizer: the `tokenizers` tokenizer behind its transformers one.
        pad_id: the id for padding.
        mask_id: id of the mask token, if it has one.
        reads_token_types: whether its model uses ``token_type_ids``.
        special_ids: ids that are not part of a text, ascending.
        frame: special ids before and after a single sequence.
    """

    tokenizer: Tokenizer
    pad_id: int
    mask_id: int | None
    reads_token_types: bool
    special_ids: tuple[int, ...]
    frame: tuple[list[int], list[int]]

    @cached_property
    def reader(self) -> TextReader:
        """The reader from texts to ids for all inputs of its model."""
        return TextReader.of(self.tokenizer)

    @property
    def num_special(self) -> int:
        """Number of special tokens around a single sequence."""
        return len(self.frame[0]) + len(self.frame[1])


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode with its tokenizer.

    Attributes:
        name: its hub id or folder.
        revision: its hub revision, if one was given.
        model: the transformers model, float32 weights.
        tokens: its tokenizer.
    """

    name: str
    revision: str | None
    model: Any
    tokens: LoadedTokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """The `tokenizers` tokenizer behind its transformers one."""
        return self.tokens.tokenizer

    @property
    def reader(self) -> TextReader:
        """The reader from texts to ids for all inputs of the model."""
        return self.tokens.reader

    @cached_property
    def weights_sha256(self) -> str:
        """Hash of all weights and buffers, computed once."""
        return weights_sha256(self.model)

    @property
    def base_model(self) -> str | None:
        """The hub id of the model that it started from, if it is known."""
        return base_model_of(self.name)

    @property
    def num_parameters(self) -> int:
        """Number of the model's parameters."""
        return sum(p.numel() for p in self.model.parameters())


def load_config(name: str, revision: str | None) -> Any:
    """Returns a model's transformers config, from a folder or the hub.

    Raises:
        DataError: if it cannot be found or read.
        TeacherError: if the model's fine-tuning is not finished.
    """
    if (Path(name) / FINETUNE_RECORD).exists() and read_work_record(Path(name) / FINETUNE_RECORD)[
        "state"
    ] != "finished":
        raise TeacherError(f"teacher {name}: its fine-tuning is not finished. Repeat `distill finetune-teacher` first.")
    require_model_folder(name)
    with reported(_failure(name, "config"), DataError):
        return AutoConfig.from_pretrained(name, revision=revision)


def is_sentence_encoder(name: str, revision: str | None) -> bool:
    """Whether a loadable model is a sentence encoder, by its file of sentence-transformers."""
    return cached_file(name, "modules.json", revision=revision, _raise_exceptions_for_missing_entries=False) is not None


def sentence_encoder_of(name: str) -> str | None:
    """Returns the sentence encoder that a teacher in a folder was fine-tuned from, or None."""
    path = Path(name) / FINETUNE_RECORD
    return read_work_record(path).get("result", {}).get(SENTENCE_ENCODER) if path.exists() else None


def base_model_of(name: str) -> str | None:
    """Returns a model's hub id, or for a fine-tuned teacher in a folder that of the model it started from."""
    folder = Path(name)
    if (folder / FINETUNE_RECORD).exists():
        base: str | None = read_work_record(folder / FINETUNE_RECORD).get("result", {}).get(BASE_MODEL)
        return base
    # A folder may look like a hub id, such as teachers/mrpc, so the file system decides.
    return None if folder.exists() or not re.match(HUB_ID, name) else name


def load_tokenizer(name: str, revision: str | None, config: Any, max_seq_length: int) -> LoadedTokenizer:
    """Returns a model's tokenizer, which has words, and only ids that the model has.

    Raises:
        ConfigError: if the model does not support such long inputs.
        DataError: if the tokenizer cannot be found or read.
        TeacherError: if it has no fast version, or does not fit the model.
    """
    with reported(_failure(name, "tokenizer"), DataError):
        wrapped = AutoTokenizer.from_pretrained(name, revision=revision)
    tokenizer = getattr(wrapped, "backend_tokenizer", None)
    if tokenizer is None:
        raise TeacherError(f"teacher {name}: its tokenizer has no fast version (tokenizer.json), which distill needs")
    special_ids = tuple(sorted(set(wrapped.all_special_ids)))
    # Without vocabulary files, transformers silently makes an empty tokenizer. T5's has the single entry "▁".
    if len(set(tokenizer.get_vocab().values()).difference(special_ids)) <= 1:
        files = ", ".join(wrapped.vocab_files_names.values())
        raise DataError(
            f"model {name}: has no vocabulary, so every word would be unknown: none of {files} was found. "
            "`tokenizer.save_pretrained` writes them next to the model"
        )
    size = vocabulary_size(tokenizer)
    if size > config.vocab_size:
        raise TeacherError(
            f"teacher {name}: its tokenizer has ids up to {size - 1}, but the model has only "
            f"{config.vocab_size}. Tokenizer and model do not belong together"
        )
    require_positions(name, config, max_seq_length)
    # Sets, windows and students keep the beginning of a text.
    if wrapped.truncation_side != "right":
        raise TeacherError(
            f"teacher {name}: its tokenizer truncates texts on the {wrapped.truncation_side}, but distill "
            "truncates them on the right. If its texts are short, set `truncation_side` to right in its "
            "tokenizer_config.json"
        )
    # Whether the model uses token types, independently of what its tokenizer offers.
    classes = MODEL_MAPPING[type(config)]  # several for a few families
    model = classes[0] if isinstance(classes, tuple) else classes
    is_taken = (
        "token_type_ids" in inspect.signature(model.forward).parameters and getattr(config, "type_vocab_size", 2) > 1
    )
    return LoadedTokenizer(
        tokenizer=tokenizer,
        pad_id=int(wrapped.pad_token_id or 0),
        mask_id=wrapped.mask_token_id,
        reads_token_types="token_type_ids" in wrapped.model_input_names and is_taken,
        special_ids=special_ids,
        frame=frame_ids(tokenizer),
    )


def load_weights(auto_model: Any, name: str, revision: str | None, **settings: Any) -> tuple[Any, list[str]]:
    """Returns a model in evaluation mode with float32 weights, and the names of missing weights.

    A weight of another size counts as missing. If ``settings`` allow it, the model has a new one.

    Raises:
        DataError: if the weights cannot be found or read.
        TeacherError: if a weight is NaN or Inf, rounded to 8 bits, or exists under a longer name.
    """
    transformers_logging.disable_progress_bar()
    # Otherwise it warns about a new head as missing weights.
    transformers_logging.set_verbosity_error()
    with reported(_failure(name, "weights"), DataError):
        model, info = auto_model.from_pretrained(
            name,
            revision=revision,
            dtype=torch.float32,
            output_loading_info=True,
            use_safetensors=True,  # a pickle could run any code
            **settings,
        )
    other_sizes = [weight for weight, *_ in info["mismatched_keys"]]
    missing = sorted({*info["missing_keys"], *other_sizes})
    refuse_longer_names(name, missing, sorted(info["unexpected_keys"]))
    refuse_rounded(name, revision, model)
    wrong = [key for key, weight in model.named_parameters() if key not in missing and not weight.isfinite().all()]
    # They come from fp16 overflows during training. The first batch would show NaN without the reason.
    if wrong:
        raise TeacherError(f"model {name}: its weights contain NaN or Inf, in {', '.join(wrong[:3])}. Save it again.")
    return model.eval(), missing


def require_encoder(name: str, missing: Sequence[str], prefix: str = "") -> None:
    """Raises TeacherError if a model lacks weights of its encoder, other than a pooler, whose names have a prefix."""
    lost = [w for w in missing if w.startswith(prefix) and not w.startswith(f"{prefix}pooler.")]
    if lost:
        raise TeacherError(
            f"teacher {name}: has no weights, or weights of another size, for {', '.join(lost[:3])}: it is not "
            "a trained encoder. Use a folder that `save_pretrained` wrote after training."
        )


def weights_sha256(model: torch.nn.Module) -> str:
    """Returns the hash of all weights and buffers by name, independent of their files."""
    # Sorted by name: the same weights have one hash, no matter how a file is sharded or ordered.
    return tensors_sha256(sorted(model.state_dict().items()))


@contextmanager
def inference_mode(device: torch.device, precision: str) -> Iterator[None]:
    """Turns gradients off, and runs matrix products in ``precision``. Weights are converted once per block."""
    dtype = DTYPES[precision]
    # no_grad() and not inference_mode(): tensors of the latter cannot be used in a later training step.
    with torch.no_grad(), torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
        yield


def keep_head_in_float32(model: Any) -> None:
    """Makes a classifier compute its layers after the encoder in float32, independent of `inference_mode`.

    These few products take no time, and their rounding errors directly affect the logits.
    `tests/benchmarks/batching.py` prints the divergence from float32.
    """
    encoder = model.base_model
    head = [] if encoder is model else [part for part in model.children() if part is not encoder]
    if getattr(encoder, "pooler", None) is not None:
        head.append(encoder.pooler)

    def in_float32(forward: Callable[..., Any], hidden: torch.Tensor, *more: Any, **named: Any) -> Any:
        with torch.autocast(hidden.device.type, enabled=False):
            return forward(hidden.float(), *more, **named)

    for part in head:
        # Patching forward keeps the module itself, so that names of weights, and thereby their hash, do not change.
        part.forward = partial(in_float32, part.forward)


def require_model_folder(name: str) -> None:
    """Raises DataError for a folder that does not exist, has its model elsewhere, or has another format.

    A hub id is accepted without checks.
    """
    folder = Path(name)
    if name.startswith((".", "/")) and not folder.exists():
        raise DataError(f"model {name}: no such folder")
    # Without this check safetensors would complain about a broken header, which does not suggest `git lfs pull`.
    for path in [*folder.glob("*.json"), *folder.glob("*.safetensors")]:
        refuse_lfs_pointer(path)
    if _has(folder, ADAPTER):
        raise DataError(
            f"model {name}: contains an adapter (such as LoRA), not a model. Merge both with `peft`: "
            f"AutoPeftModelForSequenceClassification.from_pretrained({name!r}, "
            "num_labels=NUMBER).merge_and_unload().save_pretrained(OTHER_FOLDER), and save the tokenizer in "
            "that folder, too"
        )
    if folder.is_dir() and not _has(folder, CONFIG):
        paths = [*folder.glob(f"*/{CONFIG}"), *folder.glob(f"*/*/{CONFIG}")]
        models = [path.parent for path in paths if _has(path.parent, *SAFE_WEIGHTS)]
        if models:  # checkpoints of `Trainer`, modules of old sentence-transformers, or an unpacked archive
            names = ", ".join(str(path) for path in sorted(models, key=lambda path: (len(path.name), path.name)))
            raise DataError(f"model {name}: has no {CONFIG}, but there are models in it. Name one of them: {names}")
    if _has(folder, *PICKLED_WEIGHTS) and not _has(folder, *SAFE_WEIGHTS):
        raise DataError(
            f"model {name}: has its weights as a pickle ({PICKLED_WEIGHTS[0]}), which may hold any program and is not "
            f'read. If you trust it, convert it: python -c "from transformers import {_architecture(folder)} as Model; '
            f'Model.from_pretrained({name!r}).save_pretrained({name!r})"'
        )


def require_positions(name: str, config: Any, max_seq_length: int) -> None:
    """Raises ConfigError unless a model with this transformers config supports so many tokens."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and config.model_type in AFTER_PADDING:
        # RoBERTa's config has 514 positions, but the model reads at most 512 tokens.
        positions -= config.pad_token_id + 1
    if positions is not None and max_seq_length > positions:
        raise ConfigError(f"--max-seq-length: {max_seq_length} tokens, but {name} supports at most {positions}")


def _failure(name: str, part: str) -> str:
    place = "" if Path(name).is_dir() else " (there is no such folder, and the hub does not have it)"
    return f"model {name}: its {part} cannot be loaded{place}"


def _has(folder: Path, *files: str) -> bool:
    return any((folder / file).exists() for file in files)


def _architecture(folder: Path) -> str:
    """Returns the class in transformers from its config, or that of classifiers."""
    try:
        first = parse_json((folder / CONFIG).read_bytes())["architectures"][0]
    except (OSError, ValueError, LookupError, TypeError):
        first = None
    is_name = isinstance(first, str) and first.isidentifier()
    return first if is_name else "AutoModelForSequenceClassification"
