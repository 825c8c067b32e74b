"""Checks of the space file, of the command, and of what its next launch would do."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from torchx_cubicml.cli.checks.context import CheckContext, Finding, ok, skipped, warning, wrong
from torchx_cubicml.cli.checks.store_health import OWN_FOLDERS
from torchx_cubicml.cli.component_command import follow_up
from torchx_cubicml.errors import LaunchError, RecordError, SpaceError
from torchx_cubicml.launch import ComponentLaunch, read_config
from torchx_cubicml.launch.messages import KEPT, NOT_RECORDED, message_line
from torchx_cubicml.records.provenance import SPACE
from torchx_cubicml.rewrite.rewriter import Options, rewrite
from torchx_cubicml.settings import cache_folder
from torchx_cubicml.space.toml import load_space

_PAGE = "docs/messages.md lists each reason with its cure"


def _space_file(context: CheckContext) -> Finding:
    """Check that the file is legal, and the one that the latest launches used."""
    path = context.options.space
    if not path:
        return skipped("none is named: launches are recorded, and nothing is rewritten")
    try:
        space = load_space(path)
    except SpaceError as error:
        return wrong(str(error), "correct the file as the message says; docs/space-file.md lists what is legal")
    found = f"{path}: {len(space.parameters)} parameters"
    used = [(trial.started_at, str(trial.provenance[SPACE])) for trial in context.trials if SPACE in trial.provenance]
    if used and all(digest != space.digest for _, digest in used):
        text = f"{found}; no recorded launch used it as it is now ({space.digest}); the latest used {max(used)[1]}"
        return warning(text, "none needed if you have just changed it; else name the file that your launches use")
    return ok(found)


def _command(context: CheckContext) -> Finding:
    """Check that the command, which is not run, can be recorded and has the space file's parameters."""
    if not context.args.command:
        return skipped("none is given; add yours: doctor -- dist.ddp -j 1x2 --script train.py -- ARGS")
    typed, path = context.typed, context.options.space
    if isinstance(typed, LaunchError):
        return wrong(str(typed), "correct the command")
    if isinstance(typed, ComponentLaunch) and typed.why_not_recorded:
        return wrong(f"the command cannot be recorded: {typed.why_not_recorded}", _PAGE)
    found, launch = f"trains {typed.launch.program}", typed.launch
    if not path:
        return ok(found)
    kept, why = f"{found}; its arguments will be kept", launch.why_not_rewritten
    try:
        read_config(launch, load_space(path))
    except (LaunchError, RecordError, SpaceError) as error:
        return wrong(f"{kept}: {error}", _PAGE)
    return warning(f"{kept}: {why}", _PAGE) if why else ok(f"{found}, with all parameters of the space file")


def _rewrite(context: CheckContext) -> Finding:
    """Decide as the launch would, and tell its reason; a launch that is not rewritten is no fault of the set-up."""
    if not context.args.command or not context.options.space:
        return skipped("give --space FILE and your command to learn whether its next launch would be rewritten")
    if isinstance(context.typed, LaunchError):
        raise context.typed
    options = Options.resolved(space=context.options.space, store=context.url)
    if options.mode in {"record", "off"}:
        return ok(f"not now: the mode is {options.mode}")
    launch = replace(context.typed.launch, submits=False)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as copy:  # of the cache, which a launch changes
        folder = cache_folder() or Path(copy, "none")
        for name in OWN_FOLDERS:
            with suppress(OSError, shutil.Error):
                shutil.copytree(folder / name, Path(copy, name))
        rewritten = rewrite(launch, replace(options, cache=copy))
    if rewritten.suggestion is not None:
        prints = follow_up("suggest", space=options.space, store=options.store)
        return ok(f"the next launch would be rewritten; {prints} -- YOUR COMMAND prints its command")
    starts = [message_line(f"{text}:") for text in (KEPT, NOT_RECORDED)]
    reasons = [line.removeprefix(start).strip() for start in starts for line in rewritten.lines if start in line]
    return ok(f"not now: {'; '.join(reasons)}")


CHECKS = {"space file": _space_file, "command": _command, "rewrite": _rewrite}
