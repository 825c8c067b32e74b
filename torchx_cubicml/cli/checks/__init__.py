"""Checks of ``torchx cubicml doctor``: functions by subject, each named in the table ``CHECKS`` of its module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks import command_health, installation, job_environment, options, store_content, store_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.cli.checks.context import CheckContext
    from torchx_cubicml.cli.checks.finding import Finding

_MODULES = installation, options, store_place, store_content, command_health, job_environment


def all_checks() -> list[tuple[str, Callable[[CheckContext], Finding]]]:
    """Return the names and functions of the checks, in the order in which they run.

    A check changes nothing that stays. An exception of it becomes a finding of its own.
    """
    return [pair for module in _MODULES for pair in module.CHECKS.items()]
