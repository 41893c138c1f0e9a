"""Loads the initial weights of a bert: layers of its teacher or of another BERT, without building that model.

A BERT's weights are in one file, or in several that an index names, as transformers writes large models.

Shapes: V vocabulary.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from pipeline import console
from pipeline.errors import ConfigError, IntegrityError
from pipeline.file_names import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from pipeline.files import read_small_file, sha256
from pipeline.parsing import parse_model
from pipeline.record_file import MAX_RECORD_BYTES
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.signals.side_files import INIT_FILE
from pipeline.text.tokenizer import example
from pipeline.training.checkpoint import check_tensors, tensors_sha256
from pipeline.untrusted import parse_json
from student.encoders.bert import BertEncoder
from student.encoders.encoder import Encoder
from student.encoders.specs import Bert, EncoderSpec
from student.settings import Start

INDEX_FILE = "model.safetensors.index.json"
ADVICE = "Give --init FOLDER_OF_A_BERT, or --init noise"
# Checkpoints from before 2019 use TensorFlow's names, and many on the hub were never converted.
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
LAYER = "encoder.layer."
# Weights are read one at a time on demand, since a whole teacher may not fit the memory.
Weights = Mapping[str, Callable[[], torch.Tensor]]


class BertFile(BaseModel):
    """Reads the sizes in a BERT's ``config.json``. Other types of models are refused."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model_type: Literal["bert"]
    # A model with another activation or type of positions would load without an error but compute something else.
    hidden_act: Literal["gelu"] = "gelu"
    position_embedding_type: Literal["absolute"] = "absolute"
    hidden_size: int
    vocab_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12


@dataclass(frozen=True)
class BertStart:
    """Layers of a BERT in its folder, or in the folder of a set with a copy of them.

    Attributes:
        folder: the folder of the BERT or of the set.
        files: the files with the weights.
        layers: their numbers, from 1, in the order in which the student has them.
        inherited: the sizes of the BERT.
    """

    folder: Path
    files: tuple[Path, ...]
    layers: tuple[int, ...]
    inherited: Bert

    @property
    def sha256(self) -> str:
        """Returns the hash of the file of the weights, or of the hashes of several files."""
        first, *others = map(sha256, self.files)
        return hashlib.sha256("".join([first, *others]).encode()).hexdigest() if others else first

    @property
    def words(self) -> str:
        """A description for messages."""
        return f"layers {', '.join(map(str, self.layers))} of {self.folder}"


def bert_start(encoder: EncoderSpec, start: Start, logit_set: ExampleSet) -> BertStart | None:
    """Returns the BERT that a student starts from, or None if the student is not a bert or starts from noise.

    With several sets, the teacher of the first set counts.

    Raises:
        ConfigError: if there is no such BERT, or if it is another model, lacks these layers, or has other tokens.
        IntegrityError: if its files are damaged.
    """
    first = logit_set.sets[0]
    if not isinstance(encoder, Bert):
        return None
    # RoBERTa's tokenizer gives both sentences type 0, and a BERT would then see no second sentence.
    if first.record.is_pair and not any(example(Tokenizer.from_str(first.tokenizer_json()), is_pair=True).type_ids):
        raise ConfigError(
            f"--embedding bert: the tokenizer of {first.root} gives both sentences of a pair the same type, unlike a "
            "BERT's. Choose another --embedding."
        )
    if start.init == "noise":
        return None
    folder = start.folder or _teachers_folder(first)
    # A set may contain its teacher's layers, so that a student can start from them without the teacher's folder.
    init = first.record.signals.init
    if init is not None and folder == first.root:
        init.check_files(folder)
        files: tuple[Path, ...] = (folder / INIT_FILE,)
        sizes = parse_model(BertFile, {"model_type": "bert"} | init.shape.model_dump(), str(folder))
        layers = _layers(encoder, start, init.layers, folder)
    else:
        sizes, files = _read_sizes(folder), weight_files(folder)
        layers = _layers(encoder, start, tuple(range(1, sizes.num_hidden_layers + 1)), folder)
        # Only the teacher's own folder must match the record. A BERT that the user names only needs the same tokens.
        (_check_weights if start.folder is None else _check_vocabulary)(folder, first)
    own = sizes.model_dump(include=set(Bert.model_fields)) | {"vector_size": sizes.hidden_size}
    inherited = parse_model(Bert, own | {"num_hidden_layers": len(layers)}, str(folder))
    return BertStart(folder, files, layers, inherited)


