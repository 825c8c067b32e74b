"""Modules of a tensor-parallel plan in a space file: the group that one parameter places, by the plan's own keys.

``modules = ["layers.*.up", "layers.*.down"]`` names them as the script's ``parallelize_module(model, mesh, {...})``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.facts.hooks import hook_names, hook_spec
from torchx_cubicml.space.parameter import BindingKind

if TYPE_CHECKING:
    from torchx_cubicml.space import Binding
    from torchx_cubicml.space.toml.schema import TomlTable

_MAX_MODULES = 64
_KEY = re.compile(r"[\w*?\[\]!-]+(\.[\w*?\[\]!-]+)*")


def hook_place(table: TomlTable, hook: str) -> str:
    """Return the place that a hook sets: the hook's name, with the modules that it places.

    Raises:
        SpaceError: the hook places modules and the table names none, or it does not and the table names some.
    """
    if hook_spec(hook).parts != "modules":
        if "modules" in table:
            raise only_with_modules(table)
        return hook
    if "modules" not in table:
        raise SpaceError(
            f"{table.place}: hook = '{hook}' needs modules, a list of keys of the script's own plan, such as "
            "['layers.*.up', 'layers.*.down']"
        )
    keys = table.values("modules", most=_MAX_MODULES)
    if not all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys) or len(set(keys)) < len(keys):
        raise table.error("modules", "must be different keys of a plan, such as 'layers.*.up'")
    return f"{hook}.{','.join(map(str, keys))}"


def only_with_modules(table: TomlTable) -> SpaceError:
    """Return the error on modules without a hook that places them."""
    names = [name for name in hook_names() if hook_spec(name).parts == "modules"]
    return table.error("modules", f"only allowed together with hook = {' or '.join(map(repr, names))}")


def places_of(binding: Binding) -> tuple[str, ...]:
    """Return the places of a binding that no other one may have: one per module of a group, else its names."""
    hook, dot, modules = binding.name.partition(".")
    if binding.kind == BindingKind.HOOK and dot:
        return tuple(f"{hook}.{module}" for module in modules.split(","))
    return (binding.name, *binding.aliases)
