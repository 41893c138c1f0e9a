"""Flags of the commands that can share their work among workers on a Ray cluster."""

import json
from typing import Any, ClassVar, Literal

from pydantic import Field

from pipeline.config import Config, refuse_flags
from pipeline.environment import numbers
from pipeline.errors import ConfigError

LOCAL = "local"


class RayFlags(Config):
    """Where the work is done, by whom."""

    panel: ClassVar = "A Ray cluster"
    ray: str | None = Field(
        None,
        description="Share the work among workers on a Ray cluster: its address, auto for the one that this machine "
        "belongs to, local (or --ray alone) to start one here.",
    )
    ray_workers: int | None = Field(
        None, ge=1, description="How many workers. (default: as many as the cluster has room for)"
    )
    ray_resources: str | None = Field(
        None, description='What each worker takes, as JSON. (default: {"GPU": 1} where there are GPUs, else {"CPU": 1})'
    )

    def check_ray(self) -> None:
        """Raises ConfigError for flags that say how a cluster is used without one, and for resources that are none."""
        if self.ray is None:
            refuse_flags(self, {"ray_workers", "ray_resources"}, "is for workers on a cluster; give --ray, too")
        elif numbers(["WORLD_SIZE"]).get("WORLD_SIZE", 1) > 1:
            raise ConfigError("--ray: places its workers itself; start the command without accelerate or torchrun")
        self.resources()

    def resources(self) -> dict[str, float] | None:
        """What each worker takes, by name; None if it is not told.

        Raises:
            ConfigError: if that is no object of amounts that Ray knows: whole ones, and parts of 1 from 0.0001 on.
        """
        if self.ray_resources is None:
            return None
        try:
            told: Any = json.loads(self.ray_resources)
        except ValueError:
            told = None
        if not isinstance(told, dict) or not told or not all(_is_amount(amount) for amount in told.values()):
            raise ConfigError(f'--ray-resources: {self.ray_resources} should be like {{"GPU": 1, "CPU": 0.5}}')
        return {str(name): float(amount) for name, amount in told.items()}


class RayWriteFlags(RayFlags):
    """Where the work is done, by whom, and who writes what comes of it."""

    panel: ClassVar = RayFlags.panel
    ray_write: Literal["driver", "workers"] = Field(
        "driver",
        description="Who writes files: the driver all of them, or each worker its own, into a store that all machines "
        "see under the same path; so what is heavy goes through no single machine.",
    )

    def check_ray(self) -> None:
        """See `RayFlags`."""
        super().check_ray()
        if self.ray is None:
            refuse_flags(self, {"ray_write"}, "is for workers on a cluster; give --ray, too")


def _is_amount(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0.0001 <= value < float("inf") and (value < 1 or value == int(value))
