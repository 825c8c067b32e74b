"""The batch that ``suggest`` picks from listed jobs of a workload that is new to it, by the product's own functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.acquisition import weighted_by_fit
from torchx_cubicml.advisor.batch import diverse_subset
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config

# What is chosen freely; the data-parallel degree and the accumulation follow.
CHOSEN = ("micro_batch_size", "pp_degree", "tp_degree", "zero_stage")


def batch(
    jobs: Sequence[Trial], ensemble: Sequence[NDArray[np.float64]], fits: NDArray[np.float64], *, count: int
) -> NDArray[np.intp]:
    """Return which ``count`` of ``n`` jobs are launched, the first first.

    Args:
        jobs: the candidates.
        ensemble: throughput by each predictor that takes turns, ``[n]`` each.
        fits: probability to run, ``[n]``.
        count: how many at most.
    """
    configs = [{name: job.config[name] for name in CHOSEN} for job in jobs]
    space = SearchSpace(parameters=tuple(Parameter(name=name, choices=_choices(configs, name)) for name in CHOSEN))
    places = {id(config): place for place, config in enumerate(configs)}
    scores = weighted_by_fit(np.log(np.stack(ensemble)), fits)
    picked = diverse_subset(space, configs, scores, count=count, taken=())
    return np.array([places[id(config)] for config in picked], dtype=np.intp)


def _choices(configs: Sequence[Config], name: str) -> tuple[int, ...]:
    return tuple(sorted({int(str(config[name])) for config in configs}))
