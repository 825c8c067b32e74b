"""Provenance of a trial: who recorded it with which code, and how far its source is trusted."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

OWNER = "owner"
"""Pseudonym of the user who ran the job: a digest keyed with the key of the store."""
PACKAGE_VERSION = "package_version"
"""Version of this package in the job."""
COMMIT = "commit"
"""Git commit of the checkout that holds the program."""
UNCOMMITTED = "uncommitted_changes"
"""True if tracked files of that checkout differed from the commit, or the program's file was not tracked."""
SPACE = "space"
"""Digest of the space file (``space_digest``)."""

PROVENANCE_NAMES = (OWNER, PACKAGE_VERSION, COMMIT, UNCOMMITTED, SPACE)


class Trust(StrEnum):
    """Trust level of the store that a trial came from, the most trusted first."""

    OWN = "own"
    TEAM = "team"
    PUBLIC = "public"


def least_trusted(levels: Iterable[Trust]) -> Trust:
    """Return the lowest of some trust levels, ``own`` without any.

    >>> str(least_trusted([Trust.TEAM, Trust.OWN]))
    'team'
    """
    order = list(Trust)
    return max(levels, key=order.index, default=Trust.OWN)
