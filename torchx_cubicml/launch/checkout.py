"""Git checkout of a program: its commit, and whether files differ from it; unknown where there is none."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from torchx_cubicml.project import git_folders
from torchx_cubicml.settings import child_environment
from torchx_cubicml.user_files import read_text

if TYPE_CHECKING:
    from pathlib import Path

GIT_LIMIT_S = 2.0  # of each call of git; a large checkout on a slow file system takes longer, and stays unknown
_MAX_BYTES = 8 * 1024 * 1024  # of the file of packed references
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REFERENCE = re.compile(r"ref: (?P<name>refs/[^\s:?*\[\\]+)")


def commit_of(program: Path | None) -> str:
    """Return the commit of the checkout that holds a program's file, read from its files; empty where unknown.

    Args:
        program: path of the file; ``None`` where unknown.
    """
    try:
        git = _git_of(program) if program is not None else None
        return _commit(*git_folders(git)) if git is not None else ""
    except (OSError, ValueError):
        return ""


def has_uncommitted_changes(program: Path, *, limit_s: float = GIT_LIMIT_S) -> bool | None:
    """Return whether a checkout differs from its commit; ``None`` where git does not tell in time.

    It differs if a tracked file has changed, or if the program's file is not tracked. Other untracked files do not
    count: most are outputs.

    Args:
        program: path of the program's file.
        limit_s: seconds for each of two calls of git.
    """
    try:
        changes = _git(program, "status", "--porcelain", "--untracked-files=no", limit_s=limit_s)
        return bool(changes) or not _git(program, "ls-files", "--", program.name, limit_s=limit_s)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _git_of(program: Path) -> Path | None:
    folder = program.absolute().parent
    return next((place / ".git" for place in (folder, *folder.parents) if (place / ".git").exists()), None)


def _commit(own: Path, common: Path) -> str:
    head = read_text(own / "HEAD").strip()
    reference = _REFERENCE.fullmatch(head)
    if reference is None:
        return head if _HASH.fullmatch(head) else ""
    name = reference["name"]
    if ".." in name:
        return ""
    for path in (own / name, common / name):
        if path.is_file() and _HASH.fullmatch(commit := read_text(path).strip()):
            return commit
    lines = read_text(common / "packed-refs", most=_MAX_BYTES, errors="replace").splitlines()
    found = (line.partition(" ") for line in lines)
    return next((commit for commit, _, packed in found if packed == name and _HASH.fullmatch(commit)), "")


def _git(program: Path, *words: str, limit_s: float) -> str:
    # No index is written, and no monitor of files is started. A clean filter in the checkout's own settings runs.
    command = ["git", "--no-optional-locks", "--literal-pathspecs", "-c", "core.fsmonitor=false", *words]
    environment = {name: text for name, text in child_environment({}).items() if not name.startswith("GIT_")}
    done = subprocess.run(
        command,
        cwd=program.absolute().parent,
        env=environment,
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return done.stdout.decode(errors="replace").strip()
