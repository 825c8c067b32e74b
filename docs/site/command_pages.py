"""Reference of the commands and components, from their parsers and docstrings."""

from __future__ import annotations

import argparse
import inspect
import re
from typing import TYPE_CHECKING

from markdown_table import code, table
from torchx.specs.file_linter import get_fn_docstring

from torchx_cubicml.cli import CubicMLCommand
from torchx_cubicml.components import cubicml as cubicml_module
from torchx_cubicml.components.trainers import megatron_lm, torchtitan
from torchx_cubicml.cubicrun import HELP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAM = "torchx cubicml"
COMPONENTS = {
    "cubicml": cubicml_module.cubicml,
    "cubicml.torchtitan.train": torchtitan.train,
    "cubicml.megatron_lm.pretrain_gpt": megatron_lm.pretrain_gpt,
}
_DEFAULT = re.compile(r" \(default: (?P<value>.*?)\)(?=;|$)| \(default\)")
_REQUIRED = "required"


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every command without sub-commands of its own: its summary and its parser."""
    root = argparse.ArgumentParser(prog=PROGRAM)
    CubicMLCommand().add_arguments(root)
    yield from _leaves(root, "")


def _leaves(parser: argparse.ArgumentParser, summary: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield summary, parser
    for action in inner:
        summaries = {each.dest: each.help or "" for each in action._choices_actions}
        for name, child in action.choices.items():
            yield from _leaves(child, summaries[name])


def command_page() -> str:
    """Return one section per command: what it does, and each argument with its meaning and default."""
    return "\n\n".join(_section(summary, parser) for summary, parser in parsers())


def _section(summary: str, parser: argparse.ArgumentParser) -> str:
    actions = [action for action in parser._actions if action.dest != "help"]
    rows = [_row(parser, action) for action in actions]
    sentence = f"{summary[:1].upper()}{summary[1:]}."
    return f"## {code(parser.prog)}\n\n{sentence}\n\n{table(['argument', 'meaning', 'default'], rows)}"


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    help_text = (action.help or "") % {**vars(action), "prog": parser.prog}
    stated = _DEFAULT.search(help_text)
    if stated and stated["value"]:
        default, meaning = stated["value"], _DEFAULT.sub("", help_text)
    else:
        default, meaning = _REQUIRED if action.required else _default_text(action), help_text
    choices = [str(choice) for choice in action.choices or () if str(choice) not in meaning]
    meaning = f"{meaning}: {', '.join(choices)}" if choices else meaning
    return [_spelling(action), _as_text(meaning), _as_text(default)]


def _default_text(action: argparse.Action) -> str:
    if isinstance(action.default, bool):
        return "on" if action.default else "off"
    return "" if action.default in (None, "", [], argparse.SUPPRESS) else str(action.default)


def _spelling(action: argparse.Action) -> str:
    if not action.option_strings:
        shown = action.metavar or action.dest
        return code(shown if isinstance(shown, str) else " ".join(shown))
    takes = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return ", ".join(code(f"{name}{takes if name.startswith('--') else ''}") for name in action.option_strings)


def _as_text(text: str) -> str:
    """Return a help text as Markdown: braces, asterisks and angle brackets mean themselves."""
    outside = text.split("`")
    outside[::2] = [re.sub(r"([*_<>])", r"\\\1", part) for part in outside[::2]]
    return "`".join(outside)


def cubicrun_help() -> str:
    """Return the text that ``cubicrun --help`` prints before torchrun's own."""
    return f"```text\n{HELP.strip()}\n```"


def component_page() -> str:
    """Return one section per TorchX component: what it does, and each argument with its meaning and default."""
    return "\n\n".join(_component(name, function) for name, function in COMPONENTS.items())


def _component(name: str, function: Callable[..., object]) -> str:
    first, meanings = get_fn_docstring(function)
    rows = []
    for parameter in inspect.signature(function).parameters.values():
        typed = "ARGS ..." if parameter.kind is parameter.VAR_POSITIONAL else f"{_dashes(parameter.name)} VALUE"
        stated = _DEFAULT.search(meanings[parameter.name])
        default = stated["value"] if stated else _signature_default(parameter)
        rows.append([code(typed), _as_text(_DEFAULT.sub("", meanings[parameter.name])), _as_text(default or "")])
    sentence = first.strip().partition("\n")[0]
    return f"## {code(f'torchx run {name}')}\n\n{sentence}\n\n{table(['argument', 'meaning', 'default'], rows)}"


def _dashes(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _signature_default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default in (None, parameter.empty) else str(parameter.default)
