"""Flags that a program describes: in its ``--help``, as argparse and similar libraries print it, or in its source."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.source_literals import bare_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torchx_cubicml.launch.command_facts.source_literals import ParserFlag

MAX_HELP = 200_000  # characters

_BEGINS = re.compile(r" {1,8}(?P<names>--?[A-Za-z][^ ]*(?: [^ ]+)*?)(?:(?: {2,}|$)(?P<help>.*))$")
_NAME = re.compile(r"--?[A-Za-z][\w.-]*")
_CHOICES = re.compile(r"\{([^{}]*)\}")
_DEFAULT = re.compile(r"[(\[]default(?:s to)?[:= ]+(?P<text>[^)\]]*)[)\]]", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagHelp:
    """Description of one flag in a help text.

    Args:
        name: name with dashes; the long one, if there is one.
        takes_value: whether a value follows the flag.
        choices: legal values; empty where the text does not list them.
        default: default value; ``None`` where the text does not state it.
        text: description, in one line.
    """

    name: str
    takes_value: bool
    choices: tuple[str, ...]
    default: str | None = None
    text: str = ""


def parse_help(text: str) -> list[FlagHelp]:
    r"""Parse the flags that a help text describes, in its order; unknown formats are left out.

    >>> parse_help("options:\n  -p {fp32,bf16}, --precision {fp32,bf16}\n        number format (default: fp32)\n")
    [FlagHelp(name='--precision', takes_value=True, choices=('fp32', 'bf16'), default='fp32', text='number format')]
    """
    found: dict[str, FlagHelp] = {}
    for invocation, description in _entries(text[:MAX_HELP]):
        flag = _flag(invocation, description)
        if flag is not None:
            found.setdefault(flag.name, flag)
    return list(found.values())


def described_flags(text: str, declared: Mapping[str, ParserFlag]) -> list[FlagHelp]:
    """Return the flags of a help text, with what it leaves out as the source declares it; without a text, the declared.

    Args:
        text: output of ``--help``; may be empty.
        declared: flags in the source, by ``parser_flags``; those of unclear form are left out.
    """
    defaults = {name: str(flag.default) for name, flag in declared.items() if flag.default is not None}
    found = parse_help(text) or [
        FlagHelp(name=flag.name, takes_value=flag.takes_value, choices=tuple(map(str, flag.choices)))
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


def _flag(invocation: str, description: str) -> FlagHelp | None:
    spelled = re.split(r", (?=-)", invocation)
    names = [match[0] for match in map(_NAME.match, spelled) if match]
    if not names:
        return None
    name = next((item for item in names if item.startswith("--")), names[0])
    choices = _CHOICES.search(invocation)
    default = _DEFAULT.search(description)
    return FlagHelp(
        name=name,
        takes_value=any(" " in item or "=" in item for item in spelled),
        choices=tuple(choices[1].split(",")) if choices else (),
        default=default["text"].strip() if default and default["text"].strip() != "None" else None,
        text=" ".join(_DEFAULT.sub("", description).split()),
    )