def copy_layers(start: BertStart, encoder: Encoder) -> None:
    """Copies the initial embeddings, layers and pooler to a bert. Its head does not change.

    Raises:
        IntegrityError: if the file is damaged or contains something else.
    """
    assert isinstance(encoder, BertEncoder), type(encoder)
    with open_weights(start.files) as weights:
        stored = {_plain(name): read for name, read in weights.items()}
        for name, parameter in encoder.named_parameters():
            source = name
            if name.startswith(LAYER):
                number, rest = name.removeprefix(LAYER).split(".", 1)
                # Users count layers from 1, since layer 0 of the stored states is the embedding. Files count from 0.
                source = f"{LAYER}{start.layers[int(number)] - 1}.{rest}"
            # The pooler may be missing, because BERTs without a classification head have no pooler.
            if source in stored:
                _copy(stored[source](), parameter, source)
            elif not name.startswith("pooler."):
                raise ValueError(f"it has no {source}")
    if encoder.pooler is not None and "pooler.dense.weight" not in stored:
        console.note(
            f"{start.folder}: has no pooler, because it was not a classifier. The student's pooler starts from noise"
        )


def spread_evenly(count: int, of: int) -> tuple[int, ...]:
    """Returns so many evenly spaced numbers up to the last one: 3 of 12 are 4, 8, 12."""
    # Even spacing with the last layer follows PKD (Sun et al. 2019), whose students skip layers.
    return tuple(round((k + 1) * of / count) for k in range(count))


def _teachers_folder(first: ExampleSet) -> Path:
    """Returns the folder of the teacher's weights: its own, or that of the set."""
    teacher = first.record.teacher
    folder, why = Path(teacher.name), ""
    # Imported answers only have the name of their teacher, and nothing proves which weights made them.
    if teacher.is_imported:
        why = f"the weights of the teacher of {first.root} are unknown, because its answers were imported"
    elif not weight_files(folder):
        if first.record.signals.init is not None:
            return first.root
        why = f"the teacher of {first.root} is {teacher.name}, and there is no {WEIGHTS_FILE} in a folder of this name"
    if why:
        raise ConfigError(f"--embedding bert: starts from its teacher's layers, but {why}. {ADVICE}")
    return folder


def _read_sizes(folder: Path) -> BertFile:
    path = folder / CONFIG_FILE
    try:
        values: Any = parse_json(read_small_file(path, MAX_RECORD_BYTES, may_be_link=True))
    except FileNotFoundError as error:
        raise ConfigError(f"{folder}: not the folder of a BERT: it has no {CONFIG_FILE}. {ADVICE}") from error
    except ValueError as error:
        raise IntegrityError(f"{path}: cannot be read: {error}") from error
    # The model type is checked before the sizes, so that the message names the real problem.
    kind = values.get("model_type") if isinstance(values, dict) else None
    if kind != "bert":
        raise ConfigError(f"{folder}: its model_type is {kind!r}, but layers can only be copied from a BERT. {ADVICE}")
    if not weight_files(folder):
        raise ConfigError(f"{folder}: has neither {WEIGHTS_FILE} nor several files with an index. {ADVICE}")
    return parse_model(BertFile, values, str(path))


def _layers(encoder: Bert, start: Start, there: tuple[int, ...], folder: Path) -> tuple[int, ...]:
    """Returns the numbers of the layers that the student starts from."""
    if start.init_layers is None:
        is_given, wanted = "num_hidden_layers" in encoder.model_fields_set, encoder.num_hidden_layers
        wanted = wanted if is_given else min(wanted, len(there))
        if wanted > len(there):
            raise ConfigError(f"--num-hidden-layers {wanted}: {folder} has only {len(there)} layers. {ADVICE}")
        return tuple(there[place - 1] for place in spread_evenly(wanted, len(there)))
    layers = tuple(map(int, start.init_layers.split(",")))
    if not set(layers) <= set(there):
        named = ", ".join(map(str, there))
        raise ConfigError(f"--init-layers {start.init_layers}: {folder} has {len(there)} layers: {named}")
    return layers


