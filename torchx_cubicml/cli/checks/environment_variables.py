"""Check of the environment variables ``TORCHX_CUBICML_*``: names and values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, some, wrong
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, SECOND_ATTEMPT_VARIABLE
from torchx_cubicml.records.standard_words import OFF_WORDS, ON_WORDS
from torchx_cubicml.settings import (
    ATTEMPT_VARIABLE,
    KEEP_COMMAND,
    PREFIX,
    PRINT_TRIAL,
    STARTER_VARIABLE,
    USER_OPTIONS,
    own_variables,
)

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "environment", 50
_LEGAL = {f"{PREFIX}{name.upper()}": name for name in USER_OPTIONS}
_OF_A_LAUNCH = frozenset({CONTRACT_VARIABLE, SECOND_ATTEMPT_VARIABLE, ATTEMPT_VARIABLE, STARTER_VARIABLE})
_SWITCH = (*ON_WORDS, *OFF_WORDS)


def check(context: CheckContext) -> Finding:
    """Check the variables of this process, which its launches inherit."""
    del context
    from torchx_cubicml.space.toml.schema import closest

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
    from torchx_cubicml.rewrite.rewriter import MODES

    if not value:
        return ""
    if name == "mode" and value not in MODES:
        return f"must be one of {', '.join(MODES)}"
    if name.endswith("_deadline_s") and not _is_deadline(value):
        return "must be a number of seconds above 0 and below 3600 (the default applies)"
    if name in {KEEP_COMMAND, PRINT_TRIAL} and value.lower() not in _SWITCH:
        return f"must be one of {', '.join(_SWITCH)} (it counts as no)"
    if name == "public_prior" and value != "off" and not Path(value).is_file():
        return "must be off or name a file"
    return ""


def _is_deadline(text: str) -> bool:
    try:
        return 0 < float(text) < 3600
    except ValueError:
        return False
