"""Section ``[component:cubicml]`` of ``.torchxconfig``, read as TorchX does, which need not be installed."""

from __future__ import annotations

import configparser
import os
import re
from pathlib import Path

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.settings import child_environment
from torchx_cubicml.user_files import read_text

_FILE, _SECTION = ".torchxconfig", "component:cubicml"
_MAX_BYTES = 64 * 1024  # of a file
_BLANKS = re.compile(r"[^\S\n]{500}")  # the time of the standard library's parser grows with the square of their number


def own_section() -> dict[str, str]:
    """Return the options of the section -> text of each; none without a file or without the section.

    Raises:
        LaunchError: a file cannot be read, or the one that ``TORCHXCONFIG`` names does not exist.
    """
    found: dict[str, str] = {}
    for path in _files():
        file = read_ini(path, configparser.ConfigParser())
        if file.has_section(_SECTION):
            found = {**dict(file.items(_SECTION)), **found}
    return found


def read_ini(path: str | Path, parser: configparser.RawConfigParser) -> configparser.RawConfigParser:
    """Return ``parser`` with the sections of a file; options are spelled with capitals, as in TorchX.

    Raises:
        LaunchError: it cannot be read, or is no INI file.
    """
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    text = read_text(path, most=_MAX_BYTES)
    if _BLANKS.search(text):
        raise LaunchError(f"{path} cannot be read: it has hundreds of blanks in a row")
    try:
        parser.read_string(text, source=str(path))
    except configparser.Error as error:
        raise LaunchError(f"{path} cannot be read: {error}") from None
    return parser


def _files() -> list[Path]:
    """Return the files that TorchX would read, the first to win first."""
    stated = child_environment({}).get("TORCHXCONFIG")
    if stated is not None:
        return [Path(stated)]
    folders = (os.path.expanduser("~"), Path.cwd())  # noqa: PTH111 - a user without a home has no file there
    return [path for folder in folders if os.access(path := Path(folder, _FILE), os.R_OK)]
