"""Stage two: trains a student from stored logits, or students of several tasks with a shared encoder.

No teacher is in memory. With several tasks, the run's folder contains the record of the training and a folder for each
task. Each of these is a normal folder of a run, which commands accept.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline import console
from pipeline.errors import ConfigError, raise_all
from pipeline.file_names import RUN_RECORD
from pipeline.record_file import Record, write_record
from pipeline.sets.open import LogitSet
from pipeline.sets.token_vectors import VocabularyVectors
from pipeline.training import loop
from pipeline.training.best_epoch import best_of
from pipeline.training.joint import BatchedTask, JointTask, entry_of, joint_settings, start_parts
from pipeline.training.loop import seed_step
from pipeline.training.run import Run
from pipeline.training.run_record import STUDENTS, Entry
from pipeline.training.schedule import Schedule
from student.data import row_weights
from student.encoders.matrices import matrix_encoder
from student.encoders.products import IS_COMPILED
from student.fit_ngrams import add_ngrams
from student.initial_weights.bert import BertStart, copy_layers
from student.initial_weights.run import HEAD, copy_embeddings, copy_weights, has_head_for
from student.initial_weights.vectors import StartVectors, has_token_vectors, start_from_vectors, start_from_words
from student.layer_stage import end_stage, layer_loss, learn_layers, stage_history
from student.losses.layer_losses import LayerLoss
from student.model.architecture import Facts, TaskConfig
from student.model.build_config import with_default_encoder
from student.model.student import Student, TaskStudent, default_device, share_hidden
from student.record import (
    context,
    deciding_settings,
    note_start,
    result,
    write_card,
    write_tokenizer,
)
from student.row_adam import make_optimizer
from student.settings import TrainSettings, num_bigrams
from student.source_settings import SeveralTasks
from student.training_data import (
    StudentTraining,
    TrainingData,
    build_student_config,
    in_students_vocabulary,
    open_training_set,
    read_data,
    separate,
    source_of,
    task_facts,
    with_rows_to_select,
)
from student.vocabulary_pruning import PrunedStudents, frequent_pairs, neutralise_untrained, with_bigrams

# Writes files to a folder, given the finished students in it, each with its own folder.
WriteFile = Callable[[Path, Mapping[Path, TaskStudent]], object]
# Tables are shared by token id, so ids must come from the same tokenizer and the same truncation.
ONE_ENCODER = {
    "tokenizer_sha256": ("tokenizer", "Use --vocabulary shipped, or a number."),
    "max_seq_length": (
        "--max-seq-length (with --doc-stride that of their longest rows)",
        "Write the sets with the same value.",
    ),
}


def fit_students(
    settings: TrainSettings, command: str, write_file: WriteFile, data: Sequence[TrainingData] = ()
) -> Record:
    """Trains the student that settings describe, or the students of their ``tasks``, or resumes the training.

    The run folder holds ``run.json`` (settings, query, hashes, metrics per epoch), the best epoch's weights by the
    first metric on the first dev split, the tokenizer, and a card.

    Args:
        settings: everything that decides the student.
        command: the command line, for the record.
        write_file: writes further files to the run's folder, given its students with their folders.
        data: the rows of each set, if they have been read already. See `load_data`.

    Returns:
        The content of ``run.json``.

    Raises:
        ConfigError: naming every flag that does not fit.
        DataError: if there is no such set, or it has no rows to train on.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    if isinstance(settings.source, SeveralTasks):
        return _fit_tasks(settings, command, write_file, data)
    [training] = _trainings(settings, data)
    settings, folder = training.settings, training.folder
    vectors = training.data.start(settings.encoder, settings.start)
    # The run is started before any training, so that wrong settings fail in seconds and not after an epoch.
    run = Run(folder, deciding_settings(training, vectors), command, context(training))
    finished = run.start()
    if finished is not None or settings.layers is None or not settings.layers.intermediate_epochs:
        # A killed or earlier run may have left the checkpoint of a first stage, which this run must not resume.
        end_stage(folder)
    if finished is not None:
        return finished
    # The tokenizer is written first, so that the best weights of a killed run can already predict.
    write_tokenizer(training)
    note_start([training], vectors, training.data.logit_set)
    [student], history = fit([training], vectors, run)
    add_ngrams(training, student)
    found = result(training, student, history, best_of(history)) | stage_history(folder)
    unfinished = run.record() | {"result": found}
    write_card(training, student, unfinished)
    # The file gets the thresholds in the record. The run is finished after it, so that a killed one writes it again.
    write_record(folder / RUN_RECORD, unfinished)
    write_file(folder, {folder: student})
    # The first stage's checkpoint is needed until the record is final, so it is removed last.
    record = run.finish(found)
    end_stage(folder)
    return record


