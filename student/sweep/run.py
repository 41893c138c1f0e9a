"""Every combination of values and seed as a run of its own; the runs are what counts, the rest is told of them."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from pipeline import console
from pipeline.cluster.config import RayFlags
from pipeline.errors import DistillError, FingerprintMismatchError, setting_changes
from pipeline.files import make_folder, remove_temporaries, sha256
from pipeline.text.word_vectors import file_sha256
from pipeline.training.run_record import SWEEP_RECORD, RunRecord, read_run_record, write_run_record
from student.config import SweepConfig
from student.filters.model import FILTERS_FILE
from student.model.weights import WEIGHTS_FILE
from student.recipe import SETS, with_recipe
from student.sweep.cluster import train_on_cluster
from student.sweep.grid import Trial, make_trials, read_grid
from student.sweep.outcome import outcome, score_of
from student.sweep.sets import Sets, design_from, is_of_a_task, open_all, settings_of
from student.sweep.study import SQLITE, Study, open_study
from student.sweep.workers import train_all
from student.train.training_data import default_name
from student.train.word_vectors import FLAG

STORAGE = "optuna.db"
EARLIER = {"pairing": "compare", "head": "mlp", "hidden_dropout": 0.2, "learning_rate": 5e-4}  # now by the encoder
NOT_COMPARED = (
    SETS
    | {"store", "output_dir", "recipe", "init_from", "init_vectors", "filters", "storage"}
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
        With ``--tasks`` each point has the same ``by_task``, and ``best_by_task`` each task's best student. Where
        tasks are what the grid tries, points stay in its order, and ``best`` is None.

    Raises:
        ConfigError: naming everything that is wrong with the grid, before anything is trained.
        FingerprintMismatchError: if the folder holds a sweep with other settings.
        MissingDependencyError: if Optuna is not installed.
    """
    config.check_ray()
    typed = config.model_fields_set
    config = with_recipe(config)
    grid = read_grid(config, typed)
    if "tasks" in grid:  # not those of a recipe
        config = config.model_copy(update={name: SweepConfig.model_fields[name].default for name in SETS - typed})
    sets = open_all(config, grid)
    opened = [one for several, _ in sets.values() for one in several.sets]
    folder = config.output_dir or Path("sweeps") / ("tasks" if "tasks" in grid else default_name(opened))
    trials = make_trials(config, grid, folder, partial(design_from, sets))
    make_folder(folder)
    remove_temporaries(folder)
    study = open_study(config.storage or f"{SQLITE}{folder / STORAGE}", folder.name, trials)
    begun = [trial.folder.exists() for trial in trials]
    earlier = _start_record(config, folder, sets, command)
    try:
        failed = _train_missing(config, folder, trials, study)
    except DistillError:
        if begun == [trial.folder.exists() for trial in trials]:  # nothing that other settings could be mixed with
            _put_back(folder / SWEEP_RECORD, earlier)
        raise
    record = read_run_record(folder / SWEEP_RECORD) | {"state": "finished", "result": outcome(trials, failed)}
    write_run_record(folder / SWEEP_RECORD, record)
    return record


def _put_back(path: Path, earlier: RunRecord | None) -> None:
    if earlier is None:
        path.unlink()
    else:
        write_run_record(path, earlier)


def _start_record(config: SweepConfig, folder: Path, sets: Sets, command: str) -> RunRecord | None:
    """Begins a sweep's record, or goes on with it; returns what was there before.

    All runs of a folder have the same settings but for the grid's, which may grow from try to try, also by tasks.
    """
    settings = config.model_dump(mode="json", exclude=NOT_COMPARED) | {
        "init_from_sha256": sha256(config.init_from / WEIGHTS_FILE) if config.init_from else None,
        "init_vectors_sha256": file_sha256(config.init_vectors, FLAG) if config.init_vectors else None,
        "filters_sha256": sha256(config.filters / FILTERS_FILE) if config.filters else None,
        "optimizer": None if config.optimizer == "adam" else config.optimizer,  # earlier releases had no other
        "intermediate_epochs": config.intermediate_epochs or None,
        **settings_of(config, sets),
    }
    path = folder / SWEEP_RECORD
    earlier = read_run_record(path) if path.exists() else None
    stored = earlier["settings"] if earlier else settings
    same = {name: None for name, value in EARLIER.items() if stored.get(name) == value and settings[name] is None}
    settings = {name: value for name, value in stored.items() if is_of_a_task(name)} | settings
    same |= {name: value for name, value in settings.items() if is_of_a_task(name) and name not in stored}
    changes = setting_changes(stored | same, settings)
    if changes:
        message = f"{folder} holds a sweep with other settings:\n{changes}\nChoose another --output-dir"
        raise FingerprintMismatchError(message)
    write_run_record(path, {"state": "running", "command": command, "settings": settings})
    return earlier


def _train_missing(config: SweepConfig, folder: Path, trials: Sequence[Trial], study: Study) -> dict[str, str]:
    """Trains what is not finished; returns what was wrong, by the name of the run."""
    for trial in trials:
        if trial.is_finished:
            study.add(trial, score_of(trial))
    missing = [trial for trial in trials if not trial.is_finished]
    configs, failed = [trial.config for trial in missing], {}
    trained = train_on_cluster(config, folder, configs) if config.ray else train_all(configs, config.processes)
    with closing(trained), console.progress(len(missing), "students") as bar:  # Ctrl-C may come between two students
        for number, error in trained:
            trial = missing[number]
            if error is None:
                study.add(trial, score_of(trial))
                console.note(f"{trial.folder.name}: {score_of(trial):.4f}")
            else:
                failed[trial.folder.name] = str(error)
                console.warn(f"{trial.folder.name}: {error}")
            bar.advance()
    return failed
