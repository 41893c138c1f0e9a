"""Programs in processes of their own, forked from one that has imported the libraries: they start at once."""

import os
import subprocess
from collections.abc import Callable, Mapping
from multiprocessing import get_context, parent_process
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory

# What the commands import when they are called; transformers itself imports next to nothing.
LIBRARIES = [
    "datasets",
    "distill.apps.teacher_advice",
    "distill.apps.report.page",
    "distill.commands.applications",
    "distill.commands.sql",
    "s3fs",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "sklearn.model_selection",
    "sklearn.multiclass",
    "sklearn.svm",
    "student.evaluate",
    "student.predict.predictor",
    "student.pretrain",
    "student.sweep.sweep",
    "student.train",
    "teacher.augment.augment",
    "teacher.finetune.classifier",
    "teacher.finetune.masked_words",
    "teacher.dumps",
    "transformers.models.bert.modeling_bert",
]


def forkserver() -> ForkServerContext:
    """Starts processes by forking one that has imported the libraries."""
    context = get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    return context


class Forked:
    """A running program, as `subprocess.Popen` has it.

    Args:
        program: what it does; it is pickled.
        folder: where it runs.
        environment: variables besides those of this process.
    """

    def __init__(
        self,
        program: Callable[[], object],
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        # A forked program has imported the libraries and can itself be forked.
        start = forkserver().Process if parent_process() is None else get_context("fork").Process
        self._printed = TemporaryDirectory()
        variables = dict(os.environ) | dict(environment or {})
        arguments = (program, folder or Path.cwd(), variables, Path(self._printed.name))
        self._process = start(target=_run, args=arguments)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has printed once it has ended: on its output, on its error."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        out, error = (Path(self._printed.name, name).read_text(encoding="utf-8") for name in ("out", "error"))
        self._printed.cleanup()
        return out, error


def _run(program: Callable[[], object], folder: Path, environment: dict[str, str], printed: Path) -> None:
    for stream, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(printed / name, os.O_WRONLY | os.O_CREAT), stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    os.fsync = lambda fd: None  # as in tests/conftest.py: no test cuts the power
    program()