def _fit_tasks(settings: TrainSettings, command: str, write_file: WriteFile, data: Sequence[TrainingData]) -> Record:
    """Trains a student for each of several tasks, or resumes the training.

    The students share their encoder. Those of single texts also share the hidden layer of their heads, and so do
    those of pairs.

    A step is a batch of one task, an epoch all batches of all tasks in random order. The best epoch is that of the
    best mean of the tasks' first metrics on their first dev splits.

    Returns: The content of the common ``run.json``. Each task's folder also has its own.
    """
    trainings = _trainings(settings, data)
    names = [training.name for training in trainings]
    folder = trainings[0].folder.parent
    # The tokenizer is the same for all sets, so one set's token vectors serve the shared encoder.
    giver = trainings[vectors_source([one.data.logit_set for one in trainings])]
    vectors = giver.data.start(settings.encoder, settings.start)
    # A set's vectors are in the record of its own task. Pretrained ones belong to no set.
    of_set = isinstance(vectors, VocabularyVectors)
    decided = [deciding_settings(one, None if of_set and one is not giver else vectors) for one in trainings]
    by_task = {one.name: own | {"tasks": names} for one, own in zip(trainings, decided, strict=True)}
    places = [place for one in trainings for place in context(one)["logit_sets"]]
    run = Run(folder, joint_settings(by_task), command, {STUDENTS: names, "logit_sets": places})
    finished = run.start()
    if finished is not None:
        return finished
    parts = {one.folder: by_task[one.name] for one in trainings}
    works = start_parts(parts, command, RUN_RECORD, [context(one) for one in trainings])
    for one in trainings:
        write_tokenizer(one)
    note_start(trainings, vectors, giver.data.logit_set)
    students, history = fit(trainings, vectors, run)
    best = best_of(history)
    chosen = {"chosen_by": f"the mean over {', '.join(names)}"}
    evaluation: dict[str, Any] = {}
    for one, student, work in zip(trainings, students, works, strict=True):
        own, own_best = [entry_of(one.name, entry) for entry in history], entry_of(one.name, best)
        record = work.finish(result(one, student, own, own_best) | chosen)
        write_card(one, student, record)
        evaluation |= {f"{one.name}/{split}": scores for split, scores in record["result"]["evaluation"].items()}
    write_file(folder, {one.folder: student for one, student in zip(trainings, students, strict=True)})
    return run.finish({"history": history, "best": best, "evaluation": evaluation})


def _trainings(settings: TrainSettings, data: Sequence[TrainingData]) -> list[StudentTraining]:
    """Returns the student, or one per task, after flags and sets were checked. Rows are read only after that."""
    parts, are_several = separate(settings), isinstance(settings.source, SeveralTasks)
    sources, access = [source_of(one) for one in parts], (settings.store, settings.allow_unverified)
    sets = [one.logit_set for one in data] or in_students_vocabulary(
        settings, [open_training_set(one, *access) for one in sources]
    )
    # Rows take minutes to read, so all flags are checked before.
    facts = [one.facts for one in data] or [task_facts(one) for one in sets]
    if are_several:
        designs = build_joint_configs(parts, sets, facts)
    else:
        own = with_default_encoder(settings, facts[0])
        designs = [(own, *build_student_config(own, sets[0], facts[0]))]
    rows = data or [read_data(*both) for both in zip(sources, sets, strict=True)]
    folder = settings.output_dir or Path("runs") / "+".join(part.name for one in sets for part in one.sets)
    # Epochs and bigrams depend on the rows that the shared encoder sees, not on those of one task.
    num_rows = sum(len(one.splits["train"]) for one in rows)
    return [
        StudentTraining(
            # Some defaults depend on the number of rows, such as epochs and bigrams.
            with_rows_to_select(own.for_rows(num_rows), made, one),
            made,
            one,
            num_rows,
            folder / one.logit_set.name if are_several else folder,
            layers,
        )
        for (own, made, layers), one in zip(designs, rows, strict=True)
    ]


