"""Binding to a hook: a value that the recorder sets in the job, and that no word of the command states."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.space.spelling import same_value

if TYPE_CHECKING:
    from torchx_cubicml.launch.bindings.base import BindingQuery
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.values import Value
    from torchx_cubicml.space import Binding


class HookBinding:
    """Binding to a hook of the recorder; without the hook the program keeps its default."""

    def says(self, launch: Launch, binding: Binding, query: BindingQuery) -> bool:
        """Return whether the hook is set, or a default is known."""
        return query.default is not None or binding.name in launch.hooks

    def read(self, launch: Launch, binding: Binding, query: BindingQuery) -> Value:
        """Return the value of the hook."""
        value = launch.hooks.get(binding.name, query.default)
        if value is None:
            raise LaunchError(f"{query.owner} has a hook but no default")
        return value

    def write(self, launch: Launch, binding: Binding, query: BindingQuery, value: Value) -> Launch:
        """Return the launch with the hook set, or without the hook if the value is the program's default."""
        hooks = {name: kept for name, kept in launch.hooks.items() if name != binding.name}
        is_default = same_value(value, query.default) if query.default is not None else False
        return replace(launch, hooks=hooks if is_default else {**hooks, binding.name: value})
