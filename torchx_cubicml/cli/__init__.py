"""Command line ``torchx cubicml ...``.

TorchX imports this module at every start, and an import error here would break TorchX itself. At the top it therefore
imports only the standard library and TorchX. A sub-command that cannot be loaded is reported when it is called, and
each imports its dependencies when it runs.
"""

from __future__ import annotations

import os
import select
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

try:
    from torchx.cli.cmd_base import SubCommand
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("torchx"):  # a module that TorchX needs
        raise
    raise ModuleNotFoundError(
        "the sub-commands are part of TorchX's command line, which is absent: pip install 'torchx-cubicml[torchx]'",
        name="torchx",
    ) from None

if TYPE_CHECKING:
    import argparse

    from torchx_cubicml.cli.base import CommandModule

_READER_IS_GONE = 141  # as a shell reports SIGPIPE
COMMANDS = {
    "init": "write a starter space file for a command",
    "explain": "tell what a command's launch will need and how fast it will be, before it is launched",
    "suggest": "show what the next launch would run and which configs are worth trying",
    "tune": "find a faster config with real launches, within a budget",
    "history": "list, show, import and compact the recorded trials",
    "report": "write a store as one HTML page: result, figures and all trials",
    "doctor": "check the set-up: packages, component, store, cache, trials and a job, each with its cure",
    "evaluate": "report how well predictors rank the store's trials, and which serves best",
}
"""Sub-command -> summary; each is the module of that name in ``torchx_cubicml.cli``."""


class CubicMLCommand(SubCommand):  # type: ignore[misc]  # torchx ships no types that mypy reads here
    """Sub-command ``cubicml`` of TorchX."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Declare the sub-commands."""
        subparser.description = "Learn from recorded launches and find a faster config for the next one."
        commands = subparser.add_subparsers(title="sub-commands", dest="cubicml_command", required=True)
        for name, summary in COMMANDS.items():
            parser = commands.add_parser(name, help=summary, description=summary.capitalize() + ".")
            try:
                _command(name).add_arguments(parser)
            except Exception as error:  # noqa: BLE001 - one broken sub-command must not break TorchX itself
                parser.set_defaults(cubicml_broken=f"cannot load {name}: {error}")

    def run(self, args: argparse.Namespace) -> None:
        """Run the sub-command; a user error is printed in one line, with exit status 2."""
        from torchx_cubicml.errors import CubicMLError

        if "cubicml_broken" in args:
            sys.exit(f"torchx-cubicml: {args.cubicml_broken}")
        if isinstance(sys.stdout, TextIOWrapper):  # characters outside its encoding are escaped
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            status = _command(args.cubicml_command).run(args)
            sys.stdout.flush()
        except BrokenPipeError:
            if not _reader_is_gone():  # it was another pipe
                raise
            status = _READER_IS_GONE
        except CubicMLError as error:
            told = "; ".join([str(error), *getattr(error, "__notes__", ())])
            print(f"torchx-cubicml: {told}", file=sys.stderr)  # noqa: T201 - the command line's own output
            status = 2
        if status:
            sys.exit(status)


def _reader_is_gone() -> bool:
    """Return whether nobody reads stdout, as in ``history list --json | head -1``; what is left to print is dropped."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at its exit
    return True


def _command(name: str) -> CommandModule:
    module: CommandModule = import_module(f"torchx_cubicml.cli.{name}")
    return module