def build_joint_configs(
    parts: Sequence[TrainSettings], sets: Sequence[LogitSet], facts: Sequence[Facts]
) -> list[tuple[TrainSettings, TaskConfig, BertStart | None]]:
    """Returns for each task its settings, its architecture, and the BERT that it starts from.

    Args:
        parts: the settings of each task.
        sets: the opened sets of each task.
        facts: the facts that the sets determine.

    Raises:
        ConfigError: naming every flag that does not fit, and sets that cannot share an encoder.
    """
    names = [one.name for one in sets]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems = [f"{one} is repeated, but each task's folder has the name of its set" for one in twice]
    raise_all(ConfigError, "--tasks", problems)
    for key, (words, advice) in ONE_ENCODER.items():
        values = [str(own[key])[:12] for own in facts]
        if len({own[key] for own in facts}) > 1:
            each = ", ".join(f"{name} has {value}" for name, value in zip(names, values, strict=True))
            problems.append(f"tasks share an encoder, so their sets need the same {words}: {each}. {advice}")
    raise_all(ConfigError, "--tasks", problems)
    # A loss flag may fit only some tasks, and each task takes the flags that fit it.
    kinds = {own["target"].kind for own in facts}
    losses = [one.loss.of_task(own["target"].kind, kinds) for one, own in zip(parts, facts, strict=True)]
    fitting = [one.model_copy(update={"loss": loss}) for one, loss in zip(parts, losses, strict=True)]
    designs = [build_student_config(*each) for each in zip(fitting, sets, facts, strict=True)]
    # Labelled words need features per token, and maxima and bigrams exist only for whole texts.
    if len({made.encoder for made, _ in designs}) > 1:
        raise ConfigError(
            "--tasks: whole texts and labelled words share an encoder without maxima and bigrams. Add --pooling sum "
            "--num-bigrams 0."
        )
    return [(own, made, designs[0][1]) for own, (made, _) in zip(fitting, designs, strict=True)]


def vectors_source(sets: Sequence[LogitSet]) -> int:
    """Returns the number of the set whose token vectors the encoder may start from: the first that has any."""
    return next((k for k, one in enumerate(sets) if has_token_vectors(one.sets[0])), 0)


