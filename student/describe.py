"""Describes a student: architecture, parameters by part, bytes, multiply-adds."""

from pathlib import Path
from typing import Any

import torch

from pipeline.errors import ConfigError
from pipeline.file_names import CONFIG_FILE
from pipeline.tasks.target import make_target
from pipeline.tasks.task import load_task
from student.lessons import KINDS
from student.model.architecture import Facts, TaskConfig
from student.model.build_config import build_config
from student.model.card import summary
from student.model.config_file import read_task_config
from student.model.student import bytes_on_disk, num_bytes, num_parameters
from student.settings import load_recipe
from student.source_settings import OneTask

# A recipe names a task but no set, so the vocabulary of the usual teacher stands in for the set's.
BERT_BASE_UNCASED: Facts = {"vocabulary_size": 30522, "pad_id": 0, "special_ids": ((101,), (102,), (102,))}


def describe(run_or_recipe: str) -> dict[str, Any]:
    """Describes the student of a run, or of a recipe with the vocabulary of bert-base-uncased.

    Returns: ``architecture`` in words, ``parameters`` by part with their ``total``, ``bytes`` of the weights (for a
        recipe in float32), and ``multiply_adds`` ``per_token`` and ``per_input``. Students with attention also have
        ``per_pair_of_tokens``, of which an input of L tokens has L².

    Raises:
        ConfigError: if there is no such folder or recipe.
        IntegrityError: if the folder has no student.
    """
    folder = Path(run_or_recipe)
    return describe_config(_config_of(run_or_recipe), folder if folder.is_dir() else None)


def describe_config(config: TaskConfig, run: Path | None = None) -> dict[str, Any]:
    """Describes an architecture as `describe` does, without memory for its weights.

    Args:
        config: the architecture.
        run: the folder of its weights. Without one, they count in float32.
    """
    # Tensors on the meta device have shapes but no memory, so even huge configurations can be described.
    with torch.device("meta"):
        student = KINDS[config.rows].student(config)
    # The row index holds no parameters, so it would be an empty line.
    parts = {name: num_parameters(part) for name, part in student.encoder.named_children() if name != "rows"}
    parts |= {name: parameter.numel() for name, parameter in student.encoder.named_parameters(recurse=False)}
    parts |= {} if student.ngrams is None else {"ngrams": num_parameters(student.ngrams)}
    encoder, (per_token, per_input) = student.encoder, student.head_multiply_adds
    # Only attention has costs that grow with L², so other students omit the key.
    pairs = {"per_pair_of_tokens": encoder.multiply_adds_per_pair} if encoder.multiply_adds_per_pair else {}
    return {
        "architecture": {"task": config.task, **summary(config), "logits": str(config.target.num_logits)},
        "parameters": parts | {"head": num_parameters(student.head), "total": num_parameters(student)},
        "bytes": num_bytes(student) if run is None else bytes_on_disk(student, run),
        "multiply_adds": {
            "per_token": encoder.multiply_adds + per_token,
            "per_input": encoder.multiply_adds_per_input + per_input,
            **pairs,
        },
    }


def _config_of(run_or_recipe: str) -> TaskConfig:
    if Path(run_or_recipe).is_dir():
        return read_task_config(Path(run_or_recipe) / CONFIG_FILE)
    settings = load_recipe(run_or_recipe).settings
    if not isinstance(settings.source, OneTask):
        raise ConfigError(f"{run_or_recipe}: has no task, which decides the number of logits")
    task = load_task(settings.source.task)
    facts = BERT_BASE_UNCASED | {
        "task": task.name,
        "target": make_target(task, "classification"),
        "metrics": task.metrics,
        "is_pair": task.is_pair,
        "tokenizer_sha256": "",
        "max_seq_length": 128,
    }
    return build_config(settings, facts)
