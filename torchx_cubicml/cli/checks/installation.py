"""Checks of what launches start with: the Python and its packages, the component ``cubicml``, and their options."""

from __future__ import annotations

import configparser
import inspect
import platform
import re
import sys
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml import settings
from torchx_cubicml.cli.checks.context import CheckContext, Finding, ok, some, warning, wrong
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.torchx_config import read_ini
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, SECOND_ATTEMPT_VARIABLE
from torchx_cubicml.records.standard_words import OFF_WORDS, ON_WORDS
from torchx_cubicml.rewrite.rewriter import MODES
from torchx_cubicml.space.toml.schema import closest

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_TORCH = (2, 4)
"""Oldest version that is supported, as ``pyproject.toml`` states it."""
_LEAST_TORCHX, _NOT_TESTED = (0, 7), (0, 8)  # releases; the nightly build, whose version is a date, is tested
_COMPONENT = Path(__file__).parents[2] / "components" / "cubicml.py"
_PIP = f"{sys.executable} -m pip"
_SECTION = "component:cubicml"
_VARIABLES = {f"{settings.PREFIX}{name.upper()}": name for name in settings.USER_OPTIONS}
_OF_A_LAUNCH = CONTRACT_VARIABLE, SECOND_ATTEMPT_VARIABLE, settings.ATTEMPT_VARIABLE, settings.STARTER_VARIABLE
_SWITCH = (*ON_WORDS, *OFF_WORDS)


def _python(_: CheckContext) -> Finding:
    """Check the versions of this package and torch."""
    found = f"Python {platform.python_version()} ({sys.executable})"
    for name in ("torchx-cubicml", "torch"):
        if not (version := installed_version(name)):
            return wrong(f"{found}; {name} is not installed", f"{_PIP} install {name}")
        found += f", {name} {version}"
    return wrong(found, f"{_PIP} install 'torch>=2.4'") if is_older(version, LEAST_TORCH) else ok(found)


def installed_version(name: str) -> str:
    """Return the version of an installed distribution; empty for one that is not installed."""
    return next((each.version for each in metadata.distributions(name=name)), "")


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

    names = ("torchx", "torchx-nightly")
    installed = sorted({(name, each.version) for name in names for each in metadata.distributions(name=name)})
    found = f"TorchX {loaded} ({', '.join(map(' '.join, installed)) or 'not installed by pip'})"
    if len(installed) > 1:
        cure = f"{_PIP} uninstall {' '.join(names)}, repeat until none is left; then install one of them"
        return wrong(f"{found}: they overwrite or hide each other's files", cure)
    if any(is_older(version, _LEAST_TORCHX) for version in (loaded, *dict(installed).values())):
        return wrong(f"{found} is older than 0.7", f"{_PIP} install 'torchx>=0.7'")
    if not is_older(loaded, _NOT_TESTED) and "torchx-nightly" not in dict(installed):
        return warning(f"{found}: tested are 0.7 and the nightly build", "none needed; report what does not work")
    return ok(found)


def _component(_: CheckContext) -> Finding:
    """Check that ``torchx run cubicml`` runs this package, and ``torchx run dist.ddp`` TorchX's component."""
    from torchx.specs import finder

    install = f"{_PIP} install torchx-cubicml, in the Python of torchx"
    registered = metadata.entry_points(group="torchx.components")
    owners = {each.value: f"package {each.dist.name}" for each in registered if each.dist is not None}
    try:
        component = finder.get_component("cubicml").fn
    except Exception as error:  # noqa: BLE001 - a module of any other package may fail to load
        others = ", ".join(sorted(f"{each.name} of {owners.get(each.value, each.value)}" for each in registered))
        return wrong(f"TorchX has no component cubicml: {error} (registered: {others or 'none'})", install)
    place = Path(inspect.unwrap(component).__code__.co_filename)
    if place.resolve() != _COMPONENT.resolve():
        owner = owners.get(component.__module__, f"module {component.__module__}")
        cure = f"uninstall or rename it ({owner}); or run {_COMPONENT}:cubicml"
        return wrong(f"another component is called cubicml: {place}", cure)
    if "dist.ddp" not in finder.get_components():
        cure = f"install this package again, which registers them too: {install}"
        return wrong("TorchX's own components are hidden: there is no dist.ddp", cure)
    return ok(f"torchx run cubicml is {place}")


def _config(_: CheckContext) -> Finding:
    """Check the sections of each file that TorchX reads: ours, and those that are nearly called so."""
    from torchx.runner.config import find_configs

    try:
        files = {path: read_ini(path, configparser.RawConfigParser()) for path in find_configs()}
    except (FileNotFoundError, LaunchError) as error:
        return wrong(str(error), "correct the file, or unset TORCHXCONFIG, or let it name another file")
    own = {path: dict(file.items(_SECTION)) for path, file in files.items() if file.has_section(_SECTION)}
    problems = [
        f"{path}: section [{section}] is ignored; it is [{_SECTION}]"
        for path, file in files.items()
        for section in file.sections()
        if section != _SECTION and get_close_matches(section.rpartition(":")[2].strip(), ["cubicml"], cutoff=0.8)
    ]
    legal = {name: name for name in settings.COMPONENT_OPTIONS}
    problems += [f"{path}: {text}" for path, given in own.items() for text in _problems(given, legal)]
    if problems:
        return wrong(some(problems), f"correct each; legal options of [{_SECTION}] are {', '.join(legal)}")
    return ok(f"{', '.join(files) or 'no file'}{'' if own else f' (no [{_SECTION}])'}")


def _environment(_: CheckContext) -> Finding:
    """Check the variables of this process, which its launches inherit."""
    given = settings.own_variables()
    problems = [f"{name} is set, which only a launch may set: unset {name}" for name in _OF_A_LAUNCH if name in given]
    problems += _problems({name: given[name] for name in given if name not in _OF_A_LAUNCH}, _VARIABLES)
    if problems:
        return wrong(some(problems), "correct or unset each; legal names: " + ", ".join(_VARIABLES))
    return ok(", ".join(given) or f"no variable {settings.PREFIX}* is set")


def _problems(given: Mapping[str, str], legal: Mapping[str, str]) -> list[str]:
    """Return what is wrong with options that were given.

    Args:
        given: name -> value, as text; an empty one counts as unset.
        legal: name -> option.
    """
    unknown = [f"unknown and ignored: {name!r}{closest(name, legal)}" for name in given if name not in legal]
    rules = {name: _broken_rule(legal[name], value) for name, value in given.items() if name in legal and value}
    return [*unknown, *(f"{name} {rule}, got {given[name]!r:.60}" for name, rule in rules.items() if rule)]


def _broken_rule(option: str, value: str) -> str:
    """Return the rule that the value of an option breaks; empty if it is legal."""
    if option == "mode" and value not in MODES:
        return f"must be one of {', '.join(MODES)}"
    if option.endswith("_deadline_s") and not settings.seconds_option(option, 0.0):
        return "must be a number of seconds above 0 and below 3600 (the default applies)"
    if option in {settings.KEEP_COMMAND, settings.PRINT_TRIAL} and value.lower() not in _SWITCH:
        return f"must be one of {', '.join(_SWITCH)} (it counts as no)"
    if option == "public_prior" and value != "off" and not Path(value).is_file():
        return "must be off or name a file"
    return ""


CHECKS = {
    "Python here": _python,
    "TorchX": _torchx,
    "component": _component,
    ".torchxconfig": _config,
    "environment": _environment,
}
