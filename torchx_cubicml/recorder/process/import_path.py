"""Module search path that keeps a program's files from shadowing the standard library for this package."""

from __future__ import annotations

import os
import sys


def put_library_first() -> list[str]:
    """Put the standard library first on ``sys.path``, and return the search path to restore for the program.

    The working directory, which Python's ``-m`` has put first, is removed: the program's own first entry replaces it.
    Entries of PYTHONPATH follow the library's folders until the caller restores the returned path.
    """
    if not sys.flags.safe_path:
        del sys.path[0]
    path = list(sys.path)
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - importing pathlib could find a program's file here
    sys.path.sort(key=lambda entry: entry not in {library, f"{library}/lib-dynload"})
    return path
