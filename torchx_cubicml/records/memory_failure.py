"""Out-of-memory launches as evidence: whether one proves that its config does not fit on the device.

A device that others shared is no proof, and neither is the memory of the host for a job that computes on devices.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torchx_cubicml.records.crowding import crowded_share
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial

_UNITS = {"KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0, "TiB": 2.0**10}
_SIZE = r"([0-9]+(?:\.[0-9]+)?) (KiB|MiB|GiB|TiB)"
# PyTorch's own account of the device, in the text of its OutOfMemoryError.
_TOTAL = re.compile(rf"total capacity of {_SIZE}")
_FREE = re.compile(rf"of which {_SIZE} is free")
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_LEAST_SHARE = 0.1  # of the device in use by others; less is the usual background
_HOST = re.compile(
    r"\bMemoryError\b|the host (?:or the job(?:'s limit)? )?ran out of memory"
    r"|the scheduler ended the job: out of memory"
)


def proves_too_large(trial: Trial) -> bool:
    """Return whether a launch proves that its config needs more memory than a device has.

    >>> from torchx_cubicml.records.trial import Trial
    >>> trial = Trial.infeasible(workload={}, config={"micro_batch_size": 16})
    >>> proves_too_large(trial)
    True
    """
    if trial.state is not State.OUT_OF_MEMORY or crowded_share(trial) > 0:
        return False
    if "devices_per_node" in trial.observed and _HOST.search(trial.reason):
        return False
    return share_of_others(trial.reason) < _LEAST_SHARE


def share_of_others(reason: str) -> float:
    """Return the share of a device that other processes held, by PyTorch's message; 0.0 where it does not tell.

    >>> text = "GPU 0 has a total capacity of 80.00 GiB of which 512.00 MiB is free. "
    >>> share_of_others(text + "Including non-PyTorch memory, this process has 39.50 GiB memory in use.")
    0.5
    """
    total, free, own = (_gib(pattern, reason) for pattern in (_TOTAL, _FREE, _OWN))
    if not total or free is None or own is None:
        return 0.0
    return min(max((total - free - own) / total, 0.0), 1.0)


def plain_memory_reason(reason: str) -> str:
    """Return those parts of a reason that ``proves_too_large`` reads, in fixed words; empty without any.

    >>> plain_memory_reason("/home/me/train.py: MemoryError"), plain_memory_reason("/home/me/train.py: KeyError")
    ('the host ran out of memory', '')
    """
    if _HOST.search(reason):
        return "the host ran out of memory"
    total, free, own = (_gib(pattern, reason) for pattern in (_TOTAL, _FREE, _OWN))
    if total is None or free is None or own is None:
        return ""
    return (
        f"a total capacity of {total:.2f} GiB of which {free:.2f} GiB is free; "
        f"this process has {own:.2f} GiB memory in use"
    )


def _gib(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found[1]) * _UNITS[found[2]] if found else None
