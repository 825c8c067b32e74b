"""Interface of the sub-command modules, and the arguments that they share."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Protocol

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.settings import default_store_url, option

_FILE_WIDTH = 240
_MAX_SEED_DIGITS = 18

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.console import Console

    from torchx_cubicml.advisor import ProposalMethod


class CommandModule(Protocol):
    """Module of ``torchx_cubicml.cli`` that implements one sub-command."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments; called at every start of TorchX, so it must be quick, without heavy imports."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the sub-command and return the exit status.

        Raises:
            CubicMLError: a user error; the caller prints it in one line, with exit status 2.
        """


def add_store(parser: argparse.ArgumentParser) -> None:
    """Declare ``--store``."""
    parser.add_argument("--store", default=None, help="store: a folder or fsspec URL (default: ~/.torchx-cubicml)")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_launch(parser: argparse.ArgumentParser, *, or_torchrun: bool = False) -> None:
    """Declare the trailing command: ``-- COMPONENT [component args] -- [script args]``.

    Args:
        parser: parser of the sub-command.
        or_torchrun: whether a command of torchrun is accepted too.
    """
    import argparse

    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMPONENT ...",
        help="component and its arguments, as for `torchx run`"
        + ("; or a command of torchrun or cubicrun" if or_torchrun else ""),
    )


def add_method(parser: argparse.ArgumentParser) -> None:
    """Declare ``--searcher`` and ``--acquisition``."""
    text = "search algorithm: exhaustive, random, evolution, reinforce (default: chosen automatically)"
    parser.add_argument("--searcher", default=None, metavar="NAME", help=text)
    text = "acquisition function: expected_improvement (default), mean, upper_bound, thompson"
    parser.add_argument("--acquisition", default=None, metavar="NAME", help=text)


def add_scheduler(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Declare ``--scheduler`` and ``--scheduler_args``."""
    text = f"TorchX scheduler (default: {default or 'that of the command line of `torchx run`'})"
    parser.add_argument("-s", "--scheduler", default=default, help=text)
    parser.add_argument("-cfg", "--scheduler_args", default="", help="scheduler options, as for `torchx run`")


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Declare ``--seed``."""
    parser.add_argument("--seed", type=_seed, default=0, help="random seed (default: 0)")


def _seed(text: str) -> int:
    import argparse

    if not text.isascii() or not text.isdigit() or len(text) > _MAX_SEED_DIGITS:
        raise argparse.ArgumentTypeError(
            f"must be a whole number >= 0 of at most {_MAX_SEED_DIGITS} digits, got {text!r:.40}"
        )
    return int(text)


def method_of(args: argparse.Namespace) -> ProposalMethod:
    """Return the proposal method: the searcher and the acquisition of the options.

    Raises:
        SpaceError: a name is unknown; the message lists the legal ones.
    """
    from torchx_cubicml.advisor import ProposalMethod

    names = {"searcher": args.searcher, "acquisition": args.acquisition}
    return ProposalMethod(**{option: name for option, name in names.items() if name is not None})


def store_url(args: argparse.Namespace) -> str:
    """Return the store's URL: from the command line, ``.torchxconfig``, the environment, or the default."""
    return args.store or configured("store") or option("store") or default_store_url()


def configured(name: str) -> str | None:
    """Return an option from ``[component:cubicml]`` in ``.torchxconfig``; ``None`` where unset."""
    from torchx.runner.config import load_sections

    return load_sections("component").get("cubicml", {}).get(name) or None


def scheduler_words(scheduler: str, scheduler_args: str) -> list[str]:
    """Return the options of ``torchx run`` for a scheduler and its options.

    >>> scheduler_words("slurm", "partition=fast"), scheduler_words("", "")
    (['-s', 'slurm', '-cfg', 'partition=fast'], [])
    """
    return [*(["-s", scheduler] if scheduler else []), *(["-cfg", scheduler_args] if scheduler_args else [])]


def split_command(command: Sequence[str]) -> tuple[str, list[str]]:
    """Split a command into the component and its arguments.

    Raises:
        LaunchError: the command names no component.

    >>> split_command(["--", "dist.ddp", "-j", "1x2", "--script", "train.py", "--", "--lr", "0.1"])
    ('dist.ddp', ['-j', '1x2', '--script', 'train.py', '--', '--lr', '0.1'])
    """
    words = list(command[1:] if command[:1] == ["--"] else command)
    if not words or words[0].startswith("-"):
        raise LaunchError("give a component after `--`, as in: -- dist.ddp -j 1x2 --script train.py -- ARGS")
    return words[0], words[1:]


def print_json(payload: object) -> None:
    """Print ``payload`` on stdout as indented JSON, in ASCII if stdout cannot encode it otherwise."""
    text = json.dumps(payload, indent=2, ensure_ascii=False, default=str)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(payload, indent=2, default=str)
    sys.stdout.write(f"{text}\n")


def wide_console() -> Console:
    """Return a console on stdout that cuts no line where stdout is a file or a pipe."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    return console
