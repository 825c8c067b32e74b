"""Provenance of a launch, added by the writer process: owner, package version, and commit of the program."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.checkout import commit_of, has_uncommitted_changes
from torchx_cubicml.records.arguments import text_digest
from torchx_cubicml.records.provenance import COMMIT, OWNER, PACKAGE_VERSION, UNCOMMITTED
from torchx_cubicml.store.deadline import within

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.event import Event
    from torchx_cubicml.records.values import Value

_USER_LIMIT_S = 1.0  # a directory service may not answer


def with_provenance(event: Event, program: Path | None, key: str) -> Event:
    """Return the event with the provenance of its launch; what cannot be told in time is left out.

    Args:
        event: with what the launcher knew.
        program: path of the program's file in the job; ``None`` where unknown.
        key: key of the store, for the pseudonym of the owner.
    """
    found: dict[str, Value] = {**event.provenance}
    user = _user()
    if user:
        found[OWNER] = text_digest(f"owner {user}", key)
    with suppress(PackageNotFoundError):
        found[PACKAGE_VERSION] = version("torchx-cubicml")
    commit = commit_of(program)
    if program is not None and commit:
        found[COMMIT] = commit
        changes = has_uncommitted_changes(program)
        if changes is not None:
            found[UNCOMMITTED] = changes
    return replace(event, provenance=found)


def _user() -> str:
    """Return the name of this process's user, or its number where it has none; empty if that takes too long."""
    try:
        return within(_USER_LIMIT_S, lambda: pwd.getpwuid(os.getuid()).pw_name, what="the user's name")
    except KeyError:
        return str(os.getuid())
    except LaunchError:
        return ""
