"""Training itself: one student, or a student for each of several tasks, all of them with the same encoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import nn

from pipeline import console
from pipeline.sets.token_vectors import VocabularyVectors
from pipeline.training import loop
from pipeline.training.batches import HELD_OUT
from pipeline.training.joint import BatchedTask, JointTask
from pipeline.training.loop import seed_step
from pipeline.training.run import Run
from pipeline.training.run_record import Entry
from student.config import TrainConfig
from student.data import Examples, as_read
from student.model.architecture import StudentConfig
from student.model.embeddings import matrix_encoder
from student.model.model import Student, default_device
from student.model.products import IS_COMPILED
from student.model.weights import save_sharing
from student.train.bert_start import BertStart, copy_layers
from student.train.bigrams import frequent_pairs, with_bigrams
from student.train.held_out import hold_out
from student.train.initialize import copy_embeddings, copy_head, has_head_for
from student.train.intermediate import learn_layers
from student.train.layer_choice import layer_loss
from student.train.layer_loss import LayerLoss
from student.train.learner import ExampleTask, make_optimizer
from student.train.token_vectors import start_from_teacher
from student.train.training_data import TrainingData
from student.train.used_rows import active_ids, neutralise_untrained, renumber, restore, shrunk, with_used_rows
from student.train.word_vectors import start_from_words


@dataclass(frozen=True)
class Subject:
    """What a student is trained for.

    Attributes:
        config: the flags, those alone that fit the task.
        student_config: the architecture.
        data: the rows.
        folder: where its weights are kept.
        layers: what a bert starts from.
    """

    config: TrainConfig
    student_config: StudentConfig
    data: TrainingData
    folder: Path
    layers: BertStart | None = None

    @property
    def name(self) -> str:
        """Name of its set."""
        return self.data.logit_set.name

    @cached_property
    def splits(self) -> dict[str, Examples]:
        """The rows in the form that the student reads; of the training rows some as ``held-out``, if that is asked for.

        Raises:
            DataError: if none would be held out, or none left.
        """
        splits = self.data.splits
        if self.config.held_out is not None:
            train, held_out = hold_out(splits["train"], self.student_config.target, self.config.held_out)
            others = {split: rows for split, rows in splits.items() if split != "train"}
            splits = {"train": train, HELD_OUT: held_out} | others  # the first to be scored decides
        return {split: as_read(rows, self.student_config) for split, rows in splits.items()}

    @property
    def dev_splits(self) -> dict[str, Examples]:
        """Those of `splits` that the student is scored on."""
        return {split: examples for split, examples in self.splits.items() if split != "train"}


def fit(
    config: TrainConfig, subjects: Sequence[Subject], vectors: VocabularyVectors | None, run: Run
) -> tuple[list[Student], list[Entry]]:
    """Trains the rows of the tables that the data use.

    Returns:
        The best student of each subject, and a record of each epoch. With ``tasks`` its metrics are those of
        `joint_scores`.
    """
    splits = [subject.splits for subject in subjects]
    students = _new_students(config, subjects, [part["train"] for part in splits], vectors)
    active = active_ids((rows for part in splits for rows in part.values()), students[0].config.pad_id)
    smalls: list[Student] = []
    for student in students:
        smalls.append(shrunk(student, active, smalls[0].encoder if smalls else None).to(default_device()))
    renumbered = [{split: renumber(rows, active) for split, rows in part.items()} for part in splits]
    layers = _layer_loss(subjects[0], smalls[0], renumbered[0]["train"])
    if layers is not None and config.intermediate_epochs:
        learn_layers(config, smalls[0], layers, renumbered[0]["train"], run)
        layers = None
    optimizer = make_optimizer(
        config.optimizer,
        config.peak_learning_rate,
        config.max_grad_norm,
        smalls[0].encoder,
        *(small.head for small in smalls),
        *([] if layers is None else [layers]),
    )
    note_slow_kernels(smalls[0].device)

    def restored(number: int) -> Student:
        student, small = students[number], smalls[number]
        restore(student, small, active)
        student.config = with_used_rows(student.config, student.encoder)
        return student

    tasks: dict[str, BatchedTask] = {
        subject.name: ExampleTask(subject.config, small, part, optimizer, layers, partial(_write, restored, number))
        for number, (subject, small, part) in enumerate(zip(subjects, smalls, renumbered, strict=True))
    }

    def save(folder: Path) -> None:
        whole = {folder / subject.name: restored(number) for number, subject in enumerate(subjects)}
        if students[0].config.is_hugging_face:  # a BERT's folder is whole, so that others can read it
            for own, student in whole.items():
                student.save(own)
        else:
            save_sharing({own: (student.config_json, student) for own, student in whole.items()})

    if config.tasks is None:
        (task,) = tasks.values()
        history = loop.fit(run, task, optimizer, epochs(config, task.batches.steps_per_epoch), config.report_to)
    else:
        model = nn.ModuleList([*smalls, *([] if layers is None else [layers])])
        joint = JointTask(model, tasks, config.seed, save)
        history = loop.fit(run, joint, optimizer, epochs(config, joint.batches.steps_per_epoch), config.report_to)
    return [Student.load(subject.folder).to(default_device()) for subject in subjects], history


def epochs(config: TrainConfig, steps_per_epoch: int) -> loop.Schedule:
    """An entry for each epoch; the best one's weights are saved."""
    assert config.num_train_epochs is not None, "the number of rows has decided it"
    return loop.Schedule.of_epochs(
        steps_per_epoch,
        config.num_train_epochs,
        config.seed,
        warmup_steps=config.warmup_steps,
        patience=config.early_stopping_patience,
    )


def note_slow_kernels(device: torch.device) -> None:
    """Notes that steps take long where the compiled kernels are missing."""
    if device.type == "cpu" and not IS_COMPILED:
        console.note("the compiled kernels were not built at installation: every step takes several times longer")


def _write(restored: Callable[[int], Student], number: int, folder: Path) -> None:
    restored(number).save(folder)


def _layer_loss(subject: Subject, student: Student, examples: Examples) -> LayerLoss | None:
    if not subject.config.objectives:
        return None
    data = subject.data
    return layer_loss(subject.config, student, data.logit_set.sets[0], data.facts["special_ids"], examples)


def _new_students(
    config: TrainConfig,
    subjects: Sequence[Subject],
    trains: Sequence[Examples],
    vectors: VocabularyVectors | None,
) -> list[Student]:
    """Students that share the first one's encoder, as they start."""
    seed_step(config.seed, 0)
    students: list[Student] = []
    most = 0 if config.num_bigrams == 0 else subjects[0].student_config.num_bigrams
    pairs_K2 = frequent_pairs(trains, most)
    for subject in subjects:
        student_config = with_bigrams(subject.student_config, len(pairs_K2))
        students.append(Student(student_config, students[0].encoder if students else None))
    if len(pairs_K2):
        matrix_encoder(students[0].encoder).set_pairs(torch.from_numpy(pairs_K2))
    layers = subjects[0].layers
    if layers is not None:
        copy_layers(layers, students[0].encoder)
    elif config.init_from is None:
        neutralise_untrained(students[0], *trains)
    else:
        copy_embeddings(config.init_from, students[0].encoder)
        for student in students:
            if has_head_for(config.init_from, student.config):
                copy_head(config.init_from, student)
    if config.init_vectors is not None:
        start_from_words(students[0].encoder, config.init_vectors, subjects[0].data.logit_set.tokenizer_json())
    if vectors is not None:
        start_from_teacher(students[0].encoder, vectors)
    return students
