"""Which trials are of a workload; known to launches that load no tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torchx_cubicml.trial import Trial, Value, Workload


def matches(trial: Trial, workload: Workload) -> bool:
    """Return whether every fact of ``workload`` equals what the trial knows under that name."""
    declared = trial.workload
    for name, value in workload.items():
        known = declared[name] if name in declared else trial.fact(name)
        if known is None or (known is not value and value_key(known) != value_key(value)):
            return False
    return True


def value_key(value: Value) -> Hashable:
    """Return what two values share exactly when they are equal and of one kind: ``True`` is not 1, and 4.0 is 4."""
    if isinstance(value, tuple):
        return tuple(map(value_key, value))
    return value if isinstance(value, str) else (isinstance(value, bool), value)