def fit(
    trainings: Sequence[StudentTraining], vectors: StartVectors | None, run: Run
) -> tuple[list[TaskStudent], list[Entry]]:
    """Trains the used rows of the tables.

    Returns: The best student of each training, and a record of each epoch. With several trainings, the metrics are
        those of `joint_scores`.
    """
    splits, first = [training.splits for training in trainings], trainings[0].settings
    students = _new_students(trainings, [part["train"] for part in splits], vectors)
    pruned = PrunedStudents.of_rows(students, splits)
    renumbered = [
        {split: one.kind.renumber(rows, pruned.active) for split, rows in part.items()}
        for one, part in zip(trainings, splits, strict=True)
    ]
    layers = _layers_beside(trainings[0], pruned.small[0], renumbered[0]["train"], run)
    beside = [] if layers is None else [layers]
    optimizer = make_optimizer(
        first.optimizer, pruned.small[0].encoder, *(small.head for small in pruned.small), *beside
    )
    if pruned.small[0].device.type == "cpu" and not IS_COMPILED:
        console.note("the compiled kernels were not built at installation: every step takes several times longer")
    tasks: dict[str, BatchedTask] = {
        training.name: training.kind.task(
            training.settings, small, part, optimizer, layers, partial(pruned.write, number)
        )
        for number, (training, small, part) in enumerate(zip(trainings, pruned.small, renumbered, strict=True))
    }
    whole: Any = next(iter(tasks.values()))
    if run.folder != trainings[0].folder:  # only a single task saves into the run's own folder
        names = [training.name for training in trainings]
        # Checkpoints hold the state of one module. The shared encoder is stored once, since tied names are dropped.
        model = nn.ModuleList([*pruned.small, *beside])
        whole = JointTask(model, tasks, first.seed, lambda folder: pruned.write_all([folder / name for name in names]))
    epochs = first.epochs
    assert epochs.num_train_epochs is not None, "set from the number of rows"
    schedule = Schedule.of_epochs(
        whole.batches.steps_per_epoch,
        epochs.num_train_epochs,
        first.seed,
        warmup_steps=epochs.warmup_steps,
        patience=epochs.early_stopping_patience,
    )
    history = loop.fit(run, whole, optimizer, schedule, first.report_to)
    # The best weights are those on disk. The students in memory hold the last epoch's.
    return [one.kind.student.load(one.folder).to(default_device()) for one in trainings], history


def _layers_beside(training: StudentTraining, small: TaskStudent, train: Any, run: Run) -> LayerLoss | None:
    """Returns the losses between layers beside that of the logits. Those of a stage of their own are trained here."""
    settings, data = training.settings, training.data
    if settings.layers is None:
        return None
    assert isinstance(small, Student), "refused by the flags"
    weight_N = row_weights(settings.loss.class_weights, train)
    layers = layer_loss(settings.layers, small, data.logit_set.sets[0], data.facts["special_ids"], train, weight_N)
    if not settings.layers.intermediate_epochs:
        return layers
    # The published protocol trains the layer losses alone first, so that no weight between losses is needed.
    learn_layers(settings, settings.layers.intermediate_epochs, small, layers, train, run)
    return None


def _new_students(
    trainings: Sequence[StudentTraining], trains: Sequence[Any], vectors: StartVectors | None
) -> list[TaskStudent]:
    """Returns initial students that share the first one's encoder, and what they can of their heads."""
    first, start = trainings[0].settings, trainings[0].settings.start
    # All random starts follow one seed, and their order is fixed: changing it changes every student.
    seed_step(first.seed, 0)
    students: list[TaskStudent] = []
    most = (
        0
        if num_bigrams(first.encoder, trainings[0].num_rows) == 0
        else getattr(trainings[0].student_config.encoder, "num_bigrams", 0)
    )
    pairs_K2 = frequent_pairs(trains, most)
    for training in trainings:
        student_config = with_bigrams(training.student_config, len(pairs_K2))
        students.append(training.kind.student(student_config, students[0].encoder if students else None))
    share_hidden(students)
    # Which pairs exist must be known before weights are copied, because copied pairs are matched by token.
    if len(pairs_K2):
        matrix_encoder(students[0].encoder).set_pairs(torch.from_numpy(pairs_K2))
    layers = trainings[0].layers
    if layers is not None:
        copy_layers(layers, students[0].encoder)
    elif start.folder is not None:
        copy_embeddings(start.folder, students[0].encoder)
        for student in students:
            if has_head_for(start.folder, student.config):
                copy_weights(start.folder, HEAD, student.head)
    # Unused rows hold noise, which a new text's tokens would multiply into the product. A copied student lacks them.
    else:
        neutralise_untrained(students[0], *trains)
    # Vectors from files and teachers come last, since they give even unused tokens a meaning.
    if start.words is not None:
        start_from_words(students[0].encoder, start.words, trainings[0].data.logit_set.tokenizer_json())
    if vectors is not None:
        start_from_vectors(students[0].encoder, vectors)
    return students
