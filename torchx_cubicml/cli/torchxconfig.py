"""Component defaults in ``.torchxconfig``: writes the arguments of a command there."""

from __future__ import annotations

import configparser
import inspect
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.torchx_config import read_ini

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FAILURES = (OSError, LaunchError, configparser.Error)


def write_default(path: Path, command: Sequence[str]) -> None:
    """Write the arguments of ``command`` to the section of its component; other sections are kept.

    Args:
        path: path of a ``.torchxconfig``; it is created if missing.
        command: the component's name and its arguments.

    Raises:
        LaunchError: an argument cannot be written to such a file, or the file cannot be read or written.
    """
    section, defaults = f"component:{command[0]}", defaults_of(command)
    try:
        file = _read(path)
        if not file.has_section(section):
            file.add_section(section)
        for name, value in defaults.items():
            file.set(section, name, value)
        with path.open("w", encoding="utf-8") as out:
            file.write(out)
    except _FAILURES as error:
        raise _write_error(path, error) from error


def check_default(path: Path, command: Sequence[str]) -> None:
    """Check, before hours of launches, that ``write_default`` can succeed; the file is not changed.

    Args:
        path: as for ``write_default``.
        command: command as typed; a tune changes only single words of it.

    Raises:
        LaunchError: as for ``write_default``.
    """
    defaults_of(command)
    try:
        _read(path)
        target = path.resolve()  # resolved, so that a dangling link is kept
        is_new = not target.exists()
        target.open("a", encoding="utf-8").close()
        if is_new:
            target.unlink()
    except _FAILURES as error:
        raise _write_error(path, error) from error


def defaults_of(command: Sequence[str]) -> dict[str, str]:
    """Return the entries of the section; TorchX splits the script's arguments there at white space, without quotes.

    Raises:
        LaunchError: an argument has white space or is empty.
    """
    from torchx.specs import finder
    from torchx.specs.builders import parse_args

    function = finder.get_component(command[0]).fn
    parsed = vars(parse_args(function, list(command[1:]), None))
    defaults: dict[str, str] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        value = parsed.get(name)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            words = [str(word) for word in value or []]
            words = words[1:] if words[:1] == ["--"] else words
            bad = next((word for word in words if not word or word.split() != [word]), None)
            if bad is not None:
                raise LaunchError(
                    f"cannot write the argument {bad!r} as a default: TorchX splits defaults at white space"
                )
            defaults[name] = " ".join(words)
        elif value is not None and value != parameter.default:
            defaults[name] = _to_text(value)
    return defaults


def _read(path: Path) -> configparser.RawConfigParser:
    file = configparser.RawConfigParser()
    return read_ini(path, file) if path.exists() else file


def _write_error(path: Path, error: Exception) -> LaunchError:
    return LaunchError(f"cannot write the confirmed config as a default to {path}: {error}")


def _to_text(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={entry}" for name, entry in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
