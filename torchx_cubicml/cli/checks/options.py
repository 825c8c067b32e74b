"""Checks of the options that launches take from ``.torchxconfig`` and from the environment: names and values."""

from __future__ import annotations

import configparser
from difflib import get_close_matches
from pathlib import Path

from torchx_cubicml.cli.checks.context import CheckContext, Finding, ok, some, wrong
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.torchx_config import read_ini
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, SECOND_ATTEMPT_VARIABLE
from torchx_cubicml.records.standard_words import OFF_WORDS, ON_WORDS
from torchx_cubicml.rewrite.rewriter import MODES
from torchx_cubicml.settings import (
    ATTEMPT_VARIABLE,
    COMPONENT_OPTIONS,
    KEEP_COMMAND,
    PREFIX,
    PRINT_TRIAL,
    STARTER_VARIABLE,
    USER_OPTIONS,
    own_variables,
    seconds_option,
)
from torchx_cubicml.space.toml.schema import closest

_SECTION = "component:cubicml"
_LEGAL = {f"{PREFIX}{name.upper()}": name for name in USER_OPTIONS}
_OF_A_LAUNCH = frozenset({CONTRACT_VARIABLE, SECOND_ATTEMPT_VARIABLE, ATTEMPT_VARIABLE, STARTER_VARIABLE})
_SWITCH = (*ON_WORDS, *OFF_WORDS)


def _config(_: CheckContext) -> Finding:
    """Check the sections of each file that TorchX reads."""
    from torchx.runner.config import find_configs

    try:
        files = list(find_configs())
    except FileNotFoundError as error:
        return wrong(str(error), "unset TORCHXCONFIG, or name a file")
    problems, has_section = [], False
    for path in files:
        try:
            file = read_ini(path, configparser.RawConfigParser())
        except LaunchError as error:
            return wrong(str(error), "correct the file")
        has_section |= file.has_section(_SECTION)
        problems += [f"{path}: {text}" for text in _problems(file)]
    if problems:
        cure = f"correct the names; legal options of [{_SECTION}] are {', '.join(COMPONENT_OPTIONS)}"
        return wrong(some(problems), cure)
    return ok(f"{', '.join(files) or 'no file'}{'' if has_section else f' (no [{_SECTION}])'}")


def _problems(file: configparser.RawConfigParser) -> list[str]:
    found = [
        f"section [{section}] is ignored; it is [{_SECTION}]"
        for section in file.sections()
        if section != _SECTION and get_close_matches(section.rpartition(":")[2].strip(), ["cubicml"], cutoff=0.8)
    ]
    own = dict(file.items(_SECTION)) if file.has_section(_SECTION) else {}
    unknown = [name for name in own if name not in COMPONENT_OPTIONS]
    found += [f"unknown option {name!r}{closest(name, COMPONENT_OPTIONS)}" for name in unknown]
    mode = own.get("mode")
    if mode and mode not in MODES:
        found.append(f"mode must be one of {', '.join(MODES)}, got {mode!r:.40}")
    return found


def _environment(_: CheckContext) -> Finding:
    """Check the variables of this process, which its launches inherit."""
    variables = own_variables()
    problems = []
    for name, value in variables.items():
        if name in _OF_A_LAUNCH:
            problems.append(f"{name} is set, which only a launch may set: unset {name}")
        elif name not in _LEGAL:
            problems.append(f"{name} is ignored: no such variable{closest(name, _LEGAL)}")
        elif why := _illegal(_LEGAL[name], value):
            problems.append(f"{name} {why}, got {value!r:.60}")
    if problems:
        return wrong(some(problems), "correct or unset each; legal names: " + ", ".join(_LEGAL))
    return ok(", ".join(variables) or f"no variable {PREFIX}* is set")


def _illegal(name: str, value: str) -> str:
    """Return the rule that the value of an option breaks; empty if it is legal. An empty value counts as unset."""
    if not value:
        return ""
    if name == "mode" and value not in MODES:
        return f"must be one of {', '.join(MODES)}"
    if name.endswith("_deadline_s") and not seconds_option(name, 0.0):
        return "must be a number of seconds above 0 and below 3600 (the default applies)"
    if name in {KEEP_COMMAND, PRINT_TRIAL} and value.lower() not in _SWITCH:
        return f"must be one of {', '.join(_SWITCH)} (it counts as no)"
    if name == "public_prior" and value != "off" and not Path(value).is_file():
        return "must be off or name a file"
    return ""


CHECKS = {".torchxconfig": _config, "environment": _environment}
