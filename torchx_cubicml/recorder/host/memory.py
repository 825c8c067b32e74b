"""Memory use of the process on the accelerator and on the host."""

from __future__ import annotations

import resource
import sys

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
