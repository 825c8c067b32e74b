"""Values that the recorder sets in the job by a hook: no word of the command says them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.bindings.spelling import same_value

if TYPE_CHECKING:
    from torchx_cubicml.launch.bindings.base import Wanted
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.trial import Value
    from torchx_cubicml.space import Landing


class HookPlace:
    """What the recorder sets in the job; without it the program does as it does by default."""

    def says(self, launch: Launch, landing: Landing, wanted: Wanted) -> bool:
        """Whether it is set, or a default is known."""
        return wanted.default is not None or landing.name in launch.hooks

    def read(self, launch: Launch, landing: Landing, wanted: Wanted) -> Value:
        """Return what it is set to."""
        value = launch.hooks.get(landing.name, wanted.default)
        if value is None:
            raise LaunchError(f"{wanted.owner} has a hook and no default")
        return value

    def write(self, launch: Launch, landing: Landing, wanted: Wanted, value: Value) -> Launch:
        """Set it; nothing is hooked where the program does so anyway."""
        hooks = {name: kept for name, kept in launch.hooks.items() if name != landing.name}
        as_typed = same_value(value, wanted.default) if wanted.default is not None else False
        return replace(launch, hooks=hooks if as_typed else {**hooks, landing.name: value})
