"""Facts that legality rules read and no command states: the attention heads that launches of the workload observed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.space.constraints import is_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.space import SearchSpace

_HEADS = ("n_heads", "n_kv_heads")


def with_observed_heads(space: SearchSpace, trials: Sequence[Trial]) -> SearchSpace:
    """Return the space with the counts of heads that its rules may read, as far as the trials make them certain.

    A module of a tensor-parallel model may hold the heads of one rank alone. So a count is certain only if all trials
    observed it alike, and one of them ran without tensor parallelism or two of them with different degrees.

    Args:
        space: the search space; what a command states is kept.
        trials: of the workload.
    """
    if not space.rules:
        return space
    known = {name: count for name in _HEADS if (count := _certain_count(name, trials)) is not None}
    return replace(space, known={**known, **space.known}) if known.keys() - space.known.keys() else space


def _certain_count(name: str, trials: Sequence[Trial]) -> int | None:
    counts = {trial.observed[name] for trial in trials if name in trial.observed}
    degrees = {trial.fact("tp_degree") for trial in trials if name in trial.observed}
    (count,) = counts if len(counts) == 1 else (None,)
    is_certain = None not in degrees and (1 in degrees or len(degrees) > 1)
    return count if is_count(count) and is_certain else None
