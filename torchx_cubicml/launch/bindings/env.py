"""Values in environment variables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.bindings.spelling import read_scalar, spell, spell_switch, switch_value

if TYPE_CHECKING:
    from torchx_cubicml.launch.bindings.base import BindingQuery
    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.records.trial import Value
    from torchx_cubicml.space import Binding


class EnvBinding:
    """An environment variable; a per-layer value is joined by commas."""

    def says(self, launch: Launch, binding: Binding, wanted: BindingQuery) -> bool:
        """Whether it is set, or a default is known."""
        return wanted.default is not None or binding.name in launch.env

    def read(self, launch: Launch, binding: Binding, wanted: BindingQuery) -> Value:
        """Return its value."""
        name, text = binding.name, launch.env.get(binding.name)
        if text is None:
            if wanted.default is not None:
                return wanted.default
            there = ", ".join(sorted(launch.env)) or "none"
            raise LaunchError(
                f"variable {name} of {wanted.owner} is not set in the command and has no default; set there: {there}"
            )
        if wanted.count is not None:
            texts = text.split(",")
            texts = texts * wanted.count if len(texts) == 1 else texts
            return tuple(read_scalar(entry, wanted.choices, where=name) for entry in texts)
        said = switch_value(text) if bool in map(type, wanted.choices) else None
        return read_scalar(text, wanted.choices, where=name) if said is None else said

    def write(self, launch: Launch, binding: Binding, wanted: BindingQuery, value: Value) -> Launch:
        """Set it."""
        like = launch.env.get(binding.name, "1")
        text = spell_switch(value, like=like) if isinstance(value, bool) else spell(value)
        return replace(launch, env={**launch.env, binding.name: text})
