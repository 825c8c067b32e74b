"""Source and ``--help`` of the program of a command."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.from_help import MAX_HELP
from torchx_cubicml.cli.starter.from_keys import is_hydra
from torchx_cubicml.launch.command_texts import program_path
from torchx_cubicml.settings import child_environment
from torchx_cubicml.user_files import read_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.launch import Launch

HELP_TIMEOUT_S = 60.0  # a script may import torch before it parses its arguments

_PARSER = re.compile(r"argparse|ArgumentParser|click|typer|tyro|docopt|absl")


def script_help(launch: Launch, *, report: Callable[[str], object] = lambda reason: None) -> str:
    """Return the output of the program's ``--help``; an empty text where it is unavailable.

    A program without a visible argument parser is not started: it might train.

    Args:
        launch: the command.
        report: called with the cause of an empty text.
    """
    reason = _help_obstacle(launch)
    if reason:
        report(f"{reason}, so its --help was not read")
        return ""
    command = [sys.executable, *(["-m"] if launch.is_module else []), launch.program, "--help"]
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=HELP_TIMEOUT_S,
            check=False,
            env=child_environment({**launch.env, "COLUMNS": "160"}),
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        report(f"cannot run {launch.program} --help: {error}")
        return ""
    if process.returncode != 0:
        last = process.stderr.strip().splitlines()[-1:] or ["no error output"]
        report(f"{launch.program} --help failed with exit code {process.returncode}: {last[0]:.200}")
        return ""
    return process.stdout[:MAX_HELP]


def source_of(launch: Launch) -> tuple[str, str]:
    """Return the source text of the program, and the cause where it is unavailable."""
    try:
        path = program_path(launch.program, is_module=launch.is_module)
        if path is None:
            return "", f"{launch.program or 'the program'} not found here"
        return read_text(path, errors="replace"), ""
    except (OSError, ValueError) as error:
        return "", f"cannot read {launch.program} ({error})"


def _help_obstacle(launch: Launch) -> str:
    source, reason = source_of(launch)
    if reason:
        return reason
    return "" if _PARSER.search(source) or is_hydra(source) else f"no argument parser found in {launch.program}"
