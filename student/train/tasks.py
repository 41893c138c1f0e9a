"""Students of several tasks that are trained together and share one encoder.

The run's folder holds the record of the training and a folder for each task, which is a student's folder and a run's
like any other: commands take it by its path.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, raise_all
from pipeline.files import make_folder, remove_temporaries
from pipeline.sets.reader import ExampleSet
from pipeline.training.joint import check_free, entry_of, joint_settings
from pipeline.training.run import Run
from pipeline.training.run_record import RUN_RECORD, STUDENTS, RunRecord, best_of, finish_run, write_run_record
from student.config import TrainConfig
from student.model.architecture import Facts, StudentConfig
from student.model.design import design
from student.train.bert_start import BertStart, bert_start
from student.train.fit import Subject, fit
from student.train.outcome import context, result, settings, tell_start, write_card, write_tokenizer
from student.train.training_data import TrainingData, apart, default_name, open_training_set, read_data, task_facts

ONE_ENCODER = {  # what sets have in common
    "tokenizer_sha256": "tokenizer",
    "max_seq_length": "--max-seq-length (with --doc-stride that of their longest rows)",
}


def train_tasks(config: TrainConfig, command: str, data: Sequence[TrainingData] = ()) -> RunRecord:
    """Trains a student for each of ``config.tasks``, or goes on with them.

    A step is a batch of one task, an epoch all batches of all tasks in random order. The best epoch is that of the
    best mean of the tasks' first metrics on their first dev splits.

    Args:
        config: everything that decides the students.
        command: the command line, for the record.
        data: the rows of each task, if they have been read already.

    Returns:
        The content of the ``run.json`` of them all; each task's folder has its own.

    Raises:
        ConfigError: naming every flag that does not fit, and sets that cannot share an encoder.
        DataError: if there is no such set, or it has no rows to train on.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    subjects = _subjects(config, data)
    num_rows = sum(len(subject.data.splits["train"]) for subject in subjects)
    config = config.for_rows(num_rows)
    subjects = [replace(subject, config=subject.config.for_rows(num_rows)) for subject in subjects]
    names = [subject.name for subject in subjects]
    folder = subjects[0].folder.parent
    giver = subjects[vectors_giver([one.data.logit_set for one in subjects])]
    vectors = giver.data.start(config)
    by_task = {one.name: settings(one, vectors if one is giver else None) | {"tasks": names} for one in subjects}
    places = [place for one in subjects for place in context(one)["logit_sets"]]
    run = Run(folder, joint_settings(by_task), command, {STUDENTS: names, "logit_sets": places})
    finished = run.start()
    if finished is not None:
        return finished
    for one in subjects:
        check_free(one.folder / RUN_RECORD, by_task[one.name])
    for one in subjects:
        make_folder(one.folder)
        remove_temporaries(one.folder)
        begun = {"state": "running", "command": command, "settings": by_task[one.name]} | context(one)
        write_run_record(one.folder / RUN_RECORD, begun)
        write_tokenizer(one)
    tell_start(subjects, giver.data.logit_set if vectors else None)
    students, history = fit(config, subjects, vectors, run)
    best = best_of(history)
    chosen = {"chosen_by": f"the mean over {', '.join(names)}"}
    evaluation: dict[str, Any] = {}
    for one, student in zip(subjects, students, strict=True):
        own, own_best = [entry_of(one.name, entry) for entry in history], entry_of(one.name, best)
        record = finish_run(one.folder / RUN_RECORD, result(one, student, own, own_best) | chosen)
        write_card(one, student, record)
        evaluation |= {f"{one.name}/{split}": scores for split, scores in record["result"]["evaluation"].items()}
    return run.finish({"history": history, "best": best, "evaluation": evaluation})


def _subjects(config: TrainConfig, data: Sequence[TrainingData]) -> list[Subject]:
    """The tasks, once their sets are known to fit each other; only then rows are read."""
    configs = apart(config)
    sets = [one.logit_set for one in data] or [open_training_set(one) for one in configs]
    designs = designed_together(configs, sets, [one.facts for one in data] or [task_facts(one) for one in sets])
    rows = data or [read_data(*both) for both in zip(configs, sets, strict=True)]
    folder = config.output_dir or Path("runs") / default_name(sets)
    return [
        Subject(flags, made, one, folder / one.logit_set.name, layers)
        for (flags, made, layers), one in zip(designs, rows, strict=True)
    ]


def designed_together(
    configs: Sequence[TrainConfig], sets: Sequence[ExampleSet], facts: Sequence[Facts]
) -> list[tuple[TrainConfig, StudentConfig, BertStart | None]]:
    """Of each task the flags that are for it, the architecture they ask for, and what a bert starts from.

    Args:
        configs: the flags of each task.
        sets: the task's sets, opened.
        facts: what they decide.

    Raises:
        ConfigError: naming every flag that does not fit, and sets that cannot share an encoder.
    """
    names = [one.name for one in sets]
    twice = sorted({name for name in names if names.count(name) > 1})
    raise_all(ConfigError, "--tasks", [f"{one} is there twice; a task's folder is called as its set" for one in twice])
    check_together(dict(zip(names, facts, strict=True)))
    kinds = {own["target"].kind for own in facts}
    fitting = [of_task(one, own["target"].kind, kinds) for one, own in zip(configs, facts, strict=True)]
    layers = bert_start(fitting[0], sets[0])
    inherited = layers.inherited if layers else None
    designs = [design(one, own, inherited) for one, own in zip(fitting, facts, strict=True)]
    assert len({one.encoder_shape for one in designs}) == 1, "the flags and the tokenizer decide it"
    return [(flags, made, layers) for flags, made in zip(fitting, designs, strict=True)]


def vectors_giver(sets: Sequence[ExampleSet]) -> int:
    """Which set's token vectors the encoder may start from: the first that has some, else the first."""
    return next((k for k, one in enumerate(sets) if one.sets[0].record.signals.token_vectors is not None), 0)


def check_together(facts: Mapping[str, Facts]) -> None:
    """Raises ConfigError if sets cannot share an encoder, naming what each has; ``facts`` are by name of the set."""
    problems = []
    for key, words in ONE_ENCODER.items():
        values = {name: own[key] for name, own in facts.items()}
        if len(set(values.values())) > 1:
            told = ", ".join(f"{str(value)[:12]} of {name}" for name, value in values.items())
            problems.append(f"sets that share an encoder have the same {words}, but theirs are {told}")
    raise_all(ConfigError, "--tasks", problems)


def of_task(config: TrainConfig, kind: str, kinds: Set[str]) -> TrainConfig:
    """The flags for one of several tasks: without those that are for tasks of another kind, if there are such.

    Args:
        config: the flags for all.
        kind: of the task's target.
        kinds: of all tasks' targets.
    """
    left_out: set[str] = set()
    if kind == "score" and kinds != {"score"}:
        left_out |= {"temperature", "soft_loss"}
    if kind != "classes" and "classes" in kinds:
        left_out.add("class_weights")
    defaults = {name: TrainConfig.model_fields[name].default for name in left_out}
    return config.model_copy(update=defaults)
