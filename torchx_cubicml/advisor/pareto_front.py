"""Frontier of two objectives: the configs that no other one surpasses in both (the Pareto front)."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.comparison import shared_batch
from torchx_cubicml.predictors.features.history import config_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config

_SURE = 1.645  # standard deviations of a difference that is surely no noise (one-sided 95 %)
_NOISE = 0.05  # run-to-run standard deviation of a logarithm where no repeat tells it


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One config with both objectives.

    Args:
        config: complete config.
        values: both objectives, in their units: geometric means of the measurements, or predicted medians.
        doubt: standard deviation of the logarithm of the true value, of both: they share the throughput.
        launches: measurements behind it; 0 for a predicted point.
        is_own: whether it is the user's own config.
        is_best: whether no other point surpasses it in both; the user's own config is listed even if one does.
        may_be_surpassed: whether another one surely surpasses it in one objective, and lies within the noise in the
            other.
        ratios: both values over those of the user's own config; ``None`` where that one is unknown.
        global_batch: global batch size that it trains with; ``None`` where it is unknown, or varied.
    """

    config: Config
    values: tuple[float, float]
    doubt: float
    launches: int
    is_own: bool = False
    is_best: bool = True
    may_be_surpassed: bool = False
    ratios: tuple[float, float] | None = None
    global_batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Frontier of one workload.

    Args:
        objectives: the two.
        points: the frontier and the user's own config, where that is known; highest in the first objective first.
    """

    objectives: tuple[str, str]
    points: tuple[FrontierPoint, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the frontier as JSON values."""
        return {
            "objectives": list(self.objectives),
            "points": [
                {**asdict(point), "values": dict(zip(self.objectives, point.values, strict=True))}
                for point in self.points
            ],
        }


def measured_points(
    trials: Iterable[Trial], objectives: tuple[str, str], *, noise: float = _NOISE
) -> list[FrontierPoint]:
    """Return a point for each config that was measured in both objectives.

    Args:
        trials: of one workload.
        objectives: the two.
        noise: standard deviation of the logarithm of throughput from run to run.
    """
    found: defaultdict[str, list[tuple[float, float, Trial]]] = defaultdict(list)
    for trial in trials:
        first, second = (trial.throughput(name) for name in objectives)
        if first is not None and second is not None:
            found[config_key(trial.config)].append((math.log(first), math.log(second), trial))
    return [_point(rows, noise) for rows in found.values()]


def _point(rows: Sequence[tuple[float, float, Trial]], noise: float) -> FrontierPoint:
    firsts, seconds, trials = zip(*rows, strict=True)
    own = fmean(each.measurement.uncertainty**2 for each in trials if each.measurement)
    return FrontierPoint(
        config=trials[0].config,
        values=(math.exp(fmean(firsts)), math.exp(fmean(seconds))),
        doubt=math.sqrt((noise**2 + own) / len(rows)),
        launches=len(rows),
        global_batch=shared_batch(trials),
    )


def frontier_of(
    points: Iterable[FrontierPoint], objectives: tuple[str, str], *, current: Config | None = None
) -> Frontier:
    """Return the frontier of some points, with the user's own config among or beside them.

    Args:
        points: one per config.
        objectives: the two.
        current: the user's own config; ``None`` where it is unknown.
    """
    points = list(points)
    own_key = config_key(current) if current is not None else None
    own = next((point for point in points if config_key(point.config) == own_key), None)
    best = _undominated(points)
    kept = [
        replace(_against(point, own), may_be_surpassed=any(_nearly_surpasses(other, point) for other in points))
        for point in best
    ]
    if own is not None and not any(point is own for point in best):
        kept.append(replace(_against(own, own), is_best=False))
    kept.sort(key=lambda point: (-point.values[0], -point.values[1], config_key(point.config)))
    return Frontier(objectives=objectives, points=tuple(kept))


def _undominated(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """Return the points that no other one reaches in both values and surpasses in one."""
    ordered = sorted(points, key=lambda point: (-point.values[0], -point.values[1]))
    best: list[FrontierPoint] = []
    for point in ordered:
        if not best or point.values[1] > best[-1].values[1] or point.values == best[-1].values:
            best.append(point)
    return best


def _nearly_surpasses(other: FrontierPoint, point: FrontierPoint) -> bool:
    """Return whether ``other`` is surely higher in one value, and not surely lower in the other one."""
    margin = _SURE * math.hypot(point.doubt, other.doubt)
    gains = [math.log(theirs / ours) for theirs, ours in zip(other.values, point.values, strict=True)]
    return max(gains) > margin and min(gains) > -margin


def _against(point: FrontierPoint, own: FrontierPoint | None) -> FrontierPoint:
    ratios = None if own is None else (point.values[0] / own.values[0], point.values[1] / own.values[1])
    return replace(point, is_own=point is own, ratios=ratios)
