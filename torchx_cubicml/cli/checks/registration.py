"""Check of the component ``cubicml``: TorchX finds it, and it is this package's own."""

from __future__ import annotations

import inspect
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, wrong

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "component", 30
_OWN = Path(__file__).parents[2] / "components" / "cubicml.py"
_GROUP = "torchx.components"


def check(context: CheckContext) -> Finding:
    """Check that ``torchx run cubicml`` runs this package, and ``torchx run dist.ddp`` TorchX's component."""
    del context
    from torchx.specs import finder

    install = f"{sys.executable} -m pip install torchx-cubicml, in the Python of torchx"
    try:
        component = finder.get_component("cubicml").fn
    except Exception as error:  # noqa: BLE001 - a module of any other package may fail to load
        others = ", ".join(sorted(f"{each.name} of {_owner(each.value)}" for each in entry_points(group=_GROUP)))
        return wrong(f"TorchX has no component cubicml: {error} (registered: {others or 'none'})", install)
    place = _file_of(component)
    if place.resolve() != _OWN.resolve():
        cure = f"uninstall or rename it ({_owner(component.__module__)}); or run {_OWN}:cubicml"
        return wrong(f"another component is called cubicml: {place}", cure)
    try:
        finder.get_component("dist.ddp")
    except Exception:  # noqa: BLE001 - likewise
        cure = f"install this package again, which registers them too: {install}"
        return wrong("TorchX's own components are hidden: there is no dist.ddp", cure)
    return ok(f"torchx run cubicml is {place}")


def _file_of(function: Callable[..., object]) -> Path:
    return Path(inspect.unwrap(function).__code__.co_filename)


def _owner(module: str) -> str:
    """Return the distribution that registers components of a module, else the module."""
    for each in entry_points(group=_GROUP):
        if module == each.value and each.dist is not None:
            return f"package {each.dist.name}"
    return f"module {module}"
