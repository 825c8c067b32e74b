"""Check of the command: it can be recorded, and the space file's parameters are in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import split_command
from torchx_cubicml.cli.checks.finding import Finding, ok, skipped, warning, wrong
from torchx_cubicml.cli.component_command import read_command
from torchx_cubicml.errors import LaunchError, RecordError, SpaceError

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext
    from torchx_cubicml.launch import Launch

NAME, PLACE = "command", 170
_PAGE = "docs/messages.md lists each reason with its cure"


def check(context: CheckContext) -> Finding:
    """Check the command behind ``--``, which is not run."""
    from torchx_cubicml.launch import read_config
    from torchx_cubicml.space.toml import load_space

    if not context.args.command:
        return skipped("none is given; add yours: doctor -- dist.ddp -j 1x2 --script train.py -- ARGS")
    try:
        if context.is_torchrun:
            launch, why = read_command(*split_command(context.args.command), env={}).launch, ""
        else:
            launch, why = context.component.launch, context.component.why_not_recorded
    except LaunchError as error:
        return wrong(str(error), "correct the command")
    if why:
        return wrong(f"the command cannot be recorded: {why}", _PAGE)
    found = f"trains {launch.program}"
    if not context.space_file:
        return ok(found)
    try:
        read_config(launch, load_space(context.space_file))
    except (LaunchError, RecordError, SpaceError) as error:
        return wrong(f"{found}; its arguments will be kept: {error}", _PAGE)
    return _changeable(found, launch)


def _changeable(found: str, launch: Launch) -> Finding:
    if launch.why_not_rewritten:
        return warning(f"{found}; its arguments will be kept: {launch.why_not_rewritten}", _PAGE)
    return ok(f"{found}, with all parameters of the space file")
