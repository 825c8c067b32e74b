"""Binding to an environment variable: reads and sets its value."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.space.spelling import read_scalar, spell, spell_switch

if TYPE_CHECKING:
    from torchx_cubicml.launch.bindings.base import BindingQuery
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.values import Value
    from torchx_cubicml.space import Binding


class EnvBinding:
    """Binding to an environment variable; entries of a per-layer value are joined by commas."""

    def says(self, launch: Launch, binding: Binding, query: BindingQuery) -> bool:
        """Return whether the variable is set, or a default is known."""
        return query.default is not None or binding.name in launch.env

    def read(self, launch: Launch, binding: Binding, query: BindingQuery) -> Value:
        """Return the value of the variable."""
        name, text = binding.name, launch.env.get(binding.name)
        if text is None:
            if query.default is not None:
                return query.default
            there = ", ".join(sorted(launch.env)) or "none"
            raise LaunchError(
                f"variable {name} of {query.owner} is not set in the command and has no default; "
                f"variables there: {there}"
            )
        if query.count is not None:
            texts = text.split(",")
            if len(texts) not in {1, query.count}:
                raise LaunchError(f"{name} of {query.owner} has {len(texts)} entries; it must have 1 or {query.count}")
            texts = texts * query.count if len(texts) == 1 else texts
            return tuple(read_scalar(entry, query.choices, where=name) for entry in texts)
        return read_scalar(text, query.choices, where=name)

    def write(self, launch: Launch, binding: Binding, query: BindingQuery, value: Value) -> Launch:
        """Return the launch with the variable set."""
        like = launch.env.get(binding.name, "1")
        text = spell_switch(value, like=like) if isinstance(value, bool) else spell(value)
        return replace(launch, env={**launch.env, binding.name: text})
