"""Interface of the sub-command modules, and the arguments that they share."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Protocol

from torchx_cubicml.cli.option_choices import ACQUISITION_NAMES, PREDICTOR_NAMES, SEARCHER_NAMES, add_choice
from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.settings import KEEP_COMMAND, default_store_url, is_on, option

LATEST_SCHEDULER = "that of .torchxconfig, else of the program's latest launch, else of TorchX"
"""Words for the scheduler that ``launch.scheduler.recorded_scheduler`` helps to find."""
_MAX_SEED_DIGITS = 18
_DESIGNED, _RANDOM = "designed", "random"  # first launches of a tune
_RANDOM_WITHOUT_LIMIT = 20  # random launches of a budget in hours

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

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


def add_keep_command(parser: argparse.ArgumentParser) -> None:
    """Declare ``--keep-command``."""
    text = "keep the command of each launch in its record, with secrets masked"
    parser.add_argument("--keep-command", action="store_true", help=text)


def keeps_command(args: argparse.Namespace) -> bool:
    """Return whether records keep the command: by the command line, ``.torchxconfig`` or the environment."""
    return args.keep_command or is_on(configured(KEEP_COMMAND) or option(KEEP_COMMAND))


def add_launch(parser: argparse.ArgumentParser) -> None:
    """Declare the trailing command: ``-- COMPONENT [component args] -- [script args]``, or that of a launcher."""
    import argparse

    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMPONENT ...",
        help="component and its arguments, as for `torchx run`; or a command of torchrun, cubicrun or another launcher",
    )


def add_method(parser: argparse.ArgumentParser) -> None:
    """Declare ``--searcher`` and ``--acquisition``."""
    note = "default: chosen automatically"
    add_choice(parser, "--searcher", SEARCHER_NAMES, "search algorithm", note=note, default=None)
    note = f"default: {ACQUISITION_NAMES[0]}"
    add_choice(parser, "--acquisition", ACQUISITION_NAMES, "acquisition function", note=note, default=None)


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Declare the method of a tune, with ``--start`` and ``--predictor`` for rounds as in the paper."""
    add_method(parser)
    text = "first launches: designed (default), random (half of the budget) or random:N"
    parser.add_argument("--start", default=_DESIGNED, metavar="KIND", help=text)
    text = "search by this predictor alone, fitted once a round"
    add_choice(parser, "--predictor", PREDICTOR_NAMES, text, default=None)


def random_launches(start: str, *, budget: int | None) -> int:
    """Return the number of random first launches that ``--start`` asks for; 0 for the planned design.

    Args:
        start: text of the option.
        budget: launches of the budget; ``None`` for a budget in hours.

    Raises:
        SpaceError: ``start`` is none of the legal texts.

    >>> [random_launches(start, budget=16) for start in ("designed", "random", "random:5")]
    [0, 8, 5]
    """
    if start == _DESIGNED:
        return 0
    if start == _RANDOM:
        return _RANDOM_WITHOUT_LIMIT if budget is None else max(1, budget // 2)
    counted = re.fullmatch(f"{_RANDOM}:([1-9][0-9]{{0,5}})", start)
    if counted:
        return int(counted[1])
    raise SpaceError(
        f"--start must be {_DESIGNED}, {_RANDOM} or {_RANDOM}:N with N from 1 to 999999, got {start!r:.40}"
    )


def add_scheduler(
    parser: argparse.ArgumentParser, *, default: str = "", otherwise: str = "that of `torchx run`"
) -> None:
    """Declare ``--scheduler`` and ``--scheduler_args``.

    Args:
        parser: parser of the sub-command.
        default: scheduler by default; empty where the sub-command finds it.
        otherwise: words for what it finds.
    """
    text = f"TorchX scheduler, as `torchx runopts` lists (default: {default or otherwise})"
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
    return args.store or found_store()


def found_store() -> str:
    """Return the URL of the store that a launch without ``--store`` uses."""
    return configured("store") or option("store") or default_store_url()


def configured(name: str) -> str | None:
    """Return an option from ``[component:cubicml]`` in ``.torchxconfig``; ``None`` where unset."""
    from torchx_cubicml.launch.torchx_config import own_section

    return own_section().get(name) or None


def scheduler_words(scheduler: str, scheduler_args: str) -> list[str]:
    """Return the options of ``torchx run`` for a scheduler and its options.

    >>> scheduler_words("slurm", "partition=fast"), scheduler_words("", "")
    (['-s', 'slurm', '-cfg', 'partition=fast'], [])
    """
    return [*(["-s", scheduler] if scheduler else []), *(["-cfg", scheduler_args] if scheduler_args else [])]


def split_command(command: Sequence[str]) -> tuple[str, list[str]]:
    """Split a command into the component, or the launcher that stands alone or behind cubicrun, and its arguments.

    Raises:
        LaunchError: the command names no component.

    >>> split_command(["--", "dist.ddp", "-j", "1x2", "--script", "train.py", "--", "--lr", "0.1"])
    ('dist.ddp', ['-j', '1x2', '--script', 'train.py', '--', '--lr', '0.1'])
    >>> split_command("cubicrun --cubicml-space s.toml --cubicml-keep-command --standalone train.py".split())
    ('torchrun', ['--standalone', 'train.py'])
    """
    words = list(command[1:] if command[:1] == ["--"] else command)
    if words[:1] == ["cubicrun"]:
        from torchx_cubicml.launch.launchers.command_launch import is_command, split_options

        _, rest = split_options(words[1:])
        words = rest[1:] if is_command(rest) else ["torchrun", *rest]
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


def typed(prompt: str) -> str:
    """Return the words that the user types at a prompt; nothing where the input ends."""
    try:
        return input(prompt).strip()
    except EOFError:
        return ""


def agreed(question: str) -> bool:
    """Return whether the user answers a question with yes."""
    return typed(f"{question} [y/N] ").lower() in {"y", "yes"}
