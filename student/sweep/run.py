"""Every combination of values and seed as a run of its own; the runs are what counts, the rest is told of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import console
from pipeline.cluster.config import RayFlags
from pipeline.errors import ConfigError, DistillError, FingerprintMismatchError, setting_changes
from pipeline.files import make_folder, remove_temporaries, sha256
from pipeline.logit_set.reader import LogitSet
from pipeline.logit_set.token_vectors import read_token_vectors
from pipeline.query.mixture import mix_of
from pipeline.text.word_vectors import file_sha256
from pipeline.training.run_record import RUN_RECORD, SWEEP_RECORD, RunRecord, quality, read_run_record, write_run_record
from student.config import SweepConfig
from student.filters.model import FILTERS_FILE
from student.model.weights import WEIGHTS_FILE
from student.recipe import with_recipe
from student.sweep.cluster import train_on_cluster
from student.sweep.grid import Trial, make_trials
from student.sweep.study import Study, open_study
from student.sweep.workers import train_all
from student.train.initialize import starts_from_teacher
from student.train.training_data import default_name, designed, open_training_set, task_facts
from student.train.word_vectors import FLAG

STORAGE = "optuna.db"
PLACES = {"task", "logits", "store", "output_dir", "recipe", "init_from", "init_vectors", "filters", "storage"}
EARLIER = {  # now by the encoder, or by the number of rows
    "pairing": "compare",
    "head": "mlp",
    "hidden_dropout": 0.2,
    "learning_rate": 5e-4,
    "num_train_epochs": 20,
}
NOT_COMPARED = (
    PLACES
    | {"init", "grid", "seeds", "processes", "allow_unverified", "report_to", "json_output"}
    | RayFlags.model_fields.keys()
)


def sweep(config: SweepConfig, command: str) -> RunRecord:
    """Trains every student of a grid; finished ones are not repeated, begun ones are gone on with.

    The run folders are what counts; Optuna's storage is told of each finished run, for its tools.

    Args:
        config: settings, grid and seeds.
        command: the command line, for the record.

    Returns:
        The content of ``sweep.json``; its ``result`` holds the ``metric`` that decides, the ``points`` of the grid
        (values, scores by seed, mean, deviation), best mean first, the ``best`` run of the first one, and ``failed``.

    Raises:
        ConfigError: naming everything that is wrong with the grid, before anything is trained.
        FingerprintMismatchError: if the folder holds a sweep with other settings.
        MissingDependencyError: if Optuna is not installed.
    """
    config.check_ray()
    if config.tasks is not None:
        raise ConfigError("--tasks: a sweep is of students of one task; give --task or --logits")
    typed = config.model_fields_set
    config = with_recipe(config)
    logit_set = open_training_set(config)
    folder = config.output_dir or Path("sweeps") / default_name(logit_set.sets)
    facts = task_facts(logit_set)
    trials = make_trials(config, folder, facts, typed, lambda made: designed(made, logit_set, facts)[0])
    first = logit_set.sets[0]
    for trial in trials:  # a set without token vectors is told before anything is trained
        starts_from_teacher(trial.config, first.root, first.record)
    make_folder(folder)
    remove_temporaries(folder)
    study = open_study(config.storage or f"sqlite:///{folder / STORAGE}", folder.name, trials)
    is_new = not (folder / SWEEP_RECORD).exists()
    _start_record(config, folder, logit_set, command)
    try:
        failed = _train_missing(config, folder, trials, study)
    except DistillError:
        if is_new and not any(trial.folder.exists() for trial in trials):
            (folder / SWEEP_RECORD).unlink()  # nothing that other settings could be mixed with
        raise
    record = read_run_record(folder / SWEEP_RECORD) | {"state": "finished", "result": _result(trials, failed)}
    write_run_record(folder / SWEEP_RECORD, record)
    return record


def _start_record(config: SweepConfig, folder: Path, logit_set: LogitSet, command: str) -> None:
    """All runs of a folder have the same settings but for the grid's, which may grow from try to try."""
    settings = config.model_dump(mode="json", exclude=NOT_COMPARED) | {
        "init_from_sha256": sha256(config.init_from / WEIGHTS_FILE) if config.init_from else None,
        "init_vectors_sha256": file_sha256(config.init_vectors, FLAG) if config.init_vectors else None,
        "filters_sha256": sha256(config.filters / FILTERS_FILE) if config.filters else None,
        "optimizer": None if config.optimizer == "adam" else config.optimizer,  # earlier releases had no other
        "intermediate_epochs": config.intermediate_epochs or None,
        "token_vectors_sha256": _token_vectors_sha256(config, logit_set),
        "logit_set_fingerprints": [one.record.fingerprint for one in logit_set.sets],
        "mix": mix_of(logit_set),
    }
    path = folder / SWEEP_RECORD
    stored = read_run_record(path)["settings"] if path.exists() else settings
    same = {name: None for name, value in EARLIER.items() if stored.get(name) == value and settings[name] is None}
    changes = setting_changes(stored | same, settings)
    if changes:
        message = f"{folder} holds a sweep with other settings:\n{changes}\nChoose another --output-dir"
        raise FingerprintMismatchError(message)
    write_run_record(path, {"state": "running", "command": command, "settings": settings})


