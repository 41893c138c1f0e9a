"""The runs of a sweep as an Optuna study, for its dashboard and analyses."""

import hashlib
import json
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import DataError, MissingDependencyError, PassingError, chain_of
from pipeline.files import make_folder
from student.sweep.grid import Trial

if TYPE_CHECKING:
    import optuna


SQLITE = "sqlite:///"
# These errors may be temporary, so the command ends with the exit code for a retry.
PASSING = {"SQLITE_BUSY", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_LOCKED"}
# Once the database was open, a failed open concerns SQLite's journal files, for example on a full disk.
WRITTEN = PASSING | {"SQLITE_CANTOPEN"}


class Study:
    """An Optuna study that records each finished run once. `open_study` makes it."""

    def __init__(self, study: "optuna.Study", storage: str, trials: Sequence[Trial]) -> None:
        from optuna.distributions import CategoricalDistribution

        self._study, self._storage = study, storage
        self._told = [trial.params for trial in study.get_trials(deepcopy=False)]
        names = trials[0].values
        self._space = {n: CategoricalDistribution(list(dict.fromkeys(t.values[n] for t in trials))) for n in names}

    def add(self, trial: Trial, score: float) -> None:
        """Records a finished run in the study, once.

        Raises:
            DataError: if the storage can no longer be written to.
        """
        from optuna.trial import create_trial

        # A repeated command visits finished runs again, and Optuna would store them twice.
        if trial.values in self._told:
            return
        run = {"run": str(trial.folder)}
        told = create_trial(params=trial.values, distributions=dict(self._space), value=score, user_attrs=run)
        with _reported(self._storage, "cannot be written to. Fix this and repeat the command", WRITTEN):
            self._study.add_trial(told)
        self._told.append(trial.values)


def open_study(storage: str, name: str, trials: Sequence[Trial]) -> Study:
    """Opens or creates the study of a grid. Every grid has its own, because Optuna does not allow choices to change.

    Raises:
        DataError: if the storage cannot be opened.
        MissingDependencyError: if Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingDependencyError("distill sweep needs optuna: pip install 'distill-offline[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Optuna refuses a changed set of choices, so a grown grid gets a study of its own.
    grid = hashlib.sha256(json.dumps([trial.values for trial in trials]).encode()).hexdigest()[:8]
    with _reported(storage, "cannot be opened", PASSING):
        study = optuna.create_study(
            study_name=f"{name}-{grid}", storage=storage, direction="maximize", load_if_exists=True
        )
    return Study(study, storage, trials)


@contextmanager
def _reported(storage: str, what: str, passing: Set[str]) -> Iterator[None]:
    """Turns all errors of a database driver into one message. The errors of SQLite in ``passing`` are temporary."""
    try:
        yield
    except Exception as error:
        folder = Path(storage.removeprefix(SQLITE)).parent
        if storage.startswith(SQLITE) and folder.is_dir():
            # SQLite does not report why it cannot write. Creating the folder gives the system's reason.
            make_folder(folder)
        chain = chain_of(error)
        names = [str(getattr(link, "sqlite_errorname", "")) for link in chain]
        passes = any(name.startswith(tuple(passing)) for name in names)
        reason = str(next((link for link, name in zip(chain, names, strict=True) if name), error)).splitlines()[0]
        raise (PassingError if passes else DataError)(f"--storage {storage}: {what}: {reason}") from error
