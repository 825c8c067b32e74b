"""Project that a program belongs to: programs of two projects are two programs, whatever their names.

Without a name in the space file, it is the name in the nearest ``pyproject.toml``, else the address of the git remote
``origin``: the same on a laptop and on a cluster.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_MAX_BYTES = 1024 * 1024
_SEPARATORS = re.compile(r"[-_.\s]+")
_ORIGIN = re.compile(r'^\[remote "origin"\]\s*\n(?P<keys>(?:(?!\[).*(?:\n|\Z))*)', re.MULTILINE)
_URL = re.compile(r"^\s*url\s*=\s*(?P<url>\S+)\s*$", re.MULTILINE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")


def project_of(program: str, *, is_module: bool) -> str:
    """Return the name of the project that holds a program's file; empty where there is none, or no such file.

    A module belongs to the project of the working folder.

    Args:
        program: path of the script, or dotted name of the module.
        is_module: whether the program is started with ``-m``.
    """
    path = Path(program)
    if not is_module and not (program and path.is_file()):
        return ""
    here = Path.cwd() if is_module else path.absolute().parent
    for place in (here, *here.parents):
        if name := _name_in(place / "pyproject.toml"):
            return name
        if (place / ".git").exists():
            return _remote_of(place / ".git")
    return ""


def _name_in(path: Path) -> str:
    try:
        document = tomllib.loads(_text_of(path))
    except (OSError, ValueError, RecursionError):
        return ""
    tool = document.get("tool", {})
    tables = (document.get("project"), tool.get("poetry") if isinstance(tool, dict) else None)
    names = (table.get("name") for table in tables if isinstance(table, dict))
    return next((_SEPARATORS.sub("-", name).lower().strip("-") for name in names if isinstance(name, str)), "")


def _remote_of(git: Path) -> str:
    """Return the address of the remote ``origin``, without user, password and protocol."""
    try:
        found = _ORIGIN.search(_text_of(_git_folder(git) / "config"))
    except (OSError, ValueError):
        return ""
    url = _URL.search(found["keys"]) if found is not None else None
    return _address(url["url"]) if url is not None else ""


def _git_folder(git: Path) -> Path:
    """Return the folder with the configuration, also of a worktree, whose ``.git`` is a file."""
    if git.is_dir():
        return git
    inner = git.parent / _text_of(git).removeprefix("gitdir:").strip()
    common = inner / "commondir"
    return inner / _text_of(common).strip() if common.is_file() else inner


def _address(url: str) -> str:
    """Return the same address for each spelling of it.

    >>> {_address(url) for url in ("git@host.org:me/gpt.git", "https://me:hunter2@Host.org/me/gpt", "ssh://host.org/me/gpt/")}
    {'host.org/me/gpt'}
    """
    scheme = _SCHEME.match(url)
    if scheme is not None:
        host, _, path = url[scheme.end() :].partition("/")
    elif ":" in url.partition("/")[0]:
        host, _, path = url.partition(":")
    else:
        host, path = "", url
    host = host.rpartition("@")[2].partition(":")[0].lower()
    return "/".join(filter(None, (host, path.strip("/").removesuffix(".git"))))


def _text_of(path: Path) -> str:
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        return ""
    return path.read_text(errors="replace")
