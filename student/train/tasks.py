"""Students of several tasks that are trained together and share one encoder.

The run's folder holds the record of the training and a folder for each task, which is a student's folder and a run's
like any other: commands take it by its path.
"""

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config import flag_name
from pipeline.errors import ConfigError, raise_all
from pipeline.files import make_folder, remove_temporaries
from pipeline.logit_set.reader import LogitSet
from pipeline.training.run import Run
from pipeline.training.run_record import RUN_RECORD, STUDENTS, RunRecord, best_of, finish_run, write_run_record
from pipeline.training.several import check_free, entry_of, joint_settings
from student.config import TrainConfig
from student.model.architecture import Facts
from student.model.design import design
from student.train.bert_start import bert_start
from student.train.fit import Subject, fit
from student.train.layer_flags import LayerFlags
from student.train.outcome import context, result, settings, tell_start, write_card, write_tokenizer
from student.train.training_data import default_name, open_training_set, read_data, task_facts

ONE_ENCODER = {  # what sets have in common
    "tokenizer_sha256": "tokenizer",
    "max_seq_length": "--max-seq-length (with --doc-stride that of their longest rows)",
}


def train_tasks(config: TrainConfig, command: str) -> RunRecord:
    """Trains a student for each of ``config.tasks``, or goes on with them.

    A step is a batch of one task, an epoch all batches of all tasks in random order. The best epoch is that of the
    best mean of the tasks' first metrics on their first dev splits.

    Returns:
        The content of the ``run.json`` of them all; each task's folder has its own.

    Raises:
        ConfigError: naming every flag that does not fit, and sets that cannot share an encoder.
        DataError: if there is no such set, or it has no rows to train on.
        FingerprintMismatchError: if the folder holds a run with other settings.
    """
    subjects = _subjects(config)
    num_rows = sum(len(subject.data.splits["train"]) for subject in subjects)
    config = config.for_rows(num_rows)
    subjects = [replace(subject, config=subject.config.for_rows(num_rows)) for subject in subjects]
    names = [subject.name for subject in subjects]
    folder = subjects[0].folder.parent
    giver = next((one for one in subjects if _has_vectors(one.data.logit_set)), subjects[0])
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


def _subjects(config: TrainConfig) -> list[Subject]:
    """The tasks, once their sets are known to fit each other; only then rows are read."""
    raise_all(ConfigError, "wrong flags", _contradictions(config))
    configs = [config.model_copy(update={"tasks": None, "logits": (name,)}) for name in config.task_names]
    sets = [open_training_set(one) for one in configs]
    names = [one.name for one in sets]
    twice = sorted({name for name in names if names.count(name) > 1})
    raise_all(ConfigError, "--tasks", [f"{one} is there twice; a task's folder is called as its set" for one in twice])
    facts = dict(zip(names, map(task_facts, sets), strict=True))
    check_together(facts)
    kinds = {own["target"].kind for own in facts.values()}
    fitting = [of_task(one, own["target"].kind, kinds) for one, own in zip(configs, facts.values(), strict=True)]
    layers = bert_start(fitting[0], sets[0])
    inherited = layers.inherited if layers else None
    designs = [design(one, own, inherited) for one, own in zip(fitting, facts.values(), strict=True)]
    assert len({one.encoder_shape for one in designs}) == 1, "the flags and the tokenizer decide it"
    folder = config.output_dir or Path("runs") / default_name(sets)
    return [
        Subject(flags, made, read_data(flags, one), folder / one.name, layers)
        for flags, made, one in zip(fitting, designs, sets, strict=True)
    ]


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


def _contradictions(config: TrainConfig) -> list[str]:
    given = [name for name in LayerFlags.model_fields if getattr(config, name)]
    problems = [f"{flag_name(name)}: layers are stored for one task; leave out --tasks" for name in given]
    if not config.task_names:
        problems.append(f"--tasks {config.tasks!r}: names no set")
    if config.task is not None or config.logits:
        problems.append("--tasks: names the sets; leave --task and --logits out")
    if config.query is not None:
        problems.append("--query: chooses rows of one task; --where is for all of --tasks")
    if config.mix is not None:
        problems.append("--mix: is for several teachers of one task, not for --tasks")
    return problems


def _has_vectors(logit_set: LogitSet) -> bool:
    return logit_set.sets[0].record.signals.token_vectors is not None
