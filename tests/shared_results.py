"""Results that several tests share, such as a launch: the processes that share the tests make each of them once."""

from __future__ import annotations

import fcntl
import pickle
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")


class SharedResults:
    """Folder of one run of the tests, with a pickled result for each name.

    pytest-xdist 3.8 has groups of tests for this, which it ignores under pytest 9.2 without a word (its issue 1386).

    Args:
        folder: of all processes of this run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str, make: Callable[[Path], T]) -> T:
        """Return a result, made in a folder of its own by the first test that asks; the others wait for it."""
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "result.pickle"
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_bytes(pickle.dumps(make(folder)))
        return pickle.loads(kept.read_bytes())
