"""Map of the memory of one workload: the probability to fit over the two parameters that matter most for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.parameter_axis import ParameterAxis, config_at, counted_axis, plain_axis
from torchx_cubicml.advisor.posterior import with_pinned_choices
from torchx_cubicml.predictors.threads import one_thread
from torchx_cubicml.records.memory_failure import proves_too_large
from torchx_cubicml.searchers.base import identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.advisor.study import Study
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Scalar

_MOST_FAILED = 8  # configs out of memory around which the effects on memory are compared, too
_LEAST_EFFECT = 0.05  # range of the logit from which a parameter has an effect
_LEAST_SHARE = 1e-6  # of a probability, whose logit is bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLaunch:
    """Launch at one step of each axis.

    Args:
        x: step of the first axis.
        y: step of the second axis; 0 without one.
        peak_gib: largest memory of one process; ``None`` where unknown.
        has_failed: whether it ran out of memory.
        is_like_best: whether all its other parameters are as in the best config.
    """

    x: int
    y: int
    peak_gib: float | None
    has_failed: bool
    is_like_best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMap:
    """Probability to fit in memory around one config.

    Args:
        x: axis of the parameter that matters most for memory.
        y: that of the second; ``None`` where no other matters.
        fits: probability at each step, ``[n_y, n_x]``; NaN where the config is not legal.
        launches: those of the workload that have a step on both axes.
        n_elsewhere: number of those that have none.
    """

    x: ParameterAxis
    y: ParameterAxis | None
    fits: NDArray[np.float64]
    launches: tuple[PlacedLaunch, ...]
    n_elsewhere: int


def memory_map(study: Study, *, best: Config) -> MemoryMap | None:
    """Return the map around ``best``; ``None`` where no parameter has an effect on memory, or it is not legal."""
    posterior = study.posterior
    best = with_pinned_choices(posterior, best)
    if best not in posterior.space:
        return None
    with one_thread():
        axes = _axes(posterior, best)
        if not axes:
            return None
        x, y = axes[0], axes[1] if len(axes) > 1 else None
        configs = [
            _config(posterior, best, [(x, column), *([(y, line)] if y is not None else [])])
            for line in range(len(y.steps) if y is not None else 1)
            for column in range(len(x.steps))
        ]
        fits = _fits(posterior, configs).reshape(-1, len(x.steps))
    keys = [identity(config) if config is not None else None for config in configs]
    launches, n_elsewhere = _placed(posterior, x, y, keys)
    return MemoryMap(x=x, y=y, fits=fits, launches=launches, n_elsewhere=n_elsewhere)


def _config(posterior: Posterior, base: Config, moves: Sequence[tuple[ParameterAxis, int]]) -> Config | None:
    """Return a config moved to a step of each axis; ``None`` where that is not legal."""
    return config_at(posterior.space, posterior.space.encode(base), moves)


def _fits(posterior: Posterior, configs: Sequence[Config | None]) -> NDArray[np.float64]:
    """Return the probability to fit of each config, ``[n]``; NaN where there is none."""
    found = np.full(len(configs), np.nan)
    places = [place for place, config in enumerate(configs) if config is not None]
    if places:
        found[places] = posterior.forecast([config for config in configs if config is not None]).fits
    return found


def _axes(posterior: Posterior, best: Config) -> list[ParameterAxis]:
    """Return the axes of the two parameters of most effect on the probability to fit; fewer where fewer have any.

    Effects are compared around the best config, and around configs that ran out of memory. Steps that are no numbers
    come in the order of their mean effect, those most likely to fit first.
    """
    names = dict.fromkeys(dimension.parameter for dimension in posterior.space.dimensions)
    failed = [record.config for record in posterior.outcomes.values() if record.out_of_memory][:_MOST_FAILED]
    bases = [best, *failed]
    axes = [axis for name in names if (axis := _axis(posterior, best, name)) is not None]
    if not axes:
        return []
    configs = [
        _config(posterior, base, [(axis, step)]) for axis in axes for base in bases for step in range(len(axis.steps))
    ]
    fits = _fits(posterior, configs).clip(_LEAST_SHARE, 1.0 - _LEAST_SHARE)
    logits = np.log(fits) - np.log1p(-fits)
    ends = np.cumsum([len(bases) * len(axis.steps) for axis in axes])[:-1]
    found = []
    for axis, part in zip(axes, np.split(logits, ends), strict=True):
        around = np.ma.masked_invalid(part.reshape(len(bases), -1))
        effect = float((around.max(axis=1) - around.min(axis=1)).mean())
        means = (around - around.mean(axis=1, keepdims=True)).mean(axis=0).filled(-np.inf)
        order = np.argsort(-means, kind="stable").tolist()
        found.append((effect, axis if axis.is_number else axis.reordered(order)))
    found.sort(key=lambda each: -each[0])
    return [axis for effect, axis in found[:2] if effect >= _LEAST_EFFECT]


def _axis(posterior: Posterior, best: Config, name: str) -> ParameterAxis | None:
    """Return the axis of a parameter; of a value per layer, the number of those with the choice of most memory."""
    space = posterior.space
    plain = plain_axis(space, best, name)
    if plain is not None:
        return plain
    dimension = next(each for each in space.dimensions if each.parameter == name)
    if not dimension.positions or len(dimension.choices) < 2:
        return None
    return counted_axis(space, best, name, _largest(posterior, best, name, dimension.choices))


def _largest(posterior: Posterior, best: Config, name: str, choices: Sequence[Scalar]) -> Scalar:
    """Return the choice that is least likely to fit if every entry has it; of equal ones the last."""
    axes = [counted_axis(posterior.space, best, name, choice) for choice in choices]
    configs = [_config(posterior, best, [(axis, len(axis.steps) - 1)]) if axis is not None else None for axis in axes]
    fits = np.nan_to_num(_fits(posterior, configs), nan=1.0)
    return choices[len(choices) - 1 - int(np.argmin(fits[::-1]))]


def _placed(
    posterior: Posterior, x: ParameterAxis, y: ParameterAxis | None, keys: Sequence[object]
) -> tuple[tuple[PlacedLaunch, ...], int]:
    """Return the launches on both axes, and the number of those that are not; ``keys`` are of the configs in order."""
    found, n_elsewhere = [], 0
    for trial in posterior.data.own:
        if trial.measurement is None and not proves_too_large(trial):
            continue
        config = with_pinned_choices(posterior, trial.config)
        column = x.place(config)
        line = y.place(config) if y is not None else 0
        if column is None or line is None:
            n_elsewhere += 1
            continue
        key = keys[line * len(x.steps) + column]
        found.append(_launch(trial, column, line, is_like_best=key == identity(config)))
    return tuple(found), n_elsewhere


def _launch(trial: Trial, x: int, y: int, *, is_like_best: bool) -> PlacedLaunch:
    peak = trial.measurement.peak_gib if trial.measurement is not None else None
    return PlacedLaunch(x=x, y=y, peak_gib=peak, has_failed=trial.measurement is None, is_like_best=is_like_best)
