"""Adds the variants that a task's manifest requests if the flags of a dump do not decide about variants."""

from pathlib import Path

from pipeline import console
from pipeline.errors import ConfigError
from pipeline.sets.record import FILE_NAME, read_set_record
from teacher.augment.augment import Augmentation


def announce_default_variants(wanted: Augmentation, root: Path) -> None:
    """Prints a note that variants are added although no flag requests them.

    Raises:
        ConfigError: if the set in ``root`` was started without them.
    """
    task, name = wanted.task, "none"
    # A set that was started without variants has another fingerprint, and the general message would not name the cause.
    if (root / FILE_NAME).exists() and read_set_record(root).augmentation is None:
        raise ConfigError(
            f"{root} was dumped without variants, which the manifest now requires. Use --augment {name} to continue "
            "it, or --name to write another set."
        )
    count = len(wanted.sides)
    console.note(
        f"{task.name}: up to {count} variants of each training row by {wanted.method.name} are added, as set in the "
        f"manifest, because students gain from them. The teacher reads up to {count + 1} times as many training rows. "
        f"Use --augment {name} to turn that off"
    )
