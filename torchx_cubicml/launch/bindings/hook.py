"""Values that the recorder sets in the job by a hook: no word of the command says them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.bindings.spelling import same_value

if TYPE_CHECKING:
    from torchx_cubicml.launch.bindings.base import BindingQuery
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.trial import Value
    from torchx_cubicml.space import Binding


class HookBinding:
    """What the recorder sets in the job; without it the program does as it does by default."""

    def says(self, launch: Launch, binding: Binding, wanted: BindingQuery) -> bool:
        """Whether it is set, or a default is known."""
        return wanted.default is not None or binding.name in launch.hooks

    def read(self, launch: Launch, binding: Binding, wanted: BindingQuery) -> Value:
        """Return what it is set to."""
        value = launch.hooks.get(binding.name, wanted.default)
        if value is None:
            raise LaunchError(f"{wanted.owner} has a hook and no default")
        return value

    def write(self, launch: Launch, binding: Binding, wanted: BindingQuery, value: Value) -> Launch:
        """Set it; nothing is hooked where the program does so anyway."""
        hooks = {name: kept for name, kept in launch.hooks.items() if name != binding.name}
        as_typed = same_value(value, wanted.default) if wanted.default is not None else False
        return replace(launch, hooks=hooks if as_typed else {**hooks, binding.name: value})
