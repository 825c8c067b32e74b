"""Checks of what is installed where launches start: Python and the packages, TorchX, the component ``cubicml``."""

from __future__ import annotations

import inspect
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, distributions, entry_points, version
from pathlib import Path

from torchx_cubicml.cli.checks.context import CheckContext, Finding, ok, warning, wrong

LEAST_PYTHON, LEAST_TORCH = (3, 11), (2, 4)
"""Oldest versions that are supported, as ``pyproject.toml`` states them."""
_TORCHX = ("torchx", "torchx-nightly")
_LEAST_TORCHX, _NOT_TESTED = (0, 7), (0, 8)  # releases; the nightly build, whose version is a date, is tested
_OWN = Path(__file__).parents[2] / "components" / "cubicml.py"
_GROUP = "torchx.components"
_PIP = f"{sys.executable} -m pip"


def _python(_: CheckContext) -> Finding:
    """Check the versions of this Python, this package and torch."""
    found = f"Python {platform.python_version()} ({sys.executable})"
    if sys.version_info < LEAST_PYTHON:
        return wrong(found, "use Python 3.11 or newer, and install the package there")
    for name in ("torchx-cubicml", "torch"):
        if not (text := installed_version(name)):
            return wrong(f"{found}; {name} is not installed", f"{_PIP} install {name}")
        found += f", {name} {text}"
        if name == "torch" and is_older(text, LEAST_TORCH):
            return wrong(found, f"{_PIP} install 'torch>=2.4'")
    return ok(found)


def installed_version(name: str) -> str:
    """Return the version of an installed distribution; empty for one that is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def is_older(text: str, least: tuple[int, int]) -> bool:
    """Return whether a version is older than ``least``; not one that is no number.

    >>> is_older("2.3.1", (2, 4)), is_older("2.13.0+cpu", (2, 4)), is_older("2026.11.26", (0, 7))
    (True, False, False)
    """
    match = re.match(r"(\d+)\.(\d+)", text)
    return match is not None and (int(match[1]), int(match[2])) < least


def _torchx(_: CheckContext) -> Finding:
    """Check the distributions that provide the module ``torchx``, and the version of the one that is loaded."""
    from torchx.version import __version__ as loaded

    named = [((each.name or "").lower().replace("_", "-"), each) for each in distributions()]
    installed = sorted({f"{name} {each.version}" for name, each in named if name in _TORCHX})
    found = f"TorchX {loaded} ({', '.join(installed) or 'not installed by pip'})"
    if len(installed) > 1:
        cure = f"{_PIP} uninstall {' '.join(_TORCHX)}, repeat until none is left; then install one of them"
        return wrong(f"{found}: they overwrite or hide each other's files", cure)
    versions = [loaded, *(text.rpartition(" ")[2] for text in installed)]
    if any(is_older(text, _LEAST_TORCHX) for text in versions):
        return wrong(f"{found} is older than 0.7", f"{_PIP} install 'torchx>=0.7'")
    if not is_older(loaded, _NOT_TESTED) and not any(text.startswith("torchx-nightly") for text in installed):
        return warning(f"{found}: tested are 0.7 and the nightly build", "none needed; report what does not work")
    return ok(found)


def _component(_: CheckContext) -> Finding:
    """Check that ``torchx run cubicml`` runs this package, and ``torchx run dist.ddp`` TorchX's component."""
    from torchx.specs import finder

    install = f"{_PIP} install torchx-cubicml, in the Python of torchx"
    try:
        component = finder.get_component("cubicml").fn
    except Exception as error:  # noqa: BLE001 - a module of any other package may fail to load
        others = ", ".join(sorted(f"{each.name} of {_owner(each.value)}" for each in entry_points(group=_GROUP)))
        return wrong(f"TorchX has no component cubicml: {error} (registered: {others or 'none'})", install)
    place = Path(inspect.unwrap(component).__code__.co_filename)
    if place.resolve() != _OWN.resolve():
        cure = f"uninstall or rename it ({_owner(component.__module__)}); or run {_OWN}:cubicml"
        return wrong(f"another component is called cubicml: {place}", cure)
    try:
        finder.get_component("dist.ddp")
    except Exception:  # noqa: BLE001 - likewise
        cure = f"install this package again, which registers them too: {install}"
        return wrong("TorchX's own components are hidden: there is no dist.ddp", cure)
    return ok(f"torchx run cubicml is {place}")


def _owner(module: str) -> str:
    """Return the distribution that registers components of a module, else the module."""
    for each in entry_points(group=_GROUP):
        if module == each.value and each.dist is not None:
            return f"package {each.dist.name}"
    return f"module {module}"


CHECKS = {"Python here": _python, "TorchX": _torchx, "component": _component}
