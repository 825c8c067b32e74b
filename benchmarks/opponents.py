"""Optuna's samplers on simulated spaces: told of jobs out of memory as broken constraints."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import GPSampler, TPESampler
from optuna.trial import TrialState, create_trial
from simulator import BATCH_SIZES, RESERVES, STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

    from torchx_cubicml.trial import Config, Trial

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def propose(
    sampler: str, trials: Sequence[Trial], *, n_layers: int, count: int, rng: np.random.Generator
) -> list[Config]:
    """Return what ``tpe`` or ``gp`` asks for after ``trials``; the study is rebuilt from them.

    A job out of memory is told with a throughput of zero and a broken constraint. Of several asked for at once, TPE
    takes those before as bad (``constant_liar``), so that they differ.
    """
    seed = int(rng.integers(2**31))
    made: BaseSampler
    if sampler == "tpe":
        made = TPESampler(seed=seed, constraints_func=_constraints, constant_liar=True)
    else:
        made = GPSampler(seed=seed, constraints_func=_constraints)
    study = optuna.create_study(direction="maximize", sampler=made)
    distributions = _distributions(n_layers)
    for trial in trials:
        study.add_trial(_told(trial, distributions))
    return [_config(study.ask(distributions).params, n_layers) for _ in range(count)]


def _told(trial: Trial, distributions: dict[str, BaseDistribution]) -> FrozenTrial:
    speed = trial.measurement.samples_per_second if trial.measurement else None
    strategies, reserve = trial.config["sharding_strategy"], trial.config["reserved_share"]
    params: dict[str, object] = {f"layer{at}": name for at, name in enumerate(strategies)}
    params |= {"batch": trial.config["micro_batch_size"], "reserve": RESERVES.index(reserve)}
    return create_trial(
        state=TrialState.COMPLETE,
        params=params,
        distributions=distributions,
        value=speed or 0.0,
        system_attrs={"constraints": [1.0 if speed is None else -1.0]},
    )


def _distributions(n_layers: int) -> dict[str, BaseDistribution]:
    layers = {f"layer{at}": CategoricalDistribution(STRATEGIES) for at in range(n_layers)}
    stride = BATCH_SIZES[1] - BATCH_SIZES[0]
    return {
        **layers,
        "batch": IntDistribution(BATCH_SIZES[0], BATCH_SIZES[-1], step=stride),
        "reserve": IntDistribution(0, len(RESERVES) - 1),
    }


def _config(params: dict[str, object], n_layers: int) -> Config:
    return {
        "sharding_strategy": tuple(str(params[f"layer{at}"]) for at in range(n_layers)),
        "micro_batch_size": int(str(params["batch"])),
        "reserved_share": RESERVES[int(str(params["reserve"]))],
    }


def _constraints(trial: FrozenTrial) -> tuple[float, ...]:
    return tuple(trial.system_attrs.get("constraints", (-1.0,)))
