"""Settings of ``distill augment``; free of torch, so that ``--help`` is quick."""

from typing import ClassVar

from pydantic import Field

from pipeline.config import JsonFlags, OwnDataFlags, names_of, refuse_flags
from pipeline.errors import ConfigError, did_you_mean
from pipeline.sets.record_parts import SET_NAME
from pipeline.tasks.task import TRAIN, Task
from teacher.augment.methods import METHODS, KnownMethod, MethodFlags, check_flags, flags_of_others


class AugmentConfig(MethodFlags, OwnDataFlags, JsonFlags):
    """Flags of ``distill augment``."""

    helps: ClassVar = {
        "precision": "tinybert: arithmetic of the masked LM.",
        "max_seq_length": "tinybert: longest input of the masked LM in tokens.",
    }
    task: str | None = Field(None, description="Task to augment; see `distill tasks`.")
    method: KnownMethod = Field(
        description="tinybert: words a masked LM proposes; mask-pos: masks and words of a kind; mask-each: each word "
        "masked in turn, of dev rows, to see which ones matter."
    )
    splits: str | None = Field(None, description="mask-each: the split that it masks. (default: the first dev split)")
    name: str | None = Field(None, pattern=SET_NAME, description="Name of the variants. (default: TASK-METHOD)")

    def check(self) -> None:
        """Raises ConfigError for flags of other methods, or of a cluster that would have nothing to do."""
        check_flags(self, self.method)
        self.check_ray()
        if self.method != "tinybert":
            refuse_flags(self, {"ray"}, "is for method tinybert, whose masked LM takes the time")
        refuse_flags(self, flags_of_others(self.method), f"is not for method {self.method}")

    def split_of(self, task: Task) -> str:
        """The split whose rows get variants.

        Raises:
            ConfigError: if the task has none, several are named, or train where nobody shall learn from them.
        """
        if METHODS[self.method].for_training:
            names: tuple[str, ...] = (TRAIN,)
        else:
            names = names_of(self.splits) or task.dev_splits[:1]
        if len(names) != 1:
            raise ConfigError(f"--splits: {self.method} takes one split at a time, not {', '.join(names) or 'none'}")
        if not METHODS[self.method].for_training and names[0] == TRAIN:
            raise ConfigError(f"--splits {TRAIN}: rows of {self.method} are not to be learnt from; name a dev split")
        if names[0] not in task.splits:
            raise ConfigError(f"task {task.name!r}: has no split {names[0]!r}, and only its rows are augmented")
        return names[0]

    def variants_of(self, task: Task) -> int:
        """How many variants are wanted: as the flag says, or the task, or as usual.

        Raises:
            ConfigError: if the task tells the number for a method that there is not.
        """
        unknown = next((name for name in task.num_variants if name not in METHODS), None)
        if unknown is not None:
            problem = f"unknown method {unknown!r}: {did_you_mean(unknown, METHODS)}"
            raise ConfigError(f"task {task.name!r}: num_variants: {problem}")
        return self.num_variants or task.num_variants.get(self.method, METHODS[self.method].usual_variants)
