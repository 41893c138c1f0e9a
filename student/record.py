"""The record of a run: the settings that decide its weights, its result, and whether its rows are still the same."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from pipeline import console
from pipeline.devices import has_fast_bf16
from pipeline.errors import ConfigError
from pipeline.file_names import CONFIG_FILE, RUN_RECORD, TOKENIZER_FILE
from pipeline.files import write_text
from pipeline.query.mixture import mix_of
from pipeline.record_file import Record, read_work_record
from pipeline.sets.card import hub_metadata
from pipeline.sets.open import LogitSet, find_set
from pipeline.sets.token_vectors import VocabularyVectors, read_token_vectors
from pipeline.settings import deciding
from pipeline.tasks.task import TRAIN
from pipeline.tasks.temperature import as_logits, best_thresholds, calibrated
from pipeline.tasks.text_drift import answer_signals, fit_profile, text_signals, without
from pipeline.text.tokenizer import unknown_id
from pipeline.text.word_vectors import file_sha256
from pipeline.training.batches import HELD_OUT
from pipeline.training.best_epoch import may_select
from pipeline.training.run_record import LABEL_COLUMNS, STUDENTS, TEXT_COLUMNS, Entry
from student.encoders.specs import Bert
from student.initial_weights.run import has_head_for, source_sha256
from student.initial_weights.vectors import INIT_FLAG, PretrainedVectors, StartVectors, read_pretrained
from student.layer_stage import layer_loss_settings
from student.lessons import kind_of_set
from student.model.card import CARD_FILE, HUB, card_text
from student.model.config_file import TOKENIZER_CONFIG_FILE, read_task_config, tokenizer_config_json
from student.model.student import Student, TaskStudent, bytes_on_disk, num_parameters
from student.model.weights import save_config
from student.settings import num_bigrams
from student.source_settings import FEWEST_CALIBRATED, Query, Where
from student.training_data import StudentTraining, source_of
from student.vocabulary import as_run_reads, note_vocabulary
from student.vocabulary_pruning import active_ids

LIBRARIES = ("distill-offline", "torch", "duckdb", "pyarrow", "tokenizers")


def context(training: StudentTraining) -> dict[str, Any]:
    """Returns the paths of a run's sets, the names of the columns in files of its task, and the card's metadata."""
    logit_set = training.data.logit_set
    found: dict[str, Any] = {"logit_sets": [str(one.root.resolve()) for one in logit_set.sets]}
    task = logit_set.sets[0].record.task
    if task is not None and task.text_columns is not None:
        found[TEXT_COLUMNS] = [list(names) for names in task.text_columns]
    if task is not None and task.label_columns is not None:
        found[LABEL_COLUMNS] = list(task.label_columns)
    return found | {HUB: hub_metadata([one.record for one in logit_set.sets])}


def deciding_settings(training: StudentTraining, vectors: StartVectors | None) -> dict[str, Any]:
    """Returns the settings that decide the weights, without the paths of the set and the run."""
    settings, student_config, layers = training.settings, training.student_config, training.layers
    data, encoder, start, optimizer = training.data, settings.encoder, settings.start, settings.optimizer
    logit_set, rows, chosen = data.logit_set, data.splits["train"], source_of(settings).chosen
    # A sweep passes rows that were read before, and a record must never name another query than theirs.
    assert data.query == data.kind.training_query(chosen, logit_set), "the rows were read for another query"
    return deciding(settings.loss, settings.best, optimizer, settings.epochs) | {
        "seed": settings.seed,
        "temperature": settings.loss.soft.temperature,
        **student_config.encoder.model_dump(mode="json"),
        "num_bigrams": num_bigrams(encoder, training.num_rows),
        # The machine decides the precision, so a run resumed elsewhere is refused instead of mixing both.
        "precision": "bf16" if isinstance(encoder, Bert) and has_fast_bf16() else None,
        "pairing": student_config.pairing,
        "head": student_config.head,
        "hidden_size": student_config.hidden_size,
        "hidden_dropout": student_config.hidden_dropout,
        "token_dropout": settings.head.token_dropout,
        "ngrams": settings.head.ngrams or None,
        # Float32 is recorded as None, as it was before there was a choice.
        "weights": None if student_config.weights == "float32" else student_config.weights,
        "learning_rate": optimizer.rate,
        # Adam is recorded as None, as it was before there was a choice, so that such records stay comparable.
        "optimizer": None if optimizer.optimizer == "adam" else optimizer.optimizer,
        "init_vectors_sha256": file_sha256(start.words, INIT_FLAG) if start.words else None,
        "init_layers": list(layers.layers) if layers else None,
        "init_from_sha256": layers.sha256 if layers else source_sha256(start.folder, student_config),
        "vocabulary": settings.vocabulary,
        "tokenizer_sha256": student_config.tokenizer_sha256,
        "token_vectors_sha256": vectors.sha256 if isinstance(vectors, VocabularyVectors) else None,
        "pretrained_vectors_sha256": vectors.sha256 if isinstance(vectors, PretrainedVectors) else None,
        **layer_loss_settings(settings.layers, student_config, logit_set.sets[0].record),
        "logit_set_fingerprints": [one.record.fingerprint for one in logit_set.sets],
        "mix": mix_of(logit_set),
        "where": chosen.where if isinstance(chosen, Where) else None,
        "query": data.query,
        "rows": len(rows),
        "rows_for_calibration": len(training.calibration_rows) if training.calibration_rows is not None else None,
        "rows_held_out": len(training.splits[HELD_OUT]) if settings.best.held_out is not None else None,
        **data.kind.row_hashes(logit_set, rows),
    }


def _complete_config(training: StudentTraining, student: TaskStudent) -> None:
    """Adds to a student's ``config.json`` its calibration, and a profile of inputs that it was not trained on."""
    rows = training.calibration_rows
    if rows is not None and len(rows) >= FEWEST_CALIBRATED:
        fitted = training.kind.fit_calibration(student, rows)
        task = training.data.logit_set.record.task
        if fitted is not None and task is not None and task.score_range is not None:
            fitted = fitted.model_copy(update={"score_range": task.score_range})
        student.config = student.config.model_copy(update={"calibration": fitted})
        # Everything that opens a student reads its config, so a copy, an export and a download are calibrated, too.
        save_config(training.folder, student.config_json)
    else:
        rows = next(iter(training.dev_splits.values()), None)
    if rows is None:
        return
    is_seen_V = np.zeros(student.config.num_tokens, dtype=bool)
    is_seen_V[active_ids([training.splits[TRAIN]], student.config.pad_id)] = True
    unknown = unknown_id(Tokenizer.from_str(training.data.logit_set.tokenizer_json()))
    if unknown is not None:
        is_seen_V[unknown] = False
    parts = [without(part, training.data.facts.get("special_ids")) for part in rows.sequences]
    signals = text_signals(parts, is_seen_V)
    if isinstance(student, Student):
        logits_NC = calibrated(training.kind.student_logits(student, rows), student.config.calibration)
        signals |= answer_signals(student.config.target, logits_NC)
    student.config = student.config.model_copy(update={"profile": fit_profile(signals, is_seen_V)})
    save_config(training.folder, student.config_json)


