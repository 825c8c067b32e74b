"""Check of the rewrite: whether the next launch of the command would be rewritten, and if not, why."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import split_command
from torchx_cubicml.cli.checks.cache_health import OWN_FOLDERS
from torchx_cubicml.cli.checks.finding import Finding, ok, skipped
from torchx_cubicml.cli.component_command import read_command
from torchx_cubicml.settings import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.cli.checks.context import CheckContext
    from torchx_cubicml.launch import Launch

NAME, PLACE = "rewrite", 175


def check(context: CheckContext) -> Finding:
    """Decide as the launch would, and tell its reason; a launch that is not rewritten is no fault of the set-up."""
    from torchx_cubicml.launch.messages import KEPT, NOT_RECORDED, message_line
    from torchx_cubicml.rewrite.rewriter import Options, rewrite

    if not context.args.command or not context.space_file:
        return skipped("give --space FILE and your command to learn whether its next launch would be rewritten")
    options = Options.resolved(space=context.space_file, store=context.url)
    if options.mode in {"record", "off"}:
        return ok(f"not now: the mode is {options.mode}")
    launch = _launch(context)
    with _copied_cache() as cache:
        rewritten = rewrite(launch, replace(options, cache=cache))
    if rewritten.suggestion is not None:
        return ok("the next launch would be rewritten; torchx cubicml suggest prints its command")
    starts = [message_line(f"{text}:") for text in (KEPT, NOT_RECORDED)]
    reasons = [line.removeprefix(start).strip() for start in starts for line in rewritten.lines if start in line]
    return ok(f"not now: {'; '.join(reasons)}")


def _launch(context: CheckContext) -> Launch:
    """Return the launch of the command.

    Raises:
        LaunchError: the command cannot be read, or not recorded.
    """
    if context.is_torchrun:
        return read_command(*split_command(context.args.command), env={}).launch
    return replace(context.component.launch, submits=False)


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
