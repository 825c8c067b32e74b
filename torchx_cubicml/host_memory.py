"""Memory of this host that a process may use: that of the machine, within the limits of its control groups."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_GIB = float(1 << 30)
_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def host_memory_gib(cgroup: Path = _OWN, root: Path = _ROOT) -> dict[str, float]:
    """Return the memory of this host in GiB, under ``host``, and the least limit of a control group, under ``limit``.

    What is not known is left out, and so is a limit that is none.

    Args:
        cgroup: the kernel's list of this process's control groups.
        root: mount point of control groups.
    """
    try:
        host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return {}
    texts = (_read(folder / name) for folders, name, _ in _memory_groups(cgroup, root) for folder in folders)
    limits = [int(text) for text in texts if text.strip().isdecimal()]  # without a limit, a word or a huge number
    least = min(limits, default=host)
    return {"host": host / _GIB, **({"limit": least / _GIB} if least < host else {})}


def usable_gib_per_process(processes: int) -> float | None:
    """Return the memory of this host in GiB for each of ``processes`` that share it; ``None`` where it is not known."""
    known = host_memory_gib()
    return min(known.values()) / processes if known else None


def count_oom_kills(cgroup: Path = _OWN, root: Path = _ROOT) -> int | None:
    """Return the number of out-of-memory kills in this control group and its descendants; ``None`` if unknown.

    Args:
        cgroup: see ``host_memory_gib``.
        root: likewise.
    """
    files = [each / name for folders, _, name in _memory_groups(cgroup, root) for each in (folders[0], folders[-1])]
    found = (_KILLS.search(_read(file)) for file in files)
    return next((int(each[1]) for each in found if each is not None), None)


def _memory_groups(cgroup: Path, root: Path) -> Iterator[tuple[list[Path], str, str]]:
    """Yield the folders of each of this process's control groups, innermost first, and the files of limit and kills.

    In a container the group is mounted at the root, whatever its path outside.
    """
    for _, controllers, path in (line.split(":", 2) for line in _read(cgroup).splitlines() if line.count(":") > 1):
        first = "memory" in controllers.split(",")
        if first or not controllers:
            top = root / "memory" if first else root
            names = ("memory.limit_in_bytes", "memory.oom_control") if first else ("memory.max", "memory.events")
            within = top / path.lstrip("/")
            yield ([within, *(each for each in within.parents if each.is_relative_to(top))], *names)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
