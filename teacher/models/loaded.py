"""Models and their tokenizers as transformers loads them: once, from a folder or the hub, every failure told.

Whoever asks a model, for logits, masked tokens, states or vectors, takes a `LoadedModel`; a classifier and a masked LM
are such models of which more is known.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import MODEL_MAPPING, AutoConfig, AutoTokenizer
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from pipeline.errors import ConfigError, DataError, TeacherError
from pipeline.text.reader import TextReader
from pipeline.text.safety import reported
from pipeline.text.tokenizer import frame_ids, vocabulary_size
from pipeline.training.checkpoint import tensors_sha256
from pipeline.training.run_record import FINETUNE_RECORD, read_run_record
from teacher.models.model_folder import require_model_folder

SENTENCE_ENCODER = "sentence_encoder"  # in its result: what the teacher was fine-tuned from, if it is such
# families that number positions from that of the padding token on, and so read fewer than they have
AFTER_PADDING = {
    *("camembert", "data2vec-text", "ibert", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm"),
    *("xlm-roberta", "xlm-roberta-xl", "xmod"),
}


@dataclass(frozen=True)
class LoadedTokenizer:
    """A model's tokenizer.

    Attributes:
        tokenizer: the `tokenizers` tokenizer behind its transformers one.
        pad_id: id that fills up batches.
        mask_id: id of the mask token, if it has one.
        reads_token_types: whether its model takes ``token_type_ids``.
        special_ids: ids that are no part of a text, ascending.
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
        """From texts to ids: the one way for all that its model reads."""
        return TextReader.of(self.tokenizer)

    @property
    def num_special(self) -> int:
        """Number of special tokens around a single sequence."""
        return len(self.frame[0]) + len(self.frame[1])


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode with its tokenizer.

    Attributes:
        name: hub id or folder it was loaded from.
        revision: hub revision, if one was named.
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
        """From texts to ids: the one way for all that the model reads."""
        return self.tokens.reader

    @cached_property
    def weights_sha256(self) -> str:
        """Hash of all weights and buffers, taken once."""
        return weights_sha256(self.model)

    @property
    def num_parameters(self) -> int:
        """Number of the model's parameters."""
        return sum(p.numel() for p in self.model.parameters())


def load_config(name: str, revision: str | None) -> Any:
    """A model's transformers config, from a folder or the hub.

    Raises:
        DataError: if it cannot be found or read.
        TeacherError: if the model's fine-tuning is not finished.
    """
    if (Path(name) / FINETUNE_RECORD).exists() and read_run_record(Path(name) / FINETUNE_RECORD)["state"] != "finished":
        raise TeacherError(f"teacher {name}: its fine-tuning is not finished; repeat `distill finetune-teacher` first")
    require_model_folder(name)
    with reported(_failure(name, "config"), DataError):
        return AutoConfig.from_pretrained(name, revision=revision)


def is_sentence_encoder(name: str, revision: str | None) -> bool:
    """Whether a model that can be loaded was made for vectors of sentences, as sentence-transformers says it."""
    return cached_file(name, "modules.json", revision=revision, _raise_exceptions_for_missing_entries=False) is not None


def sentence_encoder_of(name: str) -> str | None:
    """The encoder of sentences that a teacher in a folder was fine-tuned from; None if it was no such."""
    path = Path(name) / FINETUNE_RECORD
    return read_run_record(path).get("result", {}).get(SENTENCE_ENCODER) if path.exists() else None


