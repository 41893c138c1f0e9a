"""The runs of a sweep as an Optuna study, for its dashboard and analyses."""

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.errors import DataError, MissingDependencyError
from student.sweep.grid import Trial

if TYPE_CHECKING:
    import optuna


class Study:
    """A study that knows which finished runs it has been told of; made by `open_study`."""

    def __init__(self, study: "optuna.Study", trials: Sequence[Trial]) -> None:
        from optuna.distributions import CategoricalDistribution

        self._study = study
        self._told = [trial.params for trial in study.get_trials(deepcopy=False)]
        names = trials[0].values
        self._space = {n: CategoricalDistribution(list(dict.fromkeys(t.values[n] for t in trials))) for n in names}

    def add(self, trial: Trial, score: float) -> None:
        """Tells the study of a finished run, once."""
        from optuna.trial import create_trial

        if trial.values in self._told:
            return
        run = {"run": str(trial.folder)}
        self._study.add_trial(
            create_trial(params=trial.values, distributions=dict(self._space), value=score, user_attrs=run)
        )
        self._told.append(trial.values)


def open_study(storage: str, name: str, trials: Sequence[Trial]) -> Study:
    """Opens the study of a grid, or creates it; every grid has its own, for Optuna lets no set of choices change.

    Raises:
        DataError: if the storage cannot be opened.
        MissingDependencyError: if Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingDependencyError("distill sweep needs optuna: pip install 'distill-offline[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    grid = hashlib.sha256(json.dumps([trial.values for trial in trials]).encode()).hexdigest()[:8]
    try:
        study = optuna.create_study(
            study_name=f"{name}-{grid}", storage=storage, direction="maximize", load_if_exists=True
        )
    except Exception as error:  # whatever the driver of the data base raises
        raise DataError(f"--storage {storage}: cannot be opened: {error}") from error
    return Study(study, trials)
