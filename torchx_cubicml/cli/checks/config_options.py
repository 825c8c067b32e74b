"""Check of ``.torchxconfig``: names and values of the options of the component ``cubicml``."""

from __future__ import annotations

import configparser
from difflib import get_close_matches
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, some, wrong
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.torchx_config import read_ini
from torchx_cubicml.settings import COMPONENT_OPTIONS

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = ".torchxconfig", 40
_SECTION = "component:cubicml"


def check(context: CheckContext) -> Finding:
    """Check the sections of each file that TorchX reads."""
    del context
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
        return wrong(
            some(problems), f"correct the names; legal options of [{_SECTION}] are {', '.join(COMPONENT_OPTIONS)}"
        )
    where = ", ".join(files) or "no file"
    return ok(f"{where}{'' if has_section else f' (no [{_SECTION}])'}")


def _problems(file: configparser.RawConfigParser) -> list[str]:
    from torchx_cubicml.rewrite.rewriter import MODES
    from torchx_cubicml.space.toml.schema import closest

    found = [
        f"section [{section}] is ignored; it is [{_SECTION}]"
        for section in file.sections()
        if section != _SECTION and get_close_matches(section.rpartition(":")[2].strip(), ["cubicml"], cutoff=0.8)
    ]
    own = dict(file.items(_SECTION)) if file.has_section(_SECTION) else {}
    found += [
        f"unknown option {name!r}{closest(name, COMPONENT_OPTIONS)}" for name in own if name not in COMPONENT_OPTIONS
    ]
    mode = own.get("mode")
    if mode and mode not in MODES:
        found.append(f"mode must be one of {', '.join(MODES)}, got {mode!r:.40}")
    return found
