"""Sub-command ``torchx cubicml doctor``: checks a set-up and tells a cure for what is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli import base
from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

_STYLES = {"ok": "green", "skipped": "dim", "warning": "yellow", "wrong": "bold red"}
_INDENT = " " * 9
_MAX_TIMEOUT_S = 86_400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the store, the space file, the scheduler and the command that are checked."""
    base.add_store(parser)
    parser.add_argument("--space", default="", metavar="FILE", help="space file (TOML)")
    base.add_scheduler(parser, otherwise=base.LATEST_SCHEDULER)
    text = "submit a job of one second to the scheduler, which tells what it finds (default: submit nothing)"
    parser.add_argument("--job", action="store_true", help=text)
    text = "seconds to wait for that job, queue included (default: 600)"
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help=text)
    text = "write nothing to the store (default: write a small file, read it back and remove it)"
    parser.add_argument("--no-probe", action="store_true", help=text)
    base.add_json(parser)
    base.add_launch(parser)


def run(args: argparse.Namespace) -> int:
    """Print one finding per check, in the order of the modules; the exit status is 1 if something is wrong."""
    from torchx_cubicml.cli.checks import command_health, installation, job_environment, store_health
    from torchx_cubicml.cli.checks.context import CheckContext, finding_of
    from torchx_cubicml.cli.terminal import open_console
    from torchx_cubicml.records.redaction import mask, printable

    if not 0 < args.timeout <= _MAX_TIMEOUT_S:
        raise LaunchError(f"--timeout must be above 0 s and at most {_MAX_TIMEOUT_S:g} s, got {args.timeout:g}")
    if args.command and base.split_command(args.command)[0] == "cubicml":
        raise LaunchError("give the command without `cubicml`, as in: doctor --space FILE -- dist.ddp -j 1x2 ...")
    context, console = CheckContext(args=args), open_console()
    rows: list[dict[str, str]] = []
    modules = installation, store_health, command_health, job_environment
    for name, check in [pair for module in modules for pair in module.CHECKS.items()]:
        finding = finding_of(check, context)
        texts = {key: printable(mask(" ".join(getattr(finding, key).split()))) for key in ("found", "cure")}
        rows.append({"check": name, "level": finding.level, **texts})
        if not args.json:
            _print(console, rows[-1])
    levels = [row["level"] for row in rows]
    if args.json:
        base.print_json(rows)
    else:
        counts = [f"{levels.count(level)} {level}" for level in _STYLES if level in levels]
        console.print(f"{len(levels)} checks: {', '.join(counts)}", soft_wrap=True)
    return int("wrong" in levels)


def _print(console: Console, row: dict[str, str]) -> None:
    from torchx_cubicml.cli.terminal import wrapped

    level = row["level"]
    texts = [f"{row['check']}: {row['found']}", *([f"-> {row['cure']}"] if row["cure"] else [])]
    lines = [line for text in texts for line in wrapped(text, console.width, first=_INDENT, indent=_INDENT + "  ")]
    console.print(f"{level:<9}", style=_STYLES[level], end="")
    console.print("\n".join(lines)[len(_INDENT) :], soft_wrap=True)