def load_tokenizer(name: str, revision: str | None, config: Any, max_seq_length: int) -> LoadedTokenizer:
    """A model's tokenizer, which has an id for words and no id that the model has not.

    Args:
        name: hub id or folder.
        revision: hub revision.
        config: the model's transformers config.
        max_seq_length: longest input that the model will be given, in tokens.

    Raises:
        ConfigError: if the model does not read such long inputs.
        DataError: if the tokenizer cannot be found or read.
        TeacherError: if it has no fast version, or does not fit the model.
    """
    with reported(_failure(name, "tokenizer"), DataError):
        wrapped = AutoTokenizer.from_pretrained(name, revision=revision)
    tokenizer = getattr(wrapped, "backend_tokenizer", None)
    if tokenizer is None:
        raise TeacherError(f"teacher {name}: its tokenizer has no fast version (tokenizer.json), which distill needs")
    special_ids = tuple(sorted(set(wrapped.all_special_ids)))
    if len(set(tokenizer.get_vocab().values()).difference(special_ids)) <= 1:  # made up by transformers; T5's has "▁"
        files = ", ".join(wrapped.vocab_files_names.values())
        raise DataError(
            f"model {name}: has no vocabulary, every word would be unknown: none of {files} was found; "
            "`tokenizer.save_pretrained` writes them beside the model"
        )
    _check_fit(name, config, tokenizer, max_seq_length)
    return LoadedTokenizer(
        tokenizer=tokenizer,
        pad_id=int(wrapped.pad_token_id or 0),
        mask_id=wrapped.mask_token_id,
        reads_token_types="token_type_ids" in wrapped.model_input_names and _takes_token_types(config),
        special_ids=special_ids,
        frame=frame_ids(tokenizer),
    )


def load_weights(auto_model: Any, name: str, revision: str | None, **settings: Any) -> tuple[Any, list[str]]:
    """A model in evaluation mode with float32 weights, and the names of the weights that it should have and has not.

    A weight of another size is none: where ``settings`` let it pass, the model has a new one.

    Args:
        auto_model: the transformers class that makes it, such as ``AutoModelForMaskedLM``.
        name: hub id or folder.
        revision: hub revision.
        settings: what else ``from_pretrained`` is told.

    Raises:
        DataError: if the weights cannot be found or read.
    """
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # it reports a new head as missing weights
    with reported(_failure(name, "weights"), DataError):
        model, info = auto_model.from_pretrained(
            name,
            revision=revision,
            dtype=torch.float32,
            output_loading_info=True,
            use_safetensors=True,  # nothing is read with pickle
            **settings,
        )
    other_sizes = [weight for weight, *_ in info["mismatched_keys"]]
    return model.eval(), sorted({*info["missing_keys"], *other_sizes})


def require_encoder(name: str, missing: Sequence[str], prefix: str = "") -> None:
    """Raises TeacherError if a model lacks weights of its encoder, of which a pooler is no part.

    Args:
        name: of the model.
        missing: the weights that it lacks, see `load_weights`.
        prefix: what the names of the encoder's weights begin with.
    """
    lost = [w for w in missing if w.startswith(prefix) and not w.startswith(f"{prefix}pooler.")]
    if lost:
        raise TeacherError(
            f"teacher {name}: has no weights, or weights of another size, for {', '.join(lost[:3])}: it is no trained "
            "encoder; take a folder that `save_pretrained` wrote after training"
        )


def weights_sha256(model: torch.nn.Module) -> str:
    """Hash of all weights and buffers by name, independent of the files they came from."""
    return tensors_sha256(sorted(model.state_dict().items()))


def _check_fit(name: str, config: Any, tokenizer: Tokenizer, max_seq_length: int) -> None:
    """Checks that the model has a row for every token and a place for every position."""
    size = vocabulary_size(tokenizer)
    if size > config.vocab_size:
        raise TeacherError(
            f"teacher {name}: its tokenizer has ids up to {size - 1}, but the model knows only {config.vocab_size}; "
            "tokenizer and model do not belong together"
        )
    require_positions(name, config, max_seq_length)


def require_positions(name: str, config: Any, max_seq_length: int) -> None:
    """Raises ConfigError unless a model with this transformers config reads so many tokens."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and config.model_type in AFTER_PADDING:
        positions -= config.pad_token_id + 1
    if positions is not None and max_seq_length > positions:
        raise ConfigError(f"--max-seq-length: {max_seq_length} tokens, but {name} reads at most {positions}")


def _takes_token_types(config: Any) -> bool:
    """Whether a model tells two sentences apart by ``token_type_ids``, whatever its tokenizer offers."""
    classes = MODEL_MAPPING[type(config)]  # several for a few families
    model = classes[0] if isinstance(classes, tuple) else classes
    return "token_type_ids" in inspect.signature(model.forward).parameters and getattr(config, "type_vocab_size", 2) > 1


def _failure(name: str, part: str) -> str:
    place = "" if Path(name).is_dir() else " (there is no such folder; the hub was asked)"
    return f"model {name}: its {part} cannot be loaded{place}"
