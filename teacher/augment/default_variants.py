"""Adds the variants that a task's manifest requests if the flags of a dump do not decide about variants."""

from pathlib import Path

from pipeline import console
from pipeline.errors import ConfigError, did_you_mean
from pipeline.sets.record import FILE_NAME, read_set_record
from pipeline.tasks.task import TRAIN, Task, load_task
from teacher.augment.augment_settings import AugmentConfig
from teacher.augment.methods import METHODS, NO_METHOD
from teacher.config import DumpTask


def with_default_variants(config: DumpTask) -> DumpTask:
    """The flags as if ``--augment`` were given, with the manifest's ``augment`` where it was not; a note tells of that.

    The set keeps the name that it has without variants.

    Raises:
        ConfigError: if there is no such task, or no such method to learn from.
    """
    if config.augment == NO_METHOD:
        return config.model_copy(update={"augment": None})
    if config.augment is not None or not _may_have_variants(config):
        return config
    task = load_task(config.task, config.manifest)
    method = default_method(task)
    if method is None:
        return config
    name = config.set_name(task.name)
    # A set that was begun without variants has another fingerprint, and the general message would not name the cause.
    _refuse_set_without(config.store / name)
    chosen = config.model_copy(update={"augment": method, "name": name})
    wanted = chosen.augmentation()
    assert wanted is not None, "a method was chosen"
    # Otherwise existing variants with another number could be used instead.
    if config.variants is None:
        chosen = chosen.model_copy(update={"num_variants": wanted.variants_of(task)})
    _tell(wanted, task)
    return chosen


def default_method(task: Task) -> str | None:
    """How the variants that the task's manifest asks for are made; None if it asks for none.

    Raises:
        ConfigError: if there is no such method to learn from.
    """
    if task.augment is None:
        return None
    methods = [name for name, method in METHODS.items() if method.for_training]
    if task.augment not in methods:
        known = did_you_mean(task.augment, methods)
        raise ConfigError(f"task {task.name!r}: augment: {task.augment!r} makes no rows to learn from: {known}")
    return task.augment


def _may_have_variants(config: DumpTask) -> bool:
    """Whether the dump is one of logits, has all training rows, and takes over no set without variants."""
    has_train = not config.split_names or TRAIN in config.split_names
    return config.signal in (None, "logits") and config.extend is None and has_train


def _refuse_set_without(root: Path) -> None:
    if (root / FILE_NAME).exists() and read_set_record(root).augmentation is None:
        raise ConfigError(
            f"{root} was dumped without variants, which the manifest now asks for: --augment {NO_METHOD} goes on with "
            "it, --name writes another set"
        )


def _tell(wanted: AugmentConfig, task: Task) -> None:
    count = len(METHODS[wanted.method].sides(task.is_pair, wanted.variants_of(task), wanted.pairs))
    console.note(
        f"{task.name}: up to {count} variants of each training row by {wanted.method} are added, as the manifest says, "
        f"because students gain by them; so the teacher reads up to {count + 1} times as many of these rows. "
        f"--augment {NO_METHOD} leaves them out"
    )
