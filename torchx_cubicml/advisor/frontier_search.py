"""Search of a frontier: measured configs of a workload beside the best predicted ones that were never launched."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.batch import ProposalMethod, searched
from torchx_cubicml.advisor.pareto_front import Frontier, FrontierPoint, frontier_of, measured_points
from torchx_cubicml.advisor.study import Study
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.records.mixture import mixed
from torchx_cubicml.records.workload import is_same_workload
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torchx_cubicml.records.trial import Config, Trial, Workload
    from torchx_cubicml.space import SearchSpace

_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the second objective, a search each
_LIKELY = 0.5  # least probability to fit of a predicted point


def predicted_frontier(
    space: SearchSpace, *, workload: Workload, current: Config, trials: Sequence[Trial], seed: int, predictor: str
) -> Frontier:
    """Return the frontier of measured configs and of untried ones at their predicted medians.

    Args:
        space: with two objectives.
        workload: facts, with ``world_size`` unless it is tuned.
        current: the user's own config.
        trials: of any workload.
        seed: of all randomness.
        predictor: see ``suggest``.

    Raises:
        SpaceError: the space cannot be bound to the workload.
    """
    objectives = (space.objective, space.second_objective)

    def study_of(objective: str) -> Study:
        named = replace(space, objective=objective)
        return Study.of(named, workload=workload, current=current, trials=trials, seed=seed, predictor=predictor)

    studies = [study_of(mixed(*objectives, weight)) for weight in _WEIGHTS]
    first, second = studies[0], studies[-1]
    own = [trial for trial in trials if is_same_workload(trial, first.posterior.data.workload)]
    points = measured_points(own, objectives, noise=first.posterior.noise)
    if points:
        points += _predicted(first, second, _untried(studies))
    return frontier_of(points, objectives, current=first.current)


def _untried(studies: Sequence[Study]) -> list[Config]:
    """Return the untried config of the highest predicted mean of each study."""
    method = ProposalMethod(acquisition="mean")
    found: dict[Hashable, Config] = {}
    with one_thread():
        for study in studies:
            for config in searched(study.posterior, (), method, count=1, rng=deepcopy(study.rng)):
                found.setdefault(identity(config), config)
    return list(found.values())


def _predicted(first: Study, second: Study, configs: Sequence[Config]) -> list[FrontierPoint]:
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
