"""Reader of a command's config files: finds the keys whose meaning is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_facts.stated_settings import read_document
from torchx_cubicml.launch.config_text import is_document
from torchx_cubicml.space.spelling import spell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchx_cubicml.cli.starter.script_flag import ScriptFlag
    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.values import Scalar

MAX_DEPTH = 6  # nesting of keys
MAX_KEYS = 2000


def keys_in_files(launch: Launch, make: Callable[[str, str, str], ScriptFlag | None]) -> list[ScriptFlag]:
    """Return the keys with a known meaning in the config files of a command that exist here.

    Args:
        launch: the command.
        make: called with the file as the space file names it, the dotted key and the value as text; returns ``None``
            for an unknown key.
    """
    found = []
    for label, path in _named_files(launch):
        for key, text in leaves(read_document(Path(path)), ()):
            flag = make(label, ".".join(key), text)
            found += [flag] if flag is not None else []
    return found


def _named_files(launch: Launch) -> list[tuple[str, str]]:
    """Return label and path of each config file; the label is the argument or variable that holds it."""
    named = []
    for previous, word in zip(["", *launch.script_args], launch.script_args, strict=False):
        name, equals, path = word.partition("=")
        if not equals:
            name, path = (previous if previous.startswith("-") and "=" not in previous else ""), word
        elif not name.startswith("-"):
            name = f"{name}="
        if is_document(path):
            named.append((name or path, path))
    return named + [(f"${name}", path) for name, path in launch.env.items() if is_document(path)]


def leaves(node: object, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield key and text of each leaf of a document: scalars and flat lists."""
    if isinstance(node, dict) and len(key) < MAX_DEPTH:
        for name, value in list(node.items())[:MAX_KEYS]:
            if isinstance(name, str) and name and "." not in name:
                yield from leaves(value, (*key, name))
        return
    entries = node if isinstance(node, list) else [node]
    scalars: list[Scalar] = [entry for entry in entries if isinstance(entry, bool | int | float | str)]
    if key and scalars and len(scalars) == len(entries):
        yield key, ",".join(map(spell, scalars))
