"""What answers for a path: the engine, torch, or a cascade."""

from pathlib import Path

from pipeline.errors import ConfigError
from student.cascade.cascade_file import CASCADE_FILE
from student.predict.backend import Backend
from student.predict.engine_backend import open_file, open_folder


def open_backend(run: Path, task: str | None = None) -> Backend:
    """Opens a student or a cascade.

    Args:
        run: folder of a finished run, a file of ``distill export --file``, or the folder of a cascade.
        task: of a run of several tasks the one to answer for.

    Raises:
        IntegrityError: if the folder holds no student, or the file is not one's.
        ConfigError: if there is no such task.
    """
    if run.is_file():
        return open_file(run, task)
    # Without it torch is needed, which takes seconds to import.
    by_engine = open_folder(run, task)
    if by_engine is not None:
        return by_engine
    if (run / CASCADE_FILE).is_file():
        from student.cascade.cascade import Cascade

        if task is not None:
            raise ConfigError(f"{run}: is a cascade, which has no tasks. Remove the task")
        return Cascade(run, open_backend)
    from student.predict.torch_backend import TorchBackend

    return TorchBackend(run / (task or ""))
