"""Responses of throughput to the parameters: to each alone, and to two together, all others as in one config."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.parameter_axis import config_at, counted_axis, plain_axis
from torchx_cubicml.advisor.posterior import with_pinned_choices
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.advisor.parameter_axis import ParameterAxis
    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.advisor.study import Study
    from torchx_cubicml.records.values import Config

_LEAST_EFFECT = math.log(1.01)  # range of the logarithm of throughput from which a parameter tells


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsePoint:
    """Throughput at one place.

    Args:
        place: step of each axis.
        predicted: median throughput of the posterior, in the unit of the objective.
        low: lower end of its 80 % interval.
        high: upper end.
        measured: throughputs measured there, the lowest first.
        probability_to_fit: in memory, 0..1.
    """

    place: tuple[int, ...]
    predicted: float
    low: float
    high: float
    measured: tuple[float, ...]
    probability_to_fit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """Response to one parameter, or to two together.

    Args:
        axes: one or two.
        points: at the legal places; those where nothing is known are left out.
    """

    axes: tuple[ParameterAxis, ...]
    points: tuple[ResponsePoint, ...]

    @property
    def effect(self) -> float:
        """Range of the logarithm of the predicted throughput."""
        logarithms = [math.log(point.predicted) for point in self.points]
        return max(logarithms, default=0.0) - min(logarithms, default=0.0)


def responses(study: Study, *, best: Config) -> tuple[Response, ...]:
    """Return the response to each parameter of an effect of 1 % or more around ``best``, the largest first.

    The response to a value per layer or table is that to the number of entries with one choice: the one of most effect.
    Empty where ``best`` is not legal.
    """
    posterior = study.posterior
    best = with_pinned_choices(posterior, best)
    if best not in posterior.space:
        return ()
    found: dict[str, list[Response]] = {}
    with one_thread():
        for name, choices in {each.parameter: each.choices for each in posterior.space.dimensions}.items():
            plain = plain_axis(posterior.space, best, name)
            counted = (counted_axis(posterior.space, best, name, choice) for choice in choices)
            axes = [plain] if plain is not None else [axis for axis in counted if axis is not None]
            found[name] = [_response(posterior, best, (axis,)) for axis in axes]
    strongest = [max(each, key=lambda response: response.effect) for each in found.values() if each]
    telling = [response for response in strongest if response.effect >= _LEAST_EFFECT]
    return tuple(sorted(telling, key=lambda response: -response.effect))


def joint_response(study: Study, *, best: Config, axes: tuple[ParameterAxis, ParameterAxis]) -> Response:
    """Return the response to two parameters together around ``best``.

    Args:
        study: fitted to the trials.
        best: a legal config.
        axes: of ``responses`` around it.
    """
    with one_thread():
        return _response(study.posterior, with_pinned_choices(study.posterior, best), axes)


def _response(posterior: Posterior, best: Config, axes: tuple[ParameterAxis, ...]) -> Response:
    home = posterior.space.encode(best)
    places = list(np.ndindex(*(len(axis.steps) for axis in axes)))
    found = {place: config_at(posterior.space, home, zip(axes, place, strict=True)) for place in places}
    configs = {place: config for place, config in found.items() if config is not None}
    points = _points(posterior, list(configs), list(configs.values()))
    return Response(axes=axes, points=tuple(points))


def _points(posterior: Posterior, places: Sequence[tuple[int, ...]], configs: Sequence[Config]) -> list[ResponsePoint]:
    estimates = posterior.estimates(configs)
    fits = np.broadcast_to(estimates.fits, (len(configs),)).tolist()
    found = []
    for place, config, interval, probability in zip(places, configs, estimates.intervals(), fits, strict=True):
        record = posterior.outcomes.get(identity(config))
        if interval is None:
            continue
        low, predicted, high = interval
        found.append(
            ResponsePoint(
                place=place,
                predicted=predicted,
                low=low,
                high=high,
                measured=record.measured if record is not None else (),
                probability_to_fit=0.0 if record is not None and record.out_of_memory else probability,
            )
        )
    return found
