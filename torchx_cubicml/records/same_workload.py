"""Which trials are of a workload; known to launches that load no tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torchx_cubicml.records.trial import Trial, Value, Workload


def matches(trial: Trial, workload: Workload) -> bool:
    """Return whether every fact of ``workload`` equals what the trial knows under that name."""
    declared = trial.workload
    for name, value in workload.items():
        known = declared[name] if name in declared else trial.fact(name)
        if known is None or not _alike(known, value):
            return False
    return True


def _alike(known: Value, value: Value) -> bool:
    """Return whether ``value_key`` is the same of both, without it where that can be told sooner."""
    if known is value or known != value:
        return known is value
    return not (_holds_bool(known) or _holds_bool(value)) or value_key(known) == value_key(value)


def _holds_bool(value: Value) -> bool:
    return bool in map(type, value) if isinstance(value, tuple) else isinstance(value, bool)


def value_key(value: Value) -> Hashable:
    """Return what two values share exactly when they are equal and of one kind: ``True`` is not 1, and 4.0 is 4."""
    if isinstance(value, tuple):
        return tuple(map(value_key, value))
    return value if isinstance(value, str) else (isinstance(value, bool), value)
