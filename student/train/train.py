"""Stage two: a student from stored logits, with no teacher in memory."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.training.run import Run
from pipeline.training.run_record import RunRecord, best_of
from student.config import TrainConfig
from student.train.fit import Subject, fit
from student.train.intermediate import end_stage, stage_history
from student.train.outcome import context, result, settings, tell_start, write_card, write_tokenizer
from student.train.tasks import train_tasks
from student.train.training_data import TrainingData, default_name, designed, open_training_set, read_data, task_facts
from student.words.train import is_of_words, train_words


def train(config: TrainConfig, command: str, data: Sequence[TrainingData] = ()) -> RunRecord:
    """Trains the student that ``config`` describes, or the students of its ``tasks``, or goes on with it.

    The run folder holds ``run.json`` (settings, query, hashes, metrics per epoch), the best epoch's weights by the
    first metric on the first dev split, the tokenizer and a card; for several tasks see `train_tasks`.

    Args:
        config: everything that decides the student.
        command: the command line, for the record.
        data: the rows of each set, see `load_data`, if they have been read already.

    Returns:
        The content of ``run.json``.

    Raises:
        ConfigError: naming every flag that does not fit.
        DataError: if there is no such set, or it has no rows to train on.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    if config.tasks is not None:
        return train_tasks(config, command, data)
    if not data and is_of_words(config):
        return train_words(config, command)
    logit_set = data[0].logit_set if data else open_training_set(config)
    student_config, layers = designed(config, logit_set, data[0].facts if data else task_facts(logit_set))
    rows = data[0] if data else read_data(config, logit_set)
    config = config.for_rows(len(rows.splits["train"]))
    folder = config.output_dir or Path("runs") / default_name(logit_set.sets)
    subject = Subject(config, student_config, rows, folder, layers)
    vectors = rows.start(config)
    run = Run(folder, settings(subject, vectors), command, context(subject))
    finished = run.start()
    if finished is not None or not config.intermediate_epochs:
        end_stage(folder)  # which a killed or another run may have left
    if finished is not None:
        return finished
    write_tokenizer(subject)
    tell_start([subject], logit_set if vectors else None)
    [student], history = fit(config, [subject], vectors, run)
    found = result(subject, student, history, best_of(history)) | stage_history(folder)
    write_card(subject, student, run.record() | {"result": found})
    record = run.finish(found)
    end_stage(folder)
    return record