def result(training: StudentTraining, student: TaskStudent, history: list[Entry], best: Entry) -> dict[str, Any]:
    """Returns the result of a training: scores by epoch, and the evaluation of the saved student.

    Calibrates the student before, and describes the inputs that it was not trained on.
    """
    _complete_config(training, student)
    logit_set = training.data.logit_set
    dev = {split: training.kind.scored(logit_set, rows) for split, rows in training.dev_splits.items()}
    thresholds, calibration = _thresholds(training, student), student.config.calibration
    # A label holds where its calibrated logit exceeds the threshold, so the negative threshold is added to the logit.
    bias_C = -as_logits(thresholds, student.config.target) if thresholds else None
    own = logit_set.record.metrics
    size = {"parameters": num_parameters(student), "bytes": bytes_on_disk(student, training.folder)}
    teachers = [one.record.teacher.num_parameters for one in logit_set.sets]
    # Imported answers have a teacher of unknown size.
    if len(teachers) == 1 and teachers[0] is not None:
        size["teacher_parameters"] = teachers[0]
    found = {
        "history": history,
        "best": best,
        "used_rows": student.config.used_rows,
        "size": size,
        "calibration": calibration.model_dump() if calibration else None,
        "thresholds": thresholds,
        "evaluation": {split: training.kind.evaluate_split(student, rows, bias_C, own) for split, rows in dev.items()},
        "versions": {name: version(name) for name in LIBRARIES},
    }
    return found | ({"teachers": training.data.teachers} if training.data.teachers else {})


def write_tokenizer(training: StudentTraining) -> None:
    """Writes the tokenizer next to the weights, for a bert with the files that `transformers` expects."""
    tokenizer_json = training.data.logit_set.tokenizer_json()
    write_text(training.folder / TOKENIZER_FILE, tokenizer_json)
    if training.student_config.is_hugging_face:
        others = tokenizer_config_json(Tokenizer.from_str(tokenizer_json), training.student_config)
        write_text(training.folder / TOKENIZER_CONFIG_FILE, others)


def write_card(training: StudentTraining, student: TaskStudent, record: Record) -> None:
    """Writes the card next to the weights. ``record`` contains the result."""
    sizes = (num_parameters(student), bytes_on_disk(student, training.folder))
    write_text(training.folder / CARD_FILE, card_text(student.config, *sizes, record))


