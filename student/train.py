"""Stage two, whole: trains students, and writes the file from which the engine serves them.

Training needs neither predictors nor exports, so `student.fit` imports none of them.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.file_names import STUDENT_FILE, TOKENIZER_FILE
from pipeline.record_file import Record
from pipeline.text.tokenizer import load_tokenizer
from student.export.engine_file import write_engine_file
from student.fit import fit_students
from student.model.student import TaskStudent
from student.settings import TrainSettings
from student.training_data import TrainingData


def train(settings: TrainSettings, command: str, data: Sequence[TrainingData] = ()) -> Record:
    """Trains the student that settings describe, or the students of their ``tasks``, or resumes the training.

    See `fit_students` for arguments and errors. The folder also gets the file for the engine, if it serves them.
    """
    return fit_students(settings, command, write_student_file, data)


def write_student_file(run: Path, trained: Mapping[Path, TaskStudent]) -> None:
    """Writes the file from which a run's folder answers without torch, if the engine serves its students.

    Args:
        run: the folder.
        trained: the finished students, each with its folder: the run's own, or one of a task in it.
    """
    first = next(iter(trained))
    tokenizer = load_tokenizer(first / TOKENIZER_FILE, trained[first].config.tokenizer_sha256)
    placed = {
        student.config.task if folder == run else folder.name: (student.cpu(), folder)
        for folder, student in trained.items()
    }
    with suppress(ConfigError):  # torch answers for students that the engine does not serve
        write_engine_file(placed, tokenizer, run / STUDENT_FILE)
