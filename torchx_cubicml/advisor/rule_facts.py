"""Facts that legality rules read and no command states: attention heads and experts that launches observed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.space.constraints import is_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.space import SearchSpace

_HEADS = ("n_heads", "n_kv_heads")
_EXPERTS = "n_experts"


def with_observed_counts(space: SearchSpace, trials: Sequence[Trial]) -> SearchSpace:
    """Return the space with the counts that its rules may read, as far as the trials make them certain.

    The number of experts is certain if all trials observed it alike: the router scores all of them on each rank. A
    module of a tensor-parallel model may hold the heads of one rank alone. So their count is certain only if all trials
    observed it alike, and one of them ran without tensor parallelism or two of them with different degrees.

    Args:
        space: the search space; what a command states is kept.
        trials: of the workload.
    """
    if not space.rules:
        return space
    counts = {name: _certain_heads(name, trials) for name in _HEADS} | {_EXPERTS: _only_count(_EXPERTS, trials)}
    known = {name: count for name, count in counts.items() if count is not None}
    return replace(space, known={**known, **space.known}) if known.keys() - space.known.keys() else space


def _certain_heads(name: str, trials: Sequence[Trial]) -> int | None:
    degrees = {trial.fact("tp_degree") for trial in trials if name in trial.observed}
    is_certain = None not in degrees and (1 in degrees or len(degrees) > 1)
    return _only_count(name, trials) if is_certain else None


def _only_count(name: str, trials: Sequence[Trial]) -> int | None:
    """Return the count that all trials observed; ``None`` if they differ or none did."""
    counts = {trial.observed[name] for trial in trials if name in trial.observed}
    (count,) = counts if len(counts) == 1 else (None,)
    return count if is_count(count) else None