def note_start(trainings: Sequence[StudentTraining], vectors: StartVectors | None, giver: LogitSet) -> None:
    """Prints what students start from.

    Args:
        trainings: the students.
        vectors: the vectors that they start from, if any.
        giver: the set with the teacher's vectors, if these are the start.
    """
    # Several tasks usually start alike, and the same line would be printed for each.
    note_vocabulary(giver)
    for line in dict.fromkeys(_start_line(training, vectors, giver) for training in trainings):
        console.note(line)
    without = [str(one.data.logit_set.root) for one in trainings if not any(map(may_select, one.dev_splits))]
    if len(without) == len(trainings):
        console.warn(f"{', '.join(without)}: has no dev split to select the best epoch: the last one is saved")
    # Notes of the sets, such as contradicting gold, also concern their students.
    sets = [one for training in trainings for one in training.data.logit_set.sets]
    for line in dict.fromkeys(f"{one.root}: {note}" for one in sets for note in one.record.notes):
        console.note(line)
    # Only `--alpha 1` promises training on gold alone, so only then are rows without gold a surprise.
    for training in (one for one in trainings if one.settings.loss.alpha == 1):
        rows = training.data.splits["train"]
        missing = training.kind.num_without_gold(rows, training.student_config)
        if missing:
            console.warn(
                f"{training.data.logit_set.root}: {missing:,} of {len(rows):,} training rows have no gold and learn "
                "from the teacher, also with --alpha 1. Use --where 'variant = 0' to leave variants out"
            )


def _start_line(training: StudentTraining, vectors: StartVectors | None, giver: LogitSet) -> str:
    source = training.settings.start.folder
    if training.layers is not None:
        return f"the student starts from {training.layers.words}"
    if source is not None:
        what = "encoder and head start" if has_head_for(source, training.student_config) else "embeddings start"
        return f"{what} from {source}"
    if isinstance(vectors, PretrainedVectors):
        return "vectors start from those that come with distill. --init chooses others"
    if vectors is not None:
        return f"vectors start from the teacher's, of {giver.sets[0].root}"
    return "embeddings start from noise"


def _thresholds(training: StudentTraining, student: TaskStudent) -> dict[str, float]:
    """Returns the threshold of each label of a multi-label student, fitted on the first dev split."""
    # Thresholds are fitted on the split that also chose the epoch, so the other splits stay unbiased.
    first = next((rows for split, rows in training.dev_splits.items() if may_select(split)), None)
    if not student.config.target.has_label_lists or first is None:
        return {}
    logits_NC = calibrated(training.kind.student_logits(student, first), student.config.calibration)
    return best_thresholds(student.config.target, logits_NC, first.label_N)


def reproduce(run: Path, store: Path | None, allow_unverified: bool) -> dict[str, dict[str, Any]]:
    """Opens the sets of a run at their current location and runs its recorded query again.

    Args:
        run: the folder of the run.
        store: a folder in which its sets are found by their names. None: at their recorded places.
        allow_unverified: also accept sets that are complete but not verified.

    Returns: The recorded facts (``then``) and the current ones (``now``): the fingerprint of each set, the number of
        selected rows, the hashes of their keys and of their logits and weights, and of the initial vectors.

    Raises:
        ConfigError: if the run is one of pretraining.
        DataError: if a set does not exist.
        QueryError: if its query fails today.
    """
    record = read_work_record(run / RUN_RECORD)
    # Only pretraining runs record a single set. Runs of tasks record a list.
    if "logit_set" in record:
        raise ConfigError(f"{run}: a pretraining run has no query and uses every row of its set")
    if STUDENTS in record:
        parts = {name: reproduce(run / name, store, allow_unverified) for name in record[STUDENTS]}
        return {f"{name}: {what}": values for name, part in parts.items() for what, values in part.items()}
    settings = record["settings"]
    # With a store, sets are found by name, because recorded paths belong to the machine that trained.
    paths = [find_set(Path(place).name if store else place, store) for place in record["logit_sets"]]
    kind = kind_of_set(paths[0])
    logit_set = kind.open_sets(paths, settings["mix"], allow_unverified)
    logit_set = as_run_reads(logit_set, run, read_task_config(run / CONFIG_FILE))
    rows = kind.read(logit_set, TRAIN, Query(query=settings["query"]) if settings["query"] else None)
    # Fingerprints are compared first: if one differs, the differing row hashes need no further explanation.
    then = settings["logit_set_fingerprints"]
    compared = {
        f"fingerprint of {one.name}": {"then": recorded, "now": one.record.fingerprint}
        for one, recorded in zip(logit_set.sets, then, strict=True)
    }
    now: dict[str, Any] = {"rows": len(rows)} | kind.row_hashes(logit_set, rows)
    if settings.get("token_vectors_sha256"):
        first = logit_set.sets[0]
        vectors = read_token_vectors(first.root, first.record)
        now |= {"token_vectors_sha256": vectors.sha256 if vectors else "none"}
    if settings.get("pretrained_vectors_sha256"):
        now |= {"pretrained_vectors_sha256": read_pretrained().sha256}
    return compared | {name: {"then": settings[name], "now": value} for name, value in now.items()}
