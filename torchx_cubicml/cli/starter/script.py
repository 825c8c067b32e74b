"""Flags that a program describes: in its ``--help``, as argparse and similar libraries print it, or in its source."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.from_keys import is_hydra
from torchx_cubicml.cli.starter.meanings import ScriptFlag
from torchx_cubicml.launch.command_facts.source_literals import bare_name
from torchx_cubicml.launch.command_texts import program_path
from torchx_cubicml.launch.source_files import source_files
from torchx_cubicml.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torchx_cubicml.launch import Launch
    from torchx_cubicml.launch.command_facts.source_literals import ParserFlag

HELP_TIMEOUT_S = 60.0  # a script may import torch before it parses its arguments
MAX_HELP = 200_000  # characters

_PARSER = re.compile(r"argparse|ArgumentParser|click|typer|tyro|docopt|absl")
_BEGINS = re.compile(r" {1,8}(?P<names>--?[A-Za-z][^ ]*(?: [^ ]+)*?)(?:(?: {2,}|$)(?P<help>.*))$")
_NAME = re.compile(r"--?[A-Za-z][\w.-]*")
_CHOICES = re.compile(r"\{([^{}]*)\}")
_DEFAULT = re.compile(r"[(\[]default(?:s to)?[:= ]+(?P<text>[^)\]]*)[)\]]", re.IGNORECASE)


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


def _help_obstacle(launch: Launch) -> str:
    if program_path(launch.program, is_module=launch.is_module) is None:
        return f"{launch.program or 'the program'} not found here"
    source = next(source_files(launch))
    if source.tree is None:
        return f"{launch.program} cannot be read as Python"
    is_parsing = _PARSER.search(source.text) or is_hydra(source.text)
    return "" if is_parsing else f"no argument parser found in {launch.program}"


def parse_help(text: str) -> list[ScriptFlag]:
    r"""Parse the flags that a help text describes, in its order; unknown formats are left out.

    >>> text = "options:\n  -p {fp32,bf16}, --precision {fp32,bf16}\n        number format (default: fp32)\n"
    >>> [(flag.name, flag.choices, flag.default, flag.text) for flag in parse_help(text)]
    [('--precision', ('fp32', 'bf16'), 'fp32', 'number format')]
    """
    found: dict[str, ScriptFlag] = {}
    for flag in filter(None, (_flag(*entry) for entry in _entries(text[:MAX_HELP]))):
        found.setdefault(flag.name, flag)
    return list(found.values())


def described_flags(text: str, declared: Mapping[str, ParserFlag]) -> list[ScriptFlag]:
    """Return the flags of a help text, with what it leaves out as the source declares it; without a text, the declared.

    Args:
        text: output of ``--help``; may be empty.
        declared: flags in the source, by ``parser_flags``; those of unclear form are left out.
    """
    defaults = {name: str(flag.default) for name, flag in declared.items() if flag.default is not None}
    found = parse_help(text) or [
        ScriptFlag(name=flag.name, is_switch=not flag.takes_value, choices=tuple(map(str, flag.choices)))
        for flag in declared.values()
        if flag.takes_value is not None
    ]
    return [replace(flag, default=flag.default or defaults.get(bare_name(flag.name))) for flag in found]


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield invocation and description of each flag."""
    invocation, description = "", [""]
    for line in [*text.expandtabs().splitlines(), ""]:
        begins = _BEGINS.match(line)
        if begins is None and line.strip() and line.startswith("    "):
            description.append(line.strip())
            continue
        if invocation:
            yield invocation, " ".join(description).strip()
        invocation, description = (begins["names"], [begins["help"] or ""]) if begins else ("", [""])


def _flag(invocation: str, description: str) -> ScriptFlag | None:
    spelled = re.split(r", (?=-)", invocation)
    names = [match[0] for match in map(_NAME.match, spelled) if match]
    if not names:
        return None
    name = next((item for item in names if item.startswith("--")), names[0])
    choices = _CHOICES.search(invocation)
    default = _DEFAULT.search(description)
    return ScriptFlag(
        name=name,
        is_switch=not any(" " in item or "=" in item for item in spelled),
        choices=tuple(choices[1].split(",")) if choices else (),
        default=default["text"].strip() if default and default["text"].strip() != "None" else None,
        text=" ".join(_DEFAULT.sub("", description).split()),
    )
