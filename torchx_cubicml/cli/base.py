"""What every sub-command module offers, and the arguments that several of them share."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Protocol

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.settings import default_store_url, option

_FILE_WIDTH = 240
_LONGEST_SEED = 18  # digits

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.console import Console

    from torchx_cubicml.advisor import ProposalMethod


class CommandModule(Protocol):
    """A module of ``torchx_cubicml.cli``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments; called at every start of TorchX, so it must be quick and import nothing heavy."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it and return the exit status.

        Raises:
            CubicMLError: told by the caller in one line, with exit status 2.
        """


def add_store(parser: argparse.ArgumentParser) -> None:
    """Declare ``--store``."""
    parser.add_argument("--store", default=None, help="fsspec URL of the store (default: ~/.torchx-cubicml)")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")


def add_launch(parser: argparse.ArgumentParser) -> None:
    """Declare the trailing command: ``-- COMPONENT [component args] -- [script args]``."""
    import argparse

    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMPONENT ...",
        help="the component and its arguments, as for `torchx run`",
    )


def add_method(parser: argparse.ArgumentParser) -> None:
    """Declare how launches to try are looked for."""
    parser.add_argument(
        "--searcher", default=None, metavar="NAME", help="what looks for launches to try, as in reinforce"
    )
    parser.add_argument("--acquisition", default=None, metavar="NAME", help="what makes one worth trying, as in mean")


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Declare ``--seed``."""
    parser.add_argument("--seed", type=_seed, default=0, help="of the random numbers, a whole number >= 0")


def _seed(text: str) -> int:
    import argparse

    if not text.isascii() or not text.isdigit() or len(text) > _LONGEST_SEED:
        raise argparse.ArgumentTypeError(f"a whole number from 0 on of at most {_LONGEST_SEED} digits is wanted")
    return int(text)


def method_of(args: argparse.Namespace) -> ProposalMethod:
    """Return how launches to try are looked for.

    Raises:
        SpaceError: a name is unknown; the text says which are legal.
    """
    from torchx_cubicml.advisor import ProposalMethod

    asked = {"searcher": args.searcher, "acquisition": args.acquisition}
    return ProposalMethod(**{what: name for what, name in asked.items() if name is not None})


def store_url(args: argparse.Namespace) -> str:
    """Return the store that is named: command line, then ``.torchxconfig``, then environment, then the default."""
    return args.store or configured("store") or option("store") or default_store_url()


def configured(name: str) -> str | None:
    """Return what ``[component:cubicml]`` in ``.torchxconfig`` says of an option."""
    from torchx.runner.config import load_sections

    return load_sections("component").get("cubicml", {}).get(name) or None


def split_command(command: Sequence[str]) -> tuple[str, list[str]]:
    """Return the component and its arguments.

    Raises:
        LaunchError: there is no component.

    >>> split_command(["--", "dist.ddp", "-j", "1x2", "--script", "train.py", "--", "--lr", "0.1"])
    ('dist.ddp', ['-j', '1x2', '--script', 'train.py', '--', '--lr', '0.1'])
    """
    words = list(command[1:] if command[:1] == ["--"] else command)
    if not words or words[0].startswith("-"):
        raise LaunchError("a component is wanted after `--`, as in: -- dist.ddp -j 1x2 --script train.py -- ARGS")
    return words[0], words[1:]


def print_json(payload: object) -> None:
    """Print ``payload`` on stdout as indented JSON, escaped where stdout has no letter for something."""
    text = json.dumps(payload, indent=2, ensure_ascii=False, default=str)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(payload, indent=2, default=str)
    sys.stdout.write(f"{text}\n")


def wide_console() -> Console:
    """Return a console on stdout that cuts nothing where the output goes to a file or another program."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    return console
