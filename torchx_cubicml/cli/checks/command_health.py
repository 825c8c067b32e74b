"""Checks of the space file, of the command, and of what its next launch would do."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import split_command
from torchx_cubicml.cli.checks.context import CheckContext, Finding, ok, skipped, warning, wrong
from torchx_cubicml.cli.checks.store_content import OWN_FOLDERS
from torchx_cubicml.cli.component_command import follow_up, read_command
from torchx_cubicml.errors import LaunchError, RecordError, SpaceError
from torchx_cubicml.launch import Launch, read_config
from torchx_cubicml.launch.messages import KEPT, NOT_RECORDED, message_line
from torchx_cubicml.records.provenance import SPACE
from torchx_cubicml.rewrite.rewriter import Options, rewrite
from torchx_cubicml.settings import cache_folder
from torchx_cubicml.space.toml import load_space

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGE = "docs/messages.md lists each reason with its cure"


def _space_file(context: CheckContext) -> Finding:
    """Check that the file is legal, and the one that the latest launches used."""
    path = context.space_file
    if not path:
        return skipped("none is named: launches are recorded, and nothing is rewritten")
    try:
        space = load_space(path)
    except SpaceError as error:
        return wrong(str(error), "correct the file as the message says; docs/space-file.md lists what is legal")
    found = f"{path}: {len(space.parameters)} parameters"
    used = sorted(
        (trial.started_at, str(trial.provenance[SPACE])) for trial in context.trials if SPACE in trial.provenance
    )
    if used and space.digest not in {digest for _, digest in used}:
        text = f"{found}; no recorded launch used it as it is now ({space.digest}); the latest used {used[-1][1]}"
        return warning(text, "none needed if you have just changed it; else name the file that your launches use")
    return ok(found)


def _command(context: CheckContext) -> Finding:
    """Check that the command, which is not run, can be recorded and has the space file's parameters."""
    if not context.args.command:
        return skipped("none is given; add yours: doctor -- dist.ddp -j 1x2 --script train.py -- ARGS")
    try:
        launch, why = _launch(context)
    except LaunchError as error:
        return wrong(str(error), "correct the command")
    if why:
        return wrong(f"the command cannot be recorded: {why}", _PAGE)
    found = f"trains {launch.program}"
    if not context.space_file:
        return ok(found)
    kept, why = f"{found}; its arguments will be kept", launch.why_not_rewritten
    try:
        read_config(launch, load_space(context.space_file))
    except (LaunchError, RecordError, SpaceError) as error:
        return wrong(f"{kept}: {error}", _PAGE)
    return warning(f"{kept}: {why}", _PAGE) if why else ok(f"{found}, with all parameters of the space file")


def _launch(context: CheckContext) -> tuple[Launch, str]:
    """Return the launch of the command, and why it cannot be recorded.

    Raises:
        LaunchError: the command cannot be read.
    """
    if context.is_torchrun:
        return read_command(*split_command(context.args.command), env={}).launch, ""
    return context.component.launch, context.component.why_not_recorded


def _rewrite(context: CheckContext) -> Finding:
    """Decide as the launch would, and tell its reason; a launch that is not rewritten is no fault of the set-up."""
    if not context.args.command or not context.space_file:
        return skipped("give --space FILE and your command to learn whether its next launch would be rewritten")
    options = Options.resolved(space=context.space_file, store=context.url)
    if options.mode in {"record", "off"}:
        return ok(f"not now: the mode is {options.mode}")
    launch = replace(_launch(context)[0], submits=False)
    with _copied_cache() as cache:
        rewritten = rewrite(launch, replace(options, cache=cache))
    if rewritten.suggestion is not None:
        prints = follow_up("suggest", space=context.space_file, store=context.url)
        return ok(f"the next launch would be rewritten; {prints} -- YOUR COMMAND prints its command")
    starts = [message_line(f"{text}:") for text in (KEPT, NOT_RECORDED)]
    reasons = [line.removeprefix(start).strip() for start in starts for line in rewritten.lines if start in line]
    return ok(f"not now: {'; '.join(reasons)}")


@contextmanager
def _copied_cache() -> Iterator[str]:
    """Yield the path of a copy of the cache folder, as a launch reads the cache and writes it; empty for no cache."""
    folder = cache_folder()
    if folder is None:
        yield ""
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as copy:
        for name in OWN_FOLDERS:
            with suppress(OSError, shutil.Error):
                shutil.copytree(folder / name, Path(copy) / name)
        yield copy


CHECKS = {"space file": _space_file, "command": _command, "rewrite": _rewrite}
