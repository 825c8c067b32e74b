"""Failures for want of memory: their texts, and whether one proves that its config does not fit on the device.

A device that others shared is no proof, and neither is the memory of the host for a job that computes on devices.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.records.crowding import crowded_device_share, crowded_share
from torchx_cubicml.records.standard_names import ACCUMULATION, GLOBAL_BATCH, MICRO_BATCH
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from torchx_cubicml.records.trial import Trial

CAUGHT = "caught_out_of_memory"
"""Observed fact: text of a failure for want of memory that the program caught, and after which it went on training."""

OUT_OF_MEMORY = re.compile(
    # Prose; advice how not to "run out of memory" is no failure, and neither is shared memory, a setting of the host.
    r"(?i:(?<!\brun )\bout of (?:device |host |gpu )?memory|\bha(?:s|ve) run out of memory"
    r"|\b(?:can't|(?<!with error )cannot|unable to|failed to|not enough) (?:allocate )?memory|bad_?alloc)"
    # Status codes, as of CUDA's and HIP's libraries, Level Zero, XLA and Habana.
    r"|(?:\b|_)OUT_OF_(?:\w+_)?MEMORY\b|ErrorOutOfMemory|ErrorMemoryAllocation|_ALLOC(?:ATION)?_FAILED\b"
    r"|\bRESOURCE_EXHAUSTED\b|DEVMEM Allocation failed|\bFailed to CUDA calloc|\bDataLoader worker.*signal: Killed"
)
"""Texts of failures for want of memory, for errors of general types and for what comes from another process."""

_UNITS = {"KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0, "TiB": 2.0**10}
_SIZE = r"([0-9]+(?:\.[0-9]+)?) (KiB|MiB|GiB|TiB)"
# PyTorch's own account of the device, in the text of its OutOfMemoryError.
_TOTAL = re.compile(rf"total capacity of {_SIZE}")
_FREE = re.compile(rf"of which {_SIZE} is free")
_OWN = re.compile(rf"this process has {_SIZE} memory in use")
_LEAST_SHARE = 0.1  # of the device in use by others; less is the usual background
_HOST = re.compile(
    r"\bMemoryError\b|the host (?:or the job(?:'s limit)? )?ran out of memory"
    r"|the scheduler ended the job: out of memory|\bDataLoader worker \(pid|(?i:cpuallocator|bad_?alloc|\bmmap\b)"
    r"|\b[Cc]annot allocate memory|HOST_(?:MEMORY|ALLOCATION_FAILED)\b"
)


def proves_too_large(trial: Trial) -> bool:
    """Return whether a launch proves that its config needs more memory than a device has.

    >>> from torchx_cubicml.records.trial import Trial
    >>> trial = Trial.infeasible(workload={}, config={"micro_batch_size": 16})
    >>> proves_too_large(trial)
    True
    """
    is_on_devices, is_of_host = "devices_per_node" in trial.observed, _HOST.search(trial.reason) is not None
    if trial.state is not State.OUT_OF_MEMORY or (is_on_devices and is_of_host):
        return False
    is_of_device = is_on_devices or (trial.reason and not is_of_host)  # which busy processors do not fill
    if (crowded_device_share(trial) if is_of_device else crowded_share(trial)) > 0:
        return False
    return share_of_others(trial.reason) < _LEAST_SHARE


def as_asked(trials: Iterable[Trial]) -> list[Trial]:
    """Return trials of one workload as evidence about what was asked for; see ``comparable_trials``.

    A launch that ran smaller micro batches than asked keeps no measurement, as that is of another config. If it had
    caught a failure for want of memory, it ran out of memory. Else the smaller batch counts only where another launch
    ran the batch as asked and no split over ranks or accumulation explains it: the parameter may mean another batch.

    >>> from torchx_cubicml.records.trial import Trial
    >>> whole, half = (Trial.completed(workload={}, config={"micro_batch_size": 8}, samples_per_second=9.0)
    ...                for _ in range(2))
    >>> whole = replace(whole, observed={"micro_batch_size": 8})
    >>> caught = replace(half, observed={"micro_batch_size": 4, CAUGHT: "CUDA out of memory"})
    >>> [each.state.value for each in as_asked([whole, caught])]
    ['completed', 'out_of_memory']
    """
    trials = list(trials)
    usual = {_share(trial, MICRO_BATCH) for trial in trials if CAUGHT not in trial.observed}
    return [_refuted(trial) if trial.state.ended and _ran_less(trial, usual) else trial for trial in trials]


def _ran_less(trial: Trial, usual: Collection[float]) -> bool:
    share = _share(trial, MICRO_BATCH)
    is_unusual = share not in usual if CAUGHT in trial.observed else 1 in usual and _share(trial, GLOBAL_BATCH) % 1 > 0
    return 0 < share < 1 and is_unusual


def _share(trial: Trial, fact: str) -> float:
    """Return an observed batch size over the requested micro batch size; 0.0 where either is unknown."""
    ran, asked = trial.observed.get(fact), trial.config.get(MICRO_BATCH)
    return ran / asked if isinstance(ran, int) and isinstance(asked, int) and asked > 0 else 0.0


def _refuted(trial: Trial) -> Trial:
    of_what_ran = {MICRO_BATCH, ACCUMULATION, GLOBAL_BATCH}
    observed = {name: value for name, value in trial.observed.items() if name not in of_what_ran}
    state, reason = (State.OUT_OF_MEMORY, observed[CAUGHT]) if CAUGHT in observed else (trial.state, trial.reason)
    return replace(trial, state=state, reason=str(reason), measurement=None, observed=observed)


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
