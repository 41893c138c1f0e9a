"""Stage two: a student from stored logits, with no teacher in memory."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pipeline.errors import ConfigError, DataError
from pipeline.files import make_folder, remove_temporaries, write_text
from pipeline.logit_set.manifest import TOKENIZER_FILE
from pipeline.logit_set.reader import LogitSet, find_set, open_set
from pipeline.run_record import RUN_RECORD, Record, finish_run, read_record, start_run
from pipeline.tokenization import special_ids
from pipeline.training import quality, seed_step
from student.architecture import Facts, StudentConfig, design
from student.card import CARD_FILE, card_text
from student.config import TrainConfig
from student.data import Examples, as_read, load_examples
from student.evaluate import evaluate_split
from student.initialize import copy_embeddings, source_sha256
from student.loop import train_epochs
from student.model import Student, default_device, num_bytes, num_parameters
from student.vocabulary import active_ids, renumber, restore, shrunk

CHECKPOINT = "checkpoint.safetensors"
LIBRARIES = ("distill-offline", "torch", "duckdb", "pyarrow", "tokenizers")


@dataclass(frozen=True)
class TrainingData:
    """The rows of a logit set, read once for any number of students."""

    logit_set: LogitSet
    where: str | None
    splits: dict[str, Examples]
    facts: Facts


def load_data(config: TrainConfig) -> TrainingData:
    """Reads the set that a configuration names, once its flags are known to fit.

    Raises:
        ConfigError: naming every flag that does not fit.
        DataError: if there is no such set, or it has no rows to train on.
    """
    logit_set = open_training_set(config)
    facts = task_facts(logit_set)
    design(config, facts)
    splits = {
        split: load_examples(logit_set, split, config.where if split == "train" else None)
        for split in logit_set.manifest.splits
    }
    return TrainingData(logit_set, config.where, splits, facts)


def train(config: TrainConfig, command: str, data: TrainingData | None = None) -> Record:
    """Trains the student that ``config`` describes, or goes on with it.

    The run folder holds ``run.json`` (settings, query, hashes, metrics per epoch), the best epoch's weights by the
    first metric on the first dev split, the tokenizer and a card.

    Args:
        config: everything that decides the student.
        command: the command line, for the record.
        data: the rows, if they have been read already.

    Returns:
        The content of ``run.json``.

    Raises:
        ConfigError: naming every flag that does not fit.
        DataError: if there is no such set, or it has no rows to train on.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    data = data or load_data(config)
    logit_set, student_config = data.logit_set, design(config, data.facts)
    folder = config.output_dir or Path("runs") / logit_set.root.name
    settings = _settings(config, student_config, data)
    make_folder(folder)
    places = {"logit_set": str(logit_set.root.resolve())}
    finished = start_run(folder / RUN_RECORD, settings, command, folder / CHECKPOINT, places)
    if finished is not None:
        return finished
    remove_temporaries(folder)
    write_text(folder / TOKENIZER_FILE, logit_set.tokenizer_json())
    student, history = _fit(config, student_config, data, folder)
    result = {
        "history": history,
        "best": max(history, key=quality),
        "evaluation": {
            split: evaluate_split(student, as_read(examples, student_config))
            for split, examples in data.splits.items()
            if split != "train"
        },
        "versions": {name: version(name) for name in LIBRARIES},
    }
    sizes = (num_parameters(student), num_bytes(student))
    record = read_record(folder / RUN_RECORD) | {"result": result}
    write_text(folder / CARD_FILE, card_text(student_config, *sizes, record))
    record = finish_run(folder / RUN_RECORD, result)
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return record


def open_training_set(config: TrainConfig) -> LogitSet:
    """Opens the set that a configuration names.

    Raises:
        ConfigError: if it names none, or two.
        DataError: if there is no such set, or it has no train split.
    """
    name = config.logits or config.task
    if name is None or (config.logits and config.task):
        raise ConfigError("what to train from: give --task NAME or --logits SET, one of them")
    logit_set = open_set(find_set(name, config.store), config.allow_unverified)
    if "train" not in logit_set.manifest.splits:
        raise DataError(f"{logit_set.root}: has no train split; its splits are {', '.join(logit_set.manifest.splits)}")
    return logit_set


def task_facts(logit_set: LogitSet) -> Facts:
    """What a set decides of the students that can be trained from it."""
    manifest = logit_set.manifest
    tokenizer = Tokenizer.from_str(logit_set.tokenizer_json())
    return {
        "task": manifest.task.name,
        "target": manifest.target,
        "metrics": manifest.task.metrics,
        "is_pair": manifest.task.is_pair,
        "special_ids": special_ids(tokenizer) if manifest.task.is_pair else None,
        "vocabulary_size": manifest.tokenizer.vocabulary_size,
        "pad_id": manifest.tokenizer.pad_id,
        "tokenizer_sha256": manifest.tokenizer.sha256,
        "max_seq_length": manifest.max_seq_length,
    }


def _settings(config: TrainConfig, student_config: StudentConfig, data: TrainingData) -> dict[str, Any]:
    """What decides the weights; where the set and the run lie does not."""
    places = {"task", "logits", "store", "output_dir", "recipe", "init_from", "allow_unverified", "json_output"}
    logit_set, rows = data.logit_set, data.splits["train"]
    assert data.where == config.where, "the rows were read for another condition"
    return config.model_dump(mode="json", exclude=places) | {
        "matrix_size": student_config.matrix_size,
        "vector_size": student_config.vector_size,
        "bidirectional": student_config.bidirectional,
        "hidden_size": student_config.hidden_size,
        "init_from_sha256": source_sha256(config.init_from, student_config),
        "logit_set_fingerprint": logit_set.manifest.fingerprint,
        "query": f"select * {logit_set.query('train', config.where)}",
        "rows": len(rows),
        "rows_sha256": rows.keys_sha256,
    }


def _fit(
    config: TrainConfig, student_config: StudentConfig, data: TrainingData, folder: Path
) -> tuple[Student, list[dict[str, Any]]]:
    """Trains the rows of the tables that the data use; returns the best student and a record of each epoch."""
    splits = {split: as_read(examples, student_config) for split, examples in data.splits.items()}
    seed_step(config.seed, 0)
    student = Student(student_config)
    if config.init_from is not None:
        copy_embeddings(config.init_from, student.encoder)
    active = active_ids(splits.values(), student_config.pad_id)
    small = shrunk(student, active).to(default_device())
    splits = {split: renumber(examples, active) for split, examples in splits.items()}

    def save() -> None:
        restore(student, small, active)
        student.save(folder)

    history = train_epochs(config, small, splits, folder / CHECKPOINT, save)
    return Student.load(folder).to(default_device()), history
