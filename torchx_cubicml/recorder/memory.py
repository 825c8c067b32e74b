"""The largest memory that this process has taken."""

from __future__ import annotations

import resource
import sys

_GIB = 1 << 30
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes


def peak_memory_gib() -> float:
    """Return the peak of allocated device memory where CUDA is in use, else of the resident set."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated()) / _GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT / _GIB
