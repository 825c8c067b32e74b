"""Optuna's samplers on simulated spaces: jobs out of memory are broken constraints."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import GPSampler, TPESampler
from optuna.trial import TrialState, create_trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config, Scalar
    from torchx_cubicml.space import Dimension, SearchSpace

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", message="`constraints_func`", category=FutureWarning)
_MOST_ILLEGAL = 200  # configs asked for in place of one that is not legal


def propose(
    sampler: str, space: SearchSpace, trials: Sequence[Trial], *, count: int, rng: np.random.Generator
) -> list[Config]:
    """Return what ``tpe`` or ``gp`` asks for after ``trials`` in the bound ``space``; the study is rebuilt from them.

    Numbers are given as their ranks, which is how they are spaced here; words and flags as categories, a value per
    layer as one category each. A job out of memory has a throughput of zero and a broken constraint; so has what is not
    legal, which costs no launch. Of several asked for at once, TPE takes those before as bad (``constant_liar``), so
    that they differ.
    """
    seed = int(rng.integers(2**31))
    made: BaseSampler
    if sampler == "tpe":
        made = TPESampler(seed=seed, constraints_func=_constraints, constant_liar=True)
    else:
        made = GPSampler(seed=seed, constraints_func=_constraints)
    study = optuna.create_study(direction="maximize", sampler=made)
    distributions = {_name(at, dimension): _distribution(dimension) for at, dimension in enumerate(space.dimensions)}
    for trial in trials:
        speed = trial.measurement.samples_per_second if trial.measurement else None
        study.add_trial(_frozen_trial(_params(space, trial.config), distributions, speed))
    asked: list[Config] = []
    for _ in range(count + _MOST_ILLEGAL):
        if len(asked) == count:
            break
        params = study.ask(distributions).params
        found = space.decode([_choice(params[_name(at, each)], each) for at, each in enumerate(space.dimensions)])
        if found is None:
            study.add_trial(_frozen_trial(params, distributions, None))
        else:
            asked.append(found)
    return asked


def _frozen_trial(
    params: dict[str, object], distributions: dict[str, BaseDistribution], speed: float | None
) -> FrozenTrial:
    return create_trial(
        state=TrialState.COMPLETE,
        params=params,
        distributions=distributions,
        value=speed or 0.0,
        system_attrs={"constraints": [1.0 if speed is None else -1.0]},
    )


def _name(at: int, dimension: Dimension) -> str:
    return f"{dimension.parameter}-{at:03d}"


def _is_number(dimension: Dimension) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in dimension.choices)


def _rungs(dimension: Dimension) -> list[Scalar]:
    return sorted(dimension.choices, key=float)


def _distribution(dimension: Dimension) -> BaseDistribution:
    if _is_number(dimension):
        return IntDistribution(0, len(dimension.choices) - 1)
    return CategoricalDistribution(range(len(dimension.choices)))


def _choice(value: object, dimension: Dimension) -> int:
    place = int(str(value))
    return dimension.choices.index(_rungs(dimension)[place]) if _is_number(dimension) else place


def _params(space: SearchSpace, config: Config) -> dict[str, object]:
    params: dict[str, object] = {}
    for at, (dimension, choice) in enumerate(zip(space.dimensions, space.encode(config), strict=True)):
        value = _rungs(dimension).index(dimension.choices[choice]) if _is_number(dimension) else choice
        params[_name(at, dimension)] = value
    return params


def _constraints(trial: FrozenTrial) -> tuple[float, ...]:
    return tuple(trial.system_attrs.get("constraints", (-1.0,)))
