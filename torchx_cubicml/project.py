"""Project that a program belongs to: programs of two projects are two programs, whatever their names.

It is known by the name in the space file, the name in the nearest ``pyproject.toml``, and the address of the git remote
``origin``: the same on a laptop and on a cluster. One of them in common is enough (``records/workload``).
"""

from __future__ import annotations

import re
from pathlib import Path

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.records.workload import STATED
from torchx_cubicml.user_files import parse_toml, read_text

_SEPARATORS = re.compile(r"[-_.\s]+")
_ORIGIN = re.compile(r'^\[remote "origin"\]\s*\n(?P<keys>(?:(?!\[).*(?:\n|\Z))*)', re.MULTILINE)
_URL = re.compile(r"^\s*url\s*=\s*(?P<url>\S+)\s*$", re.MULTILINE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")


def project_of(program: str, *, is_module: bool, stated: str = "") -> tuple[str, ...]:
    """Return the identities of the project that a program's file belongs to; empty where none is known.

    An identity is ``name:folder``: the folder of the program below the root of the project, ``.`` for the root. So two
    programs in one repository stay apart. A stated name has ``=`` in front. A module belongs to the working folder.

    Args:
        program: path of the script, or dotted name of the module.
        is_module: whether the program is started with ``-m``.
        stated: name in the space file; empty for none.
    """
    path = Path(program)
    is_found = is_module or bool(program and path.is_file())
    here = Path.cwd() if is_module else path.absolute().parent
    found, root = _found_from(here) if is_found else ([], None)
    identities = [f"{name}:{here.relative_to(place).as_posix()}" for name, place in found]
    if stated:
        folder = "" if root is None else f":{here.relative_to(root).as_posix()}"
        identities.insert(0, f"{STATED}{stated.replace(':', '-')}{folder}")
    return tuple(identities)


def _found_from(here: Path) -> tuple[list[tuple[str, Path]], Path | None]:
    """Return each name of the project of a folder with its root, and the outermost root."""
    found: list[tuple[str, Path]] = []
    root = None
    for place in (here, *here.parents):
        if not found and (name := _name_in(place / "pyproject.toml")):
            found.append((name, place))
            root = place
        if (place / ".git").exists():
            address = _remote_of(place / ".git")
            return [*found, *([(address, place)] if address else [])], place
    return found, root


def _name_in(path: Path) -> str:
    try:
        document = parse_toml(read_text(path, errors="replace"))
    except (ValueError, RecursionError, MemoryError):  # a LaunchError is a ValueError
        return ""
    tool = document.get("tool", {})
    tables = (document.get("project"), tool.get("poetry") if isinstance(tool, dict) else None)
    names = (table.get("name") for table in tables if isinstance(table, dict))
    return next((_SEPARATORS.sub("-", name).lower().strip("-") for name in names if isinstance(name, str)), "")


def _remote_of(git: Path) -> str:
    """Return the address of the remote ``origin``, without user, password and protocol."""
    try:
        found = _ORIGIN.search(read_text(git_folders(git)[1] / "config", errors="replace"))
    except LaunchError:
        return ""
    url = _URL.search(found["keys"]) if found is not None else None
    return _address(url["url"]) if url is not None else ""


def git_folders(git: Path) -> tuple[Path, Path]:
    """Return git's folder of a checkout, and the one with the configuration, which its worktrees share.

    Args:
        git: path of ``.git``, which is a file in a worktree.

    Raises:
        LaunchError: a file cannot be read.
    """
    if git.is_dir():
        return git, git
    inner = git.parent / read_text(git).removeprefix("gitdir:").strip()
    common = inner / "commondir"
    return inner, inner / read_text(common).strip() if common.is_file() else inner


def _address(url: str) -> str:
    """Return the same address for each spelling of it; without the host where that is an alias of ssh.

    >>> {_address(url) for url in ("git@host.org:me/gpt.git", "https://me:hunter2@Host.org/me/gpt", "ssh://host.org/me/gpt/")}
    {'host.org/me/gpt'}
    """
    scheme = _SCHEME.match(url)
    if scheme is not None:
        host, _, path = url[scheme.end() :].partition("/")
    elif ":" in url.partition("/")[0]:
        host, _, path = url.partition(":")
    else:
        return url.strip("/").removesuffix(".git")
    host = host.rpartition("@")[2].partition(":")[0].lower()
    path = path.strip("/").removesuffix(".git")
    return f"{host}/{path}" if "." in host else f"/{path}"
