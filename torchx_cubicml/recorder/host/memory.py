"""The memory that this process has taken, at most."""

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


def peak_reserved_gib() -> float | None:
    """Return the peak that the allocator has reserved on the device; ``None`` without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return float(torch.cuda.max_memory_reserved()) / _GIB or None


def allocator_retries() -> int | None:
    """Return how often the device was full and the allocator had to give back its cache; ``None`` where unknown.

    A batch that "fits" while these grow is slow: https://github.com/foundation-model-stack/fms-fsdp/issues/63
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    retries = torch.cuda.memory_stats().get("num_alloc_retries")
    return retries if isinstance(retries, int) else None
