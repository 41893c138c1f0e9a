"""Recipes: settings of ``distill train-student`` as a YAML file, shipped ones and those of users."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pipeline.config import parse_settings, parse_yaml
from pipeline.errors import ConfigError, did_you_mean, unreadable
from pipeline.flat_settings import given
from student.settings import OneTask, RunPlaces, Sets, SeveralTasks, TrainSettings

# A recipe names one source of sets. A flag for another kind of source replaces it.
SETS = {source.chosen_by for source in (OneTask, Sets, SeveralTasks)}


@dataclass(frozen=True)
class Recipe:
    """The content of a recipe.

    Attributes:
        settings: the settings with the recipe's values.
        grid: values to try in a sweep, by setting.
    """

    settings: TrainSettings
    grid: dict[str, list[Any]]


def recipe_names() -> list[str]:
    """Returns the names of the recipes in the package."""
    folder = files("student").joinpath("recipes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_recipe(name_or_path: str) -> Recipe:
    """Reads a shipped recipe by name, or a file.

    Raises:
        ConfigError: for an unknown name, or a file with unknown keys or wrong values, listing every problem.
    """
    if name_or_path in recipe_names():
        text = files("student").joinpath("recipes", f"{name_or_path}.yaml").read_text(encoding="utf-8")
    else:
        text = _read(name_or_path)
    values = parse_yaml(text, f"--recipe {name_or_path}")
    if not isinstance(values, dict):
        raise ConfigError(f"--recipe {name_or_path}: not a mapping of settings")
    # `TrainSettings` refuses unknown keys, so the grid is taken out before parsing.
    grid = values.pop("grid", {})
    places = RunPlaces.model_fields.keys() & values.keys()
    # A recipe is shared between machines, where paths of its author mean nothing.
    if places:
        raise ConfigError(f"--recipe {name_or_path}: {sorted(places)} cannot be set in a recipe. Use flags")
    if not isinstance(grid, dict) or not all(isinstance(v, list) and v for v in grid.values()):
        raise ConfigError(f"--recipe {name_or_path}: grid: give a list of values for each setting (got {grid!r})")
    return Recipe(parse_settings(TrainSettings, values, f"--recipe {name_or_path}"), grid)


def with_recipe(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the given values by flag, with the recipe's values for the other flags.

    Raises:
        ConfigError: if the recipe is wrong.
    """
    if values.get("recipe") is None:
        return dict(values)
    taken = given(load_recipe(values["recipe"]).settings)
    # Naming another source replaces the recipe's source as a whole, otherwise both would be set.
    if SETS & values.keys():
        taken = {key: value for key, value in taken.items() if key not in SETS}
    return taken | dict(values)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            f"--recipe: no file and no shipped recipe {path!r}. {did_you_mean(path, recipe_names())}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--recipe {path}: {unreadable(error)}") from error
