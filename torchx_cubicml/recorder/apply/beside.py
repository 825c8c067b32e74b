"""Folders of our own that look like the folder of a config file: what a program opens beside a copy is the user's."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_BESIDE = 10_000  # links
_MOST_PATH = 4096  # characters


def looking_like(folder: Path, *, up: int, inside: Path) -> Path:
    """Return a folder below ``inside`` in which a link leads to each thing that is in ``folder``.

    Args:
        folder: as the program would reach it.
        up: how many folders above it must look like the user's too, for paths that begin with ``..``.
        inside: empty, of this process alone.

    Raises:
        LaunchError: too much is in these folders, or there are not as many.
        OSError: one cannot be read.
    """
    theirs = folder.resolve()
    if up > len(theirs.parents):
        raise LaunchError(f"a path in a file of {folder} leads further up than there are folders")
    chain = [theirs, *theirs.parents][: up + 1]
    ours, n_links = inside, 0
    for place, below in zip(reversed(chain), [*reversed(chain[:-1]), None], strict=True):
        with os.scandir(place) as entries:
            names = [entry.name for entry in entries if below is None or entry.name != below.name]
        n_links += len(names)
        if n_links > _MOST_BESIDE:
            raise LaunchError(f"more than {_MOST_BESIDE} files lie beside {folder}, which a copy there may lead to")
        for name in names:
            (ours / name).symlink_to(place / name)
        if below is not None:
            ours /= below.name
            ours.mkdir(mode=0o700)
    return ours


def folders_up(values: object) -> int:
    """Return how many folders above its own a file's values lead, at most.

    >>> folders_up({"data": "../corpus/train.bin", "batch": 4, "more": ["a/../b", "x/../../../y"]})
    2
    """
    if isinstance(values, dict):
        return _most(values.values())
    if isinstance(values, list):
        return _most(values)
    if not isinstance(values, str) or len(values) > _MOST_PATH or values.startswith("/"):
        return 0
    return sum(part == ".." for part in PurePosixPath(os.path.normpath(values)).parts)


def _most(values: Iterable[object]) -> int:
    return max(map(folders_up, values), default=0)
