"""Modules of a tensor-parallel plan in a space file: the group that one parameter places, by the plan's own keys.

``modules = ["layers.*.up", "layers.*.down"]`` names them as the script's ``parallelize_module(model, mesh, {...})``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError

if TYPE_CHECKING:
    from torchx_cubicml.space import Binding
    from torchx_cubicml.space.toml.schema import TomlTable

PLACING_HOOK = "parallelize_module"
_MAX_MODULES = 64
_KEY = re.compile(r"[\w*?\[\]!-]+(\.[\w*?\[\]!-]+)*")


def hook_place(table: TomlTable, hook: str) -> str:
    """Return the place that a hook sets: the hook's name, with the modules that it places.

    Raises:
        SpaceError: the hook places modules and the table names none, or it does not and the table names some.
    """
    if hook != PLACING_HOOK:
        if "modules" in table:
            raise table.error("modules", f"only allowed together with hook = '{PLACING_HOOK}'")
        return hook
    if "modules" not in table:
        raise SpaceError(
            f"{table.place}: hook = '{PLACING_HOOK}' needs modules, a list of keys of the script's own plan, such as "
            "['layers.*.up', 'layers.*.down']"
        )
    keys = table.values("modules", most=_MAX_MODULES)
    if not all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys) or len(set(keys)) < len(keys):
        raise table.error("modules", "must be different keys of a plan, such as 'layers.*.up'")
    return f"{hook}.{','.join(map(str, keys))}"


def places_of(binding: Binding) -> tuple[str, ...]:
    """Return the places of a binding that no other one may have: one per module of a group, else its names."""
    hook, dot, modules = binding.name.partition(".")
    if hook == PLACING_HOOK and dot:
        return tuple(f"{hook}.{module}" for module in modules.split(","))
    return (binding.name, *binding.aliases)
