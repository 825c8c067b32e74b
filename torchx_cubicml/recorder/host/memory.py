"""Memory use of the process on the accelerator and on the host, and out-of-memory kills."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

_GIB = 1 << 30
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes


def peak_memory_gib() -> float:
    """Return the peak of allocated device memory if CUDA is in use, else of the resident set."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated()) / _GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT / _GIB


def peak_reserved_gib() -> float | None:
    """Return the peak of device memory reserved by the caching allocator; ``None`` without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return float(torch.cuda.max_memory_reserved()) / _GIB or None


def allocator_retries() -> int | None:
    """Return the number of times that a full device made the allocator flush its cache; ``None`` if unknown.

    A batch that "fits" while this number grows is slow: https://github.com/foundation-model-stack/fms-fsdp/issues/63
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    retries = torch.cuda.memory_stats().get("num_alloc_retries")
    return retries if isinstance(retries, int) else None


_ROOT = Path("/sys/fs/cgroup")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def count_oom_kills(cgroup: Path = Path("/proc/self/cgroup"), root: Path = _ROOT) -> int | None:
    """Return the number of out-of-memory kills in this control group and its descendants; ``None`` if unknown.

    Args:
        cgroup: the kernel's list of this process's control groups.
        root: mount point of control groups.
    """
    try:
        lines = [line.split(":", 2) for line in cgroup.read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in (line for line in lines if len(line) == 3):
        within = path.lstrip("/")
        if "memory" in controllers.split(","):
            # In a container the group is mounted at the root, whatever its path outside.
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
