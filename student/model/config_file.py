"""Reading the ``config.json`` of a student's folder."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pipeline.errors import ConfigError, IntegrityError
from pipeline.file_names import CONFIG_FILE, RUN_RECORD
from pipeline.parsing import parse_model
from pipeline.record_file import not_student_in, read_record, read_work_record, teacher_in
from student.encoders.specs import Bert
from student.model.architecture import (
    BERT_KEY,
    CONFIGS,
    FORMAT_VERSION,
    EncoderConfig,
    Pretrained,
    StudentConfig,
    TaskConfig,
    TokenLabelConfig,
)
from student.model.weights import students_in


def read_config(path: Path) -> StudentConfig:
    """Reads the ``config.json`` of a student of a task.

    Raises:
        IntegrityError: if it is missing or damaged, or of another format version.
    """
    try:
        values = _own_part(read_record(path))
        if teacher := teacher_in(path.parent):
            raise IntegrityError(f"{path.parent}: {teacher}")
        kind = _kind(values)
        if kind is not None:
            raise IntegrityError(f"{path.parent}: {kind.not_for_texts}")
        # The version is checked before the fields: a newer format would otherwise be reported as unknown keys.
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            raise IntegrityError(f"{path}: format version {version!r}, but this release reads version {FORMAT_VERSION}")
        return parse_model(StudentConfig, values, str(path))
    except FileNotFoundError as error:
        raise IntegrityError(why_none(path)) from error
    except ConfigError as error:
        raise IntegrityError(f"{path}: not a student's config: {error}") from error


def why_none(path: Path) -> str:
    """Returns the reason why a file is missing that every student's folder has."""
    folder = path.parent
    if not folder.exists():
        return f"{folder}: no such folder"
    # A folder without a config is often that of a run in its first epoch, and the message should mention that.
    record = read_work_record(folder / RUN_RECORD) if (folder / RUN_RECORD).is_file() else {}
    if other := not_student_in(folder):
        return f"{folder}: {other}"
    others = students_in(folder)
    if record.get("state") == "running" and not others:
        return f"{folder}: its training has not saved any weights yet. Repeat its command:\n  {record['command']}"
    return f"{folder}: not a student: it has no {path.name}{others}"


def read_encoder_config(path: Path) -> EncoderConfig:
    """Reads the ``config.json`` of a student of any kind.

    Raises:
        IntegrityError: if it is not one.
    """
    kind = _kind_in(path.parent)
    if kind is None:
        return read_config(path)
    try:
        return parse_model(kind, read_record(path), str(path))
    except ConfigError as error:
        raise IntegrityError(str(error)) from error


def read_task_config(path: Path) -> TaskConfig:
    """Reads the ``config.json`` of a student of a task with any kind of row. See `read_config` for errors."""
    config = read_encoder_config(path)
    return config if isinstance(config, StudentConfig | TokenLabelConfig) else read_config(path)


def read_token_label_config(path: Path) -> TokenLabelConfig:
    """Reads the ``config.json`` of a student that labels words.

    Raises:
        IntegrityError: if it is not one.
    """
    config = read_encoder_config(path)
    if not isinstance(config, TokenLabelConfig):
        raise IntegrityError(f"{path.parent}: not a student that labels words (type: token_labels)")
    return config


def is_pretrained(folder: Path) -> bool:
    """Whether a folder contains a pretrained student, rather than one of a task or no readable student."""
    kind = _kind_in(folder)
    return kind is not None and issubclass(kind, Pretrained)


def labels_words(folder: Path) -> bool:
    """Whether a folder holds a student that labels words."""
    return _kind_in(folder) is TokenLabelConfig


def _kind_in(folder: Path) -> type[EncoderConfig] | None:
    try:
        # An unreadable folder has no kind here. Reading it later gives the error with its reason.
        return _kind(read_record(folder / CONFIG_FILE))
    except (FileNotFoundError, IntegrityError):
        return None


def _own_part(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the student's own part of a ``config.json``, without the keys for readers of BERTs."""
    # A BERT's file holds the student's configuration under a key of its own, and other files hold it directly.
    own = values.get(BERT_KEY)
    return own if isinstance(own, dict) else values


def _kind(values: dict[str, Any]) -> type[EncoderConfig] | None:
    """Returns the class of the architecture in a ``config.json``. None for a student of texts, without ``kind``."""
    kind = values.get("kind")
    return CONFIGS.get(kind) if isinstance(kind, str) else None


TOKENIZER_CONFIG_FILE = "tokenizer_config.json"


def bert_json(config: StudentConfig) -> str:
    """Returns the text of the ``config.json`` of a student that is a BERT."""
    encoder = config.encoder
    assert isinstance(encoder, Bert), "only called for a bert"
    rate, names = config.hidden_dropout, config.target.names
    values: dict[str, Any] = {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        "vocab_size": config.num_tokens,
        "hidden_size": encoder.vector_size,
        "num_hidden_layers": encoder.num_hidden_layers,
        "num_attention_heads": encoder.num_attention_heads,
        "intermediate_size": encoder.inner_size,
        "max_position_embeddings": encoder.max_position_embeddings,
        "type_vocab_size": encoder.type_vocab_size,
        "layer_norm_eps": encoder.layer_norm_eps,
        "hidden_act": "gelu",
        "hidden_dropout_prob": rate,
        "attention_probs_dropout_prob": rate,
        "classifier_dropout": rate,
        "initializer_range": encoder.initializer_range,
        "pad_token_id": config.pad_id,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": config.target.type.problem_type,
        "dtype": "float32",
        # The student's own configuration is stored whole, because BERT's keys have no place for the task.
        BERT_KEY: config.model_dump(mode="json"),
    }
    return json.dumps(values, indent=2, ensure_ascii=False)


def tokenizer_config_json(tokenizer: Tokenizer, config: StudentConfig) -> str:
    """Returns a ``tokenizer_config.json`` with which ``AutoTokenizer`` uses ``tokenizer.json`` unchanged."""
    names: dict[str, str | None] = {"pad_token": tokenizer.id_to_token(config.pad_id)}
    if config.special_ids is not None:
        before, _, after = config.special_ids
        names |= {"cls_token": tokenizer.id_to_token(before[0])}
        names |= {"sep_token": tokenizer.id_to_token(after[0])} if after else {}
    values = {
        # BertTokenizer would rebuild the vocabulary by its own rules. This class uses tokenizer.json unchanged.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_seq_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    return json.dumps(values | {key: name for key, name in names.items() if name is not None}, indent=2) + "\n"
