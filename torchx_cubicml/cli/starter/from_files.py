"""What the config files of a command say, under the names on whose meaning trainers agree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import CubicMLError
from torchx_cubicml.launch.bindings.spelling import spell
from torchx_cubicml.launch.config_text import MAX_BYTES, is_document, parse_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchx_cubicml.cli.starter.toml_text import ScriptFlag
    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.trial import Scalar

MAX_DEPTH = 6  # of keys in keys
MAX_KEYS = 2000


def keys_in_files(launch: Launch, make: Callable[[str, str, str], ScriptFlag | None]) -> list[ScriptFlag]:
    """Return the keys that are understood in the config files that a command names and that are at hand.

    Args:
        launch: the command.
        make: called with file as the space file names it, dotted key and value as a text; ``None`` where it is not
            understood.
    """
    found = []
    for place, path in _named_files(launch):
        for key, text in _leaves(_document(path), ()):
            flag = make(place, ".".join(key), text)
            found += [flag] if flag is not None else []
    return found


def _named_files(launch: Launch) -> list[tuple[str, str]]:
    """Return place and path of each config file: the flag that names it, else its path as typed."""
    named = []
    for before, word in zip(["", *launch.script_args], launch.script_args, strict=False):
        name, equals, path = word.partition("=")
        if not equals:
            name, path = (before if before.startswith("-") and "=" not in before else ""), word
        elif not name.startswith("-"):
            name = f"{name}="
        if is_document(path) and Path(path).is_file():
            named.append((name or path, path))
    return named + [(f"${name}", path) for name, path in launch.env.items() if is_document(path)]


def _document(path: str) -> object:
    try:
        with Path(path).open("rb") as file:
            return parse_document(file.read(MAX_BYTES + 1).decode(), path=path)
    except (OSError, ValueError, CubicMLError):  # what cannot be read is proposed nothing of
        return {}


def _leaves(inner: object, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the single values and flat lists of a document with their keys."""
    if isinstance(inner, dict) and len(key) < MAX_DEPTH:
        for name, value in list(inner.items())[:MAX_KEYS]:
            if isinstance(name, str) and name and "." not in name:
                yield from _leaves(value, (*key, name))
        return
    entries = inner if isinstance(inner, list) else [inner]
    scalars: list[Scalar] = [entry for entry in entries if isinstance(entry, bool | int | float | str)]
    if key and scalars and len(scalars) == len(entries):
        yield key, ",".join(map(spell, scalars))
