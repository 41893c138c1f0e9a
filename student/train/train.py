"""Stage two: a student from stored logits, with no teacher in memory."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pipeline import console
from pipeline.files import write_text
from pipeline.logit_set.reader import LogitSet
from pipeline.logit_set.record import TOKENIZER_FILE
from pipeline.logit_set.token_vectors import VocabularyVectors
from pipeline.query.mixture import mix_of
from pipeline.training import loop
from pipeline.training.run import Run
from pipeline.training.run_record import TEXT_COLUMNS, Entry, RunRecord, best_of
from pipeline.training.steps import seed_step
from student.answers.thresholds import as_logits, best_thresholds
from student.config import BertFlags, TrainConfig
from student.data import Examples, as_read
from student.evaluate import evaluate_split, student_logits
from student.model.architecture import StudentConfig
from student.model.bert_folder import TOKENIZER_CONFIG_FILE, tokenizer_config_json
from student.model.card import CARD_FILE, card_text
from student.model.design import design
from student.model.model import Student, default_device, num_bytes, num_parameters
from student.train.bert_start import BertStart, bert_start, copy_layers
from student.train.initialize import copy_embeddings, source_sha256
from student.train.learner import StudentLearner, peak_rate
from student.train.token_vectors import start_from_teacher
from student.train.training_data import TrainingData, default_name, load_data, training_query
from student.train.used_rows import active_ids, neutralise_untrained, renumber, restore, shrunk, with_used_rows

LIBRARIES = ("distill-offline", "torch", "duckdb", "pyarrow", "tokenizers")


def train(config: TrainConfig, command: str, data: TrainingData | None = None) -> RunRecord:
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
    logit_set, layers = data.logit_set, bert_start(config, data.logit_set)
    student_config = design(config, data.facts, layers.inherited if layers else None)
    vectors = data.start(config)
    folder = config.output_dir or Path("runs") / default_name(logit_set)
    context: dict[str, Any] = {"logit_sets": [str(one.root.resolve()) for one in logit_set.sets]}
    task = logit_set.sets[0].record.task
    if task is not None and task.text_columns is not None:
        context[TEXT_COLUMNS] = [list(names) for names in task.text_columns]
    run = Run(folder, _settings(config, student_config, data, vectors, layers), command, context)
    finished = run.start()
    if finished is not None:
        return finished
    tokenizer_json = logit_set.tokenizer_json()
    write_text(folder / TOKENIZER_FILE, tokenizer_json)
    if student_config.bert is not None:
        others = tokenizer_config_json(Tokenizer.from_str(tokenizer_json), student_config)
        write_text(folder / TOKENIZER_CONFIG_FILE, others)
    console.note(_start_line(config, logit_set, vectors, layers))
    if data.splits.keys() == {"train"}:
        console.warn(f"{logit_set.root}: has no dev split, so nothing tells which epoch is best: the last one is kept")
    student, history = _fit(config, student_config, data, vectors, layers, run)
    dev = {split: as_read(part, student_config) for split, part in data.splits.items() if split != "train"}
    thresholds = _thresholds(student, dev)
    bias_C = -as_logits(thresholds, student_config.target) if thresholds else None
    result = {
        "history": history,
        "best": best_of(history),
        "used_rows": student.config.used_rows,
        "thresholds": thresholds,
        "evaluation": {split: evaluate_split(student, examples, bias_C) for split, examples in dev.items()},
        "versions": {name: version(name) for name in LIBRARIES},
    }
    if data.teachers:
        result["teachers"] = data.teachers
    sizes = (num_parameters(student), num_bytes(student))
    write_text(folder / CARD_FILE, card_text(student.config, *sizes, run.record() | {"result": result}))
    return run.finish(result)


def _thresholds(student: Student, dev: dict[str, Examples]) -> dict[str, float]:
    """Of a multi-label student the probability from which on each label holds, by the first dev split."""
    if student.config.target.kind != "labels" or not dev:
        return {}
    first = next(iter(dev.values()))
    return best_thresholds(student.config.target, student_logits(student, first), first.label_N)


def _start_line(
    config: TrainConfig, logit_set: LogitSet, vectors: VocabularyVectors | None, layers: BertStart | None
) -> str:
    if layers is not None:
        return f"the student starts from {layers.words}"
    if config.init_from is not None:
        return f"embeddings start from {config.init_from}"
    return (
        f"vectors start from the teacher's, of {logit_set.sets[0].root}" if vectors else "embeddings start from noise"
    )


def _settings(
    config: TrainConfig,
    student_config: StudentConfig,
    data: TrainingData,
    vectors: VocabularyVectors | None,
    layers: BertStart | None,
) -> dict[str, Any]:
    """What decides the weights; where the set and the run lie does not."""
    places = {"task", "logits", "store", "output_dir", "recipe", "init", "init_from", "allow_unverified"}
    places |= BertFlags.model_fields.keys()
    logit_set, rows = data.logit_set, data.splits["train"]
    assert data.query == training_query(config, logit_set), "the rows were read for another query"
    return config.model_dump(mode="json", exclude={*places, "report_to", "json_output"}) | {
        "matrix_size": student_config.matrix_size,
        "vector_size": student_config.vector_size,
        "bidirectional": student_config.bidirectional,
        "pooling": student_config.pooling,
        "bert": student_config.bert.model_dump() if student_config.bert else None,
        "pairing": student_config.pairing,
        "head": student_config.head,
        "hidden_size": student_config.hidden_size,
        "hidden_dropout": student_config.hidden_dropout,
        "learning_rate": peak_rate(config),
        "init_layers": list(layers.layers) if layers else None,
        "init_from_sha256": layers.sha256 if layers else source_sha256(config.init_from, student_config),
        "token_vectors_sha256": vectors.sha256 if vectors else None,
        "logit_set_fingerprints": [one.record.fingerprint for one in logit_set.sets],
        "mix": mix_of(logit_set),
        "query": data.query,
        "rows": len(rows),
        "rows_sha256": rows.keys_sha256,
        "logits_sha256": rows.logits_sha256,
    }


def _fit(
    config: TrainConfig,
    student_config: StudentConfig,
    data: TrainingData,
    vectors: VocabularyVectors | None,
    layers: BertStart | None,
    run: Run,
) -> tuple[Student, list[Entry]]:
    """Trains the rows of the tables that the data use; returns the best student and a record of each epoch."""
    splits = {split: as_read(examples, student_config) for split, examples in data.splits.items()}
    seed_step(config.seed, 0)
    student = Student(student_config)
    if layers is not None:
        copy_layers(layers, student.encoder)
    elif config.init_from is not None:
        copy_embeddings(config.init_from, student.encoder)
    else:
        neutralise_untrained(student, splits["train"])
    if vectors is not None:
        start_from_teacher(student.encoder, vectors)
    active = active_ids(splits.values(), student_config.pad_id)
    small = shrunk(student, active).to(default_device())
    splits = {split: renumber(examples, active) for split, examples in splits.items()}

    def keep() -> None:
        restore(student, small, active)
        student.config = with_used_rows(student.config, student.encoder)
        student.save(run.folder)

    learner = StudentLearner(config, small, splits, keep)
    history = loop.train(run, learner, learner.schedule(), config.report_to)
    return Student.load(run.folder).to(default_device()), history
