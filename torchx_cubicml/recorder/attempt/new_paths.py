"""Paths that the program makes: watched by an audit hook, and moved aside before the program starts again.

A second start must find what the first one found: an output folder that exists, or a lock file, would stop it. Nothing
is deleted. Inputs that the first start has fetched (data sets, caches) stay, because a second fetch takes long.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.settings import cache_folders_of_libraries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# Audit event -> position of the argument that names the new path: https://docs.python.org/3/library/audit_events.html
_PATH_ARGUMENT = {"open": 0, "os.mkdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1}
_OPEN_FLAGS = 2  # position of the flags of "open"
_MOST_PATHS = 10_000
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_INPUT = re.compile(r"(?:.*[-_.])?(?:data|datasets?)|downloads?", re.IGNORECASE)  # a name
_CACHE = re.compile(r"hub|.*cache.*", re.IGNORECASE)  # a part of a path
_TEMPORARY = ("tmp", "pymp-", "torch")  # first letters of names that libraries draw in the folder for temporary files


def watch_new_paths(list_file: Path | None = None) -> set[str]:
    """Return the set to which each path is added that this process makes from now on.

    In ``list_file`` are those of processes forked from it, too, one JSON string per line.

    Files that native code opens are not seen. An audit hook cannot be removed; after ``_MOST_PATHS`` it does nothing.

    Raises:
        OSError: the file cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    descriptor = os.open(list_file, flags, 0o600) if list_file is not None else -1
    seen: set[str] = set()
    own_folder = f"{list_file.parent}{os.sep}" if list_file is not None else os.devnull

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        position = _PATH_ARGUMENT.get(event)
        if position is None or len(seen) >= _MOST_PATHS:
            return
        try:
            path = _new_path(event, arguments, position)
            if path and path not in seen and not path.startswith(own_folder):
                seen.add(path)
                if descriptor >= 0:
                    os.write(descriptor, f"{json.dumps(path)}\n".encode())
        except Exception:  # noqa: BLE001 - an error of an audit hook would reach the program
            return

    sys.addaudithook(hook)
    return seen


def movable(paths: Iterable[str]) -> list[str]:
    """Return the outermost of the paths that exist and that a second start may trip over.

    A folder stays if it holds what another job has made, or the cache folder of a library; what the first start made in
    it does not.

    Args:
        paths: absolute paths that the first start made.
    """
    made, settled, moving = set(paths), list[str](), list[str]()
    caches = cache_folders_of_libraries()
    for path in sorted(made, key=Path):
        if any(path.startswith(f"{outer}/") for outer in settled) or not os.path.lexists(path):
            continue
        is_kept = _is_kept(Path(path), caches)
        if not is_kept and (_holds_paths_of_others(path, made) or any(_is_inside(each, path) for each in caches)):
            continue
        settled.append(path)
        if not is_kept:
            moving.append(path)
    return moving


def _holds_paths_of_others(path: str, made: Collection[str]) -> bool:
    if os.path.islink(path):  # noqa: PTH114 - as below
        return False
    return any(f"{folder}/{name}" not in made for folder, names, files in os.walk(path) for name in (*names, *files))


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")


def move_aside(paths: Iterable[str], suffix: str) -> tuple[dict[str, str], list[str]]:
    """Rename each path, in its folder.

    Args:
        paths: absolute paths.
        suffix: end of the new names.

    Returns:
        Old path -> new path, and the paths that could not be renamed.
    """
    moved: dict[str, str] = {}
    left: list[str] = []
    for path in paths:
        target = f"{path}{suffix}"
        try:
            if os.path.lexists(target):
                raise FileExistsError(target)
            os.rename(path, target)  # noqa: PTH104 - a path may end in a link, and pathlib adds nothing
        except OSError:
            left.append(path)
        else:
            moved[path] = target
    return moved, left


def _new_path(event: str, arguments: tuple[object, ...], position: int) -> str:
    """Return the absolute path that is about to be made; empty if it exists or is none."""
    if event == "open":
        flags = arguments[_OPEN_FLAGS]
        if not isinstance(flags, int) or not flags & os.O_CREAT:
            return ""
    named = arguments[position]
    if not isinstance(named, str | bytes | os.PathLike):
        return ""
    path = os.path.abspath(os.fsdecode(named))  # noqa: PTH100 - resolves no link
    return "" if os.path.lexists(path) else path


def _is_kept(path: Path, caches: Collection[str]) -> bool:
    """Return whether a path is an input, a cache, a temporary file or a device rather than the program's output."""
    # A part that the working folder shares says nothing: all of a project may lie below /mnt/cache.
    parts = Path(os.path.relpath(path)).parts
    return bool(
        any(map(_CACHE.fullmatch, parts))
        or any(str(path) == folder or _is_inside(str(path), folder) for folder in caches)
        or _INPUT.fullmatch(path.name)
        or path.suffix == ".pyc"
        or str(path).startswith((*_SYSTEM, f"{Path('~').expanduser()}/."))
        or (path.parent == Path(tempfile.gettempdir()) and path.name.startswith(_TEMPORARY))
    )
