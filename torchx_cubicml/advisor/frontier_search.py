"""Search of a frontier: measured configs of a workload beside the best predicted ones that were never launched.

Each objective is predicted by a study of its own. Several searches go by weighted geometric means of the two, each with
another weight, and so find several trade-offs (random scalarisation, as in ParEGO: Knowles 2006, doi
10.1109/TEVC.2005.851274; here the sum of the logarithms, as a throughput and its cost are ratios).
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.acquisition import weighted_by_fit
from torchx_cubicml.advisor.pareto_front import Frontier, FrontierPoint, frontier_of, measured_points
from torchx_cubicml.advisor.study import Study
from torchx_cubicml.history.same_training import batch_factors
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.searchers import searcher_named
from torchx_cubicml.searchers.base import has_at_most, identity

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.history.history import History
    from torchx_cubicml.records.values import Config

_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the second objective, a search each
_LIKELY = 0.5  # least probability to fit of a predicted point
_MAX_LISTED = 2_000  # legal configs up to which a space is listed, where a user waits
_WARM_STARTS = 20  # measured configs that start the search, half of them the best of each objective


def predicted_frontier(history: History, *, seed: int) -> Frontier:
    """Return the frontier of measured configs and of untried ones at their predicted medians.

    Args:
        history: comparable, in the terms of its space, which has two objectives.
        seed: of all randomness.

    Raises:
        SpaceError: the space cannot be bound to the workload.
    """
    space = history.space
    objectives = (space.objective, space.second_objective)
    named = (replace(history, space=replace(space, objective=objective)) for objective in objectives)
    first, second = (Study.fitted(each, seed=seed) for each in named)
    points = measured_points(history.own, objectives, noise=first.posterior.noise)
    predicted = _predicted(first, second, _untried(first, second)) if points else []
    # Configs tell the batch of untried ones if they told it of all that ran, up to the same factor.
    factors = partial(batch_factors, history.workload)
    scales = {each.global_batch / made for each in points if each.global_batch and (made := factors(each.config))}
    scale = max(scales) if len(scales) == 1 else 0
    predicted = [replace(each, global_batch=round(scale * (factors(each.config) or 0)) or None) for each in predicted]
    return frontier_of([*points, *predicted], objectives, current=first.current)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compromise:
    """Score of untried configs: the weighted mean of two predicted logarithms, and the probability to fit."""

    posteriors: tuple[Posterior, Posterior]
    weight: float

    def __call__(self, configs: Sequence[Config]) -> NDArray[np.float64]:
        """Return the score of each config, ``[n]``; ``-inf`` for one that both objectives know; a ``Score``."""
        first, second = (posterior.forecast(configs) for posterior in self.posteriors)
        logarithm = (1.0 - self.weight) * first.logarithm + self.weight * second.logarithm
        known = [all(posterior.is_decided(config) for posterior in self.posteriors) for config in configs]
        return np.where(known, -np.inf, weighted_by_fit(logarithm, first.fits))


def _untried(first: Study, second: Study) -> list[Config]:
    """Return the untried config of the highest score at each weight."""
    posteriors = first.posterior, second.posterior
    space, rng = first.posterior.space, deepcopy(first.rng)
    fastest = [config for each in posteriors for config in each.fastest(_WARM_STARTS // 2) if config in space]
    name = "exhaustive" if has_at_most(space, _MAX_LISTED) else "evolution"
    found: dict[Hashable, Config] = {}
    with one_thread():
        for weight in _WEIGHTS:
            score = _Compromise(posteriors=posteriors, weight=weight)
            for config in searcher_named(name, start=tuple(fastest)).search(space, score, count=1, rng=rng):
                found.setdefault(identity(config), config)
    return list(found.values())


def _predicted(first: Study, second: Study, configs: Sequence[Config]) -> list[FrontierPoint]:
    if not configs:
        return []
    forecasts = [study.posterior.forecast(configs) for study in (first, second)]
    medians = [forecast.intervals() for forecast in forecasts]
    points = []
    for index, config in enumerate(configs):
        values = [each[index] for each in medians]
        if all(values) and forecasts[0].fits[index] >= _LIKELY:
            points.append(
                FrontierPoint(
                    config=config,
                    values=(values[0][1], values[1][1]),  # type: ignore[index]  # neither is None
                    doubt=float(forecasts[0].spread[index]),
                    launches=0,
                )
            )
    return points
