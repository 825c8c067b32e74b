"""Module search path on which a program's files shadow no module of the standard library for this package."""

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


def unload_shadowed_modules(before: frozenset[str]) -> None:
    """Remove from ``sys.modules`` those loaded since ``before`` that the program shadows with files of its own.

    Such files are in the program's folder or on PYTHONPATH. The program then imports its own file, as it does without
    the recorder. The recorder keeps its references to the library's modules. A module whose package was loaded before
    stays, as does one that is the program's own, which another thread may have imported meanwhile.
    """
    library = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib is not needed yet
    first = sys.path.index(library) if library in sys.path else 1
    shadowing: dict[str, str] = {}
    for entry in sys.path[: max(first, 1)]:
        for name in _names_in(entry):
            shadowing.setdefault(name.partition(".")[0], entry)
    kept = {"torchx_cubicml", "__main__", *(name.partition(".")[0] for name in before)}
    for name in set(sys.modules) - before:
        top = name.partition(".")[0]
        if top in shadowing and top not in kept and not _is_in(shadowing[top], sys.modules.get(name)):
            sys.modules.pop(name, None)


def _is_in(entry: str, module: object) -> bool:
    file = vars(module).get("__file__") if isinstance(module, type(sys)) else None  # no code of a lazy module runs
    folder = os.path.abspath(entry or os.curdir)  # noqa: PTH100 - as above
    return isinstance(file, str) and file.startswith(os.path.join(folder, ""))  # noqa: PTH118 - likewise


def _names_in(entry: str) -> list[str]:
    try:
        return os.listdir(entry or os.curdir)  # noqa: PTH208 - only names are needed
    except OSError:  # an archive
        return []
