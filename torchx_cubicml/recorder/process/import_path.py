"""Where modules of ours look for the library's while a program's own stand first."""

from __future__ import annotations

import os
import sys


def library_first() -> list[str]:
    """Let no file of the program's stand for a module of the library; return the search path as the program has it.

    Python's ``-m`` has put the working directory first, which the program's own first entry is to replace; what lies on
    PYTHONPATH comes after the library's own folders until the path that is returned is set again.
    """
    if not sys.flags.safe_path:
        del sys.path[0]
    path = list(sys.path)
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib is not to be found on the path as it stands
    sys.path.sort(key=lambda entry: entry not in {library, f"{library}/lib-dynload"})
    return path