def _check_weights(folder: Path, first: ExampleSet) -> None:
    """Checks that the teacher's folder still contains the weights that made the answers."""
    with open_weights(weight_files(folder)) as weights:
        # Hashes are of float32 numbers, so a folder saved in half precision can still match.
        actual = tensors_sha256((name, read().float()) for name, read in sorted(weights.items()))
    if actual != first.record.teacher.weights_sha256:
        raise ConfigError(
            f"--embedding bert: starts from its teacher's layers, but the weights in {folder} differ from the "
            f"record of {first.root}. To use them anyway, give --init {folder}"
        )


def _check_vocabulary(folder: Path, first: ExampleSet) -> None:
    """Checks that a BERT and the set have the same ids of tokens."""
    path = folder / TOKENIZER_FILE
    try:
        there = Tokenizer.from_file(str(path)).get_vocab()
    # The tokenizers library raises plain Exception for every kind of bad file.
    except Exception as error:
        raise ConfigError(f"--init {folder}: its {TOKENIZER_FILE} cannot be read: {error}") from error
    # Vocabularies are compared and not files, since versions of a library write the same tokenizer differently.
    if there != Tokenizer.from_str(first.tokenizer_json()).get_vocab():
        raise ConfigError(f"--init {folder}: its {TOKENIZER_FILE} has other tokens than {first.root}")


def _plain(name: str) -> str:
    """Returns a weight's name without the prefix of a whole model, and in the current spelling."""
    name = name.removeprefix("bert.")
    for old, new in OLD_NAMES.items():
        name = name.replace(old, new)
    return name


@torch.no_grad()
def _copy(source: torch.Tensor, parameter: torch.nn.Parameter, name: str) -> None:
    """Copies a weight. One vocabulary may have additional rows without tokens."""
    # Some BERTs pad their vocabulary to a multiple of 64, which adds rows that no token uses.
    rows = min(len(source), len(parameter))
    if source.shape[1:] != parameter.shape[1:] or (len(source) != len(parameter) and "word_embeddings" not in name):
        raise ValueError(f"{name} has the shape {tuple(source.shape)}, not {tuple(parameter.shape)}")
    if not source.isfinite().all():
        raise ValueError(f"{name} contains numbers that are not finite")
    parameter[:rows] = source[:rows]


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Returns the files of the weights in a BERT's folder. Empty without a weights file and without an index.

    Raises:
        IntegrityError: if an index names no files of this folder.
    """
    if (folder / WEIGHTS_FILE).is_file():
        return (folder / WEIGHTS_FILE,)
    path = folder / INDEX_FILE
    if not path.is_file():
        return ()
    try:
        index: Any = parse_json(read_small_file(path, MAX_RECORD_BYTES, may_be_link=True))
        names = sorted(set(index["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"{path}: not an index of weights: {error!r}") from error
    # An index from elsewhere could name files outside its folder, so only plain names are accepted.
    wrong = [name for name in names if not isinstance(name, str) or name != Path(name).name]
    wrong = wrong or [name for name in names if not (name.endswith(".safetensors") and (folder / name).is_file())]
    if wrong or not names:
        raise IntegrityError(
            f"{path}: names {wrong[:1] or 'nothing'}, but there is no such file of weights in its folder"
        )
    return tuple(folder / name for name in names)


@contextmanager
def open_weights(files: tuple[Path, ...]) -> Iterator[Weights]:
    """Yields a function per weight that reads it from the files. They are valid within the block.

    Raises:
        IntegrityError: here or in the block, if a file is damaged.
    """
    try:
        with ExitStack() as stack:
            weights: dict[str, Callable[[], torch.Tensor]] = {}
            for path in files:
                # Damage is reported before any weight is copied, otherwise the student would be half overwritten.
                check_tensors(path)
                file = stack.enter_context(safe_open(path, framework="pt"))
                weights |= {name: partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118
            yield weights
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise IntegrityError(f"{', '.join(map(str, files))}: not the weights of a BERT: {error}") from error
