"""Training itself: one student, or a student for each of several tasks, all of them with the same encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.logit_set.token_vectors import VocabularyVectors
from pipeline.training import loop
from pipeline.training.run import Run
from pipeline.training.run_record import Entry, Metrics
from pipeline.training.several import joint_scores
from pipeline.training.steps import seed_step
from student.config import TrainConfig
from student.data import Examples, as_read
from student.model.architecture import StudentConfig
from student.model.model import Student, default_device
from student.model.weights import save_sharing
from student.train.initialize import copy_embeddings, copy_head, has_head_for
from student.train.learner import Lesson, StudentLearner
from student.train.token_vectors import start_from_teacher
from student.train.training_data import TrainingData
from student.train.used_rows import active_ids, neutralise_untrained, renumber, restore, shrunk, with_used_rows


@dataclass(frozen=True)
class Subject:
    """What a student is trained for.

    Attributes:
        config: the flags, those alone that fit the task.
        student_config: the architecture.
        data: the rows.
        folder: where its weights are kept.
    """

    config: TrainConfig
    student_config: StudentConfig
    data: TrainingData
    folder: Path

    @property
    def name(self) -> str:
        """Name of its set."""
        return self.data.logit_set.name

    def splits(self) -> dict[str, Examples]:
        """The rows in the form that the student reads."""
        return {split: as_read(examples, self.student_config) for split, examples in self.data.splits.items()}

    def kept(self) -> Student:
        """The student that training has kept."""
        return Student.load(self.folder).to(default_device())

    def dev_splits(self) -> dict[str, Examples]:
        """Those of `splits` that the student is scored on."""
        return {split: examples for split, examples in self.splits().items() if split != "train"}


def fit(config: TrainConfig, subjects: Sequence[Subject], vectors: VocabularyVectors | None, run: Run) -> list[Entry]:
    """Trains the rows of the tables that the data use, and keeps the best student of each subject.

    Returns:
        A record of each epoch; with ``tasks`` its metrics are those of `joint_scores`.
    """
    splits = [subject.splits() for subject in subjects]
    students = _new_students(config, subjects, [part["train"] for part in splits], vectors)
    active = active_ids((rows for part in splits for rows in part.values()), students[0].config.pad_id)
    smalls: list[Student] = []
    for student in students:
        smalls.append(shrunk(student, active, smalls[0].encoder if smalls else None).to(default_device()))
    lessons = [
        Lesson(subject.config, small, {split: renumber(rows, active) for split, rows in part.items()})
        for subject, small, part in zip(subjects, smalls, splits, strict=True)
    ]

    def score() -> Metrics:
        by_task = {subject.name: lesson.scores() for subject, lesson in zip(subjects, lessons, strict=True)}
        return joint_scores(by_task) if config.tasks else by_task[subjects[0].name]

    def keep() -> None:
        for student, small in zip(students, smalls, strict=True):
            restore(student, small, active)
            student.config = with_used_rows(student.config, student.encoder)
        if config.tasks:
            folders = [subject.folder for subject in subjects]
            save_sharing({folder: (one.config, one) for folder, one in zip(folders, students, strict=True)})
        else:
            students[0].save(run.folder)

    learner = StudentLearner(config, lessons, score, keep)
    return loop.train(run, learner, learner.schedule(), config.report_to)


def _new_students(
    config: TrainConfig,
    subjects: Sequence[Subject],
    trains: Sequence[Examples],
    vectors: VocabularyVectors | None,
) -> list[Student]:
    """Students that share the first one's encoder, as they start."""
    seed_step(config.seed, 0)
    students: list[Student] = []
    for subject in subjects:
        students.append(Student(subject.student_config, students[0].encoder if students else None))
    if config.init_from is None:
        neutralise_untrained(students[0], *trains)
    else:
        copy_embeddings(config.init_from, students[0].encoder)
        for student in students:
            if has_head_for(config.init_from, student.config):
                copy_head(config.init_from, student)
    if vectors is not None:
        start_from_teacher(students[0].encoder, vectors)
    return students
