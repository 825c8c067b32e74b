"""Checks of ``torchx cubicml doctor``: functions by subject, each named in the table ``CHECKS`` of its module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks import command_health, installation, job_environment, options, store_content, store_place
from torchx_cubicml.cli.checks.context import CheckContext, Finding, skipped, warning
from torchx_cubicml.errors import CubicMLError

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULES = installation, options, store_place, store_content, command_health, job_environment


def all_checks() -> list[tuple[str, Callable[[CheckContext], Finding]]]:
    """Return the names and functions of the checks, in the order in which they run; none changes what stays."""
    return [pair for module in _MODULES for pair in module.CHECKS.items()]


def finding_of(check: Callable[[CheckContext], Finding], context: CheckContext) -> Finding:
    """Return the finding of a check; one that fails is itself a finding."""
    try:
        return check(context)
    except CubicMLError as error:
        return skipped(f"not possible: {error}")  # another check tells the cure
    except Exception as error:  # noqa: BLE001 - one check that fails must not hide the others
        return warning(f"the check failed: {type(error).__name__}: {error}", "report this line; the other checks count")
