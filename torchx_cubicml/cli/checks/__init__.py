"""Checks of ``torchx cubicml doctor``, one module each: a new module of this package is a new check."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.finding import CheckModule

_SUPPORT = frozenset({"context", "finding"})


def all_checks() -> list[CheckModule]:
    """Return the modules of the checks, in the order in which they run."""
    names = [each.name for each in iter_modules(__path__) if each.name not in _SUPPORT]
    modules: list[CheckModule] = [import_module(f"{__name__}.{name}") for name in names]
    return sorted(modules, key=lambda module: module.PLACE)
