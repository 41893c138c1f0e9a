"""How a student of words, or one that is pretrained, is written to its folder and read from it."""

from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn

from pipeline.errors import IntegrityError
from student.model.config_file import read_encoder_config
from student.model.weights import CONFIG_FILE, check_room, load_weights, save_weights


class Stored(nn.Module):
    """A model with a folder.

    Attributes:
        config: its architecture.
        config_type: what that is, which tells one kind from the others.
        does: what tells the kind in messages.
    """

    config: Any
    config_type: ClassVar[type]
    does: ClassVar[str]

    def save(self, folder: Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``, each whole or not at all."""
        save_weights(folder, self.config.model_dump_json(indent=2), self)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a student of this kind.

        Raises:
            IntegrityError: if a file is missing or damaged, or it is another kind of student.
        """
        config = read_encoder_config(folder / CONFIG_FILE)
        if not isinstance(config, cls.config_type):
            raise IntegrityError(f"{folder}: not a student that {cls.does}")
        check_room(folder, config.least_bytes)
        student = cls(config)
        load_weights(folder, student)
        return student
