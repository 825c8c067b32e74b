"""Section ``[component:cubicml]`` of ``.torchxconfig``, which TorchX reads where it is installed."""

from __future__ import annotations

import configparser
from pathlib import Path

from torchx_cubicml.settings import child_environment

_FILE, _SECTION = ".torchxconfig", "component:cubicml"


def own_section() -> dict[str, str]:
    """Return the options of the section -> text of each; none without a file or without the section.

    Raises:
        OSError: a file cannot be read, or the one that ``TORCHXCONFIG`` names does not exist.
        configparser.Error: a file is no INI file.
    """
    try:
        from torchx.runner.config import load_sections
    except ModuleNotFoundError:  # cubicrun needs no TorchX
        return _section_in(_files())
    section: dict[str, str] = load_sections("component").get("cubicml", {})
    return section


def _files() -> list[Path]:
    """Return the files that TorchX would read, the first to win first."""
    stated = child_environment({}).get("TORCHXCONFIG")
    if stated is not None:
        return [Path(stated)]
    return [path for folder in (Path.home(), Path.cwd()) if (path := folder / _FILE).exists()]


def _section_in(paths: list[Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in paths:
        file = configparser.ConfigParser()
        file.optionxform = str  # type: ignore[assignment,method-assign]  # options are spelled with capitals
        with path.open() as stream:
            file.read_file(stream)
        if file.has_section(_SECTION):
            found = {**dict(file.items(_SECTION)), **found}
    return found
