"""Whether the host has killed a process for want of memory: what the kernel counts for this process's control group."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def count_oom_kills(cgroup: Path = Path("/proc/self/cgroup"), root: Path = _ROOT) -> int | None:
    """Return how many processes of this control group, and of those within it, were killed; ``None`` where unknown.

    Args:
        cgroup: the kernel's list of this process's control groups.
        root: where control groups are mounted.
    """
    try:
        lines = [line.split(":", 2) for line in cgroup.read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in (line for line in lines if len(line) == 3):
        within = path.lstrip("/")
        if "memory" in controllers.split(","):
            # In a container the group's own mount stands at the root, whatever its path outside.
            files = [root / "memory" / within / "memory.oom_control", root / "memory" / "memory.oom_control"]
        elif not controllers:
            files = [root / within / "memory.events", root / "memory.events"]
        else:
            continue
        count = next((count for count in map(_read, files) if count is not None), None)
        if count is not None:
            return count
    return None


def _read(file: Path) -> int | None:
    try:
        found = _COUNT.search(file.read_text())
    except OSError:
        return None
    return int(found[1]) if found is not None else None
