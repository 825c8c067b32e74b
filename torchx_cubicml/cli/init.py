"""Sub-command ``torchx cubicml init``: writes a commented starter space file for the user's command."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import add_launch, add_store, split_command, store_url
from torchx_cubicml.cli.component_command import follow_up, is_launcher_command, option_words, read_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.cli.starter import RecordedLaunches
    from torchx_cubicml.launch import Launch

_EPILOG = "names of the trainers"


class _TrainersHelp(argparse.RawDescriptionHelpFormatter):
    """Formatter that lists the trainers when the help is printed: TorchX loads this module at each of its starts."""

    def add_text(self, text: str | None) -> None:
        super().add_text(trainers_text() if text == _EPILOG else text)


def trainers_text() -> str:
    """Return the names that a space file may use with each ``trainer = "..."``."""
    from torchx_cubicml.space.trainers import TRAINERS

    lines = [
        'trainers (trainer = "NAME" in a space file) and the names in their tables:',
        '  with values, so that NAME = "auto" is enough:',
        *(_names_text(trainer.name, trainer.names(with_values=True)) for trainer in TRAINERS.values()),
        "  without values: list them, as in compile = [false, true] or ep_degree = [1, 2], or leave them out:",
        *(_names_text(trainer.name, trainer.names(with_values=False)) for trainer in TRAINERS.values()),
    ]
    return "\n".join(filter(None, lines))


def _names_text(trainer: str, names: Sequence[str]) -> str:
    text = f"    {trainer}: {', '.join(names)}"
    return textwrap.fill(text, 96, subsequent_indent="      ", break_on_hyphens=False) if names else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the output file and the command."""
    parser.formatter_class, parser.epilog = _TrainersHelp, _EPILOG
    parser.add_argument("-o", "--output", default="", metavar="FILE", help="file to write (default: stdout)")
    add_store(parser)
    add_launch(parser)


def run(args: argparse.Namespace) -> int:
    """Write the starter space file."""
    from torchx_cubicml.cli.starter import NO_FLAG, script_help, starter_space
    from torchx_cubicml.errors import SpaceError

    name, words = split_command(args.command)
    launch = _launch(name, words)
    recorded = _recorded(launch, args)
    text = starter_space(launch, script_help(launch, report=_report), recorded)
    nothing_found = _nothing_found_text(len(recorded.trials)) if NO_FLAG in text else ""
    if args.output in {"", "-"}:
        sys.stdout.write(text)
        _report(nothing_found)
        return 0
    path = Path(args.output)
    if path.exists():
        raise SpaceError(f"{path} already exists; remove it, or name another file with -o")
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: an illegal path, or a command that cannot be encoded
        raise SpaceError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    _report(nothing_found)
    _report(f"wrote {path}; review it, then run: {_next_step(name, space=str(path), store=store_url(args))}")
    return 0


def _next_step(name: str, **ours: str) -> str:
    """Return the commands that use a space file, for a command of ``name``."""
    tune = f"{follow_up('tune', **ours)} -- {name} ..."
    if not is_launcher_command(name):
        return tune
    launch = "..." if name == "torchrun" else f"-- {name} ..."
    return f"{tune} (or launch as usual: {shlex.join(['cubicrun', *option_words('--cubicml-', ours)])} {launch})"


def _recorded(launch: Launch, args: argparse.Namespace) -> RecordedLaunches:
    """Return the recorded launches of a command's program; none, with a warning, from a store that cannot be read."""
    from torchx_cubicml.cli.progress_bar import read_store
    from torchx_cubicml.cli.starter import RecordedLaunches
    from torchx_cubicml.errors import StoreError
    from torchx_cubicml.store.digest_key import digest_keys

    try:
        url = store_url(args)
        trials, _ = read_store(url, is_json=False, may_be_absent=True)
        return RecordedLaunches.of(launch, trials, digest_keys(url) if trials else ())
    except StoreError as error:
        _report(f"recorded launches are not used: {error}")
        return RecordedLaunches()


def _nothing_found_text(n_launches: int) -> str:
    """Return the message on a starter that tunes no setting of the command, and what to do."""
    known = f"; {n_launches} recorded launch{'es' if n_launches > 1 else ''} did not tell more" if n_launches else ""
    return (
        f"found no flag that changes only the speed{known}: name such flags in the file, or record launches with "
        "different values of the batch, accumulation or sharding and run init again"
    )


def _launch(name: str, words: Sequence[str]) -> Launch:
    """Return the launch of a component, or of a launcher as ``cubicrun`` reads it."""
    from torchx_cubicml.launch import ComponentLaunch

    if not is_launcher_command(name):
        return ComponentLaunch.parse(name, words).launch
    launch = read_command(name, words, env={}).launch
    return replace(launch, scheduler=launch.scheduler or "local_cwd")


def _report(text: str) -> None:
    if text:
        print(f"torchx-cubicml: {text}", file=sys.stderr)  # noqa: T201 - the command line's own output