def _token_vectors_sha256(config: SweepConfig, logit_set: LogitSet) -> str | None:
    """Hash of what vectors may start from; runs that a set got token vectors in between are not to be compared."""
    first = logit_set.sets[0]
    vectors = None if config.init == "noise" or config.init_from else read_token_vectors(first.root, first.record)
    return vectors.sha256 if vectors else None


def _train_missing(config: SweepConfig, folder: Path, trials: Sequence[Trial], study: Study) -> dict[str, str]:
    """Trains what is not finished; returns what was wrong, by the name of the run."""
    for trial in trials:
        if trial.is_finished:
            study.add(trial, _score(trial))
    missing = [trial for trial in trials if not trial.is_finished]
    configs, failed = [trial.config for trial in missing], {}
    trained = train_on_cluster(config, folder, configs) if config.ray else train_all(configs, config.processes)
    with console.progress(len(missing), "students") as bar:
        for number, error in trained:
            trial = missing[number]
            if error is None:
                study.add(trial, _score(trial))
                console.note(f"{trial.folder.name}: {_score(trial):.4f}")
            else:
                failed[trial.folder.name] = str(error)
                console.warn(f"{trial.folder.name}: {error}")
            bar.advance()
    return failed


def _result(trials: Sequence[Trial], failed: dict[str, str]) -> dict[str, Any]:
    finished = [trial for trial in trials if trial.is_finished]
    if not finished:
        raise DistillError(
            "no run of the sweep came to its end:\n" + "\n".join(f"  - {k}: {v}" for k, v in failed.items())
        )
    scores: dict[tuple[Any, ...], dict[str, float]] = {}
    for trial in finished:
        scores.setdefault(trial.point, {})[str(trial.values["seed"])] = _score(trial)
    names = [name for name in trials[0].values if name != "seed"]
    points: list[dict[str, Any]] = [
        {
            "values": dict(zip(names, point, strict=True)),
            "scores": by_seed,
            "mean": float(np.mean(list(by_seed.values()))),
            "deviation": float(np.std(list(by_seed.values()), ddof=1)) if len(by_seed) > 1 else None,
        }
        for point, by_seed in scores.items()
    ]
    points.sort(key=lambda point: (len(point["scores"]), point["mean"]), reverse=True)  # whole points before others
    winner = tuple(points[0]["values"].values())
    best = max((trial for trial in finished if trial.point == winner), key=_score)
    return {
        "metric": _metric(best),
        "points": points,
        "best": {"run": str(best.folder), "score": _score(best)},
        "failed": failed,
    }


def _score(trial: Trial) -> float:
    return quality(read_run_record(trial.folder / RUN_RECORD)["result"]["best"])


def _metric(trial: Trial) -> str:
    """Returns the name of what `quality` measures, for tables."""
    for split, metrics in read_run_record(trial.folder / RUN_RECORD)["result"]["best"]["metrics"].items():
        return f"{split} {next(iter(metrics), 'epochs')}"
    return "epochs"
