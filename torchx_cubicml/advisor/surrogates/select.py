"""Selection of the surrogate for a workload by its number of measurements.

A workload with few measurements uses trees over all workloads. From a few on it uses a Gaussian process of its own,
whose prior mean comes from other workloads if that raises the evidence. Beyond some hundreds, trees are as accurate and
faster.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.surrogates.base import MAX_OWN, MAX_TRIALS, MIN_OWN, MIN_TRANSFER
from torchx_cubicml.advisor.surrogates.cross_workload import CrossWorkloadSurrogate
from torchx_cubicml.advisor.surrogates.per_workload import PerWorkloadSurrogate
from torchx_cubicml.advisor.surrogates.transfer_prior import (
    TransferPrior,
    calibrated_roofline,
    fit_cached_predictor,
    roofline_covers,
    transformer_covers,
)
from torchx_cubicml.advisor.trial_data import nearest_trials
from torchx_cubicml.predictors import CrossWorkloadFeasibility
from torchx_cubicml.predictors.gaussian_process.prior_mean import PRIOR_MEAN_PARAMETERS
from torchx_cubicml.predictors.gaussian_process.process import GaussianProcess
from torchx_cubicml.predictors.memory.per_workload import WorkloadFeasibility

if TYPE_CHECKING:
    from torchx_cubicml.advisor.surrogates.base import Surrogate, TrainingData
    from torchx_cubicml.predictors.features.history import TrainingTable


def fit_surrogate(data: TrainingData, *, rng: np.random.Generator) -> Surrogate:
    """Fit the surrogate of one workload's configs to its training data."""
    if not MIN_OWN <= sum(trial.measurement is not None for trial in data.own) <= MAX_OWN:
        return CrossWorkloadSurrogate.of(data, rng=rng)
    own = data.own_history()
    if int(np.isfinite(own.throughput).sum()) < MIN_OWN:  # measured in another unit
        return CrossWorkloadSurrogate.of(data, rng=rng)
    own_ids = {id(trial) for trial in data.own}
    of_others = (trial for trial in data.all_trials if id(trial) not in own_ids and trial.measurement is not None)
    others = data.history(nearest_trials(of_others, data.workload, count=MAX_TRIALS))
    own_feasibility = WorkloadFeasibility(order=data.order, tuned=data.tuned).fit(own)
    feasibility: WorkloadFeasibility | CrossWorkloadFeasibility = own_feasibility
    memory_pressure = own_feasibility.memory_pressure if own_feasibility.has_peaks_ else None
    make = partial(
        GaussianProcess, tuned=data.tuned, noise=data.noise, memory_pressure=memory_pressure, machine=data.machine
    )
    process = make().fit(own, rng=rng)
    prior = None
    if int(np.isfinite(others.throughput).sum()) >= MIN_TRANSFER:
        prior = TransferPrior(others, fit_cached_predictor(others, data.predictor))
    elif data.is_per_second and roofline_covers(data.own):
        prior = TransferPrior(own, calibrated_roofline(own, rng=rng))
        is_formula_better = not own.has_peaks and not process.places_.layered and transformer_covers(data.own)
        if is_formula_better:  # without peaks it tells more than outcomes, but the model of outcomes tells layers apart
            feasibility = CrossWorkloadFeasibility(order=data.order).fit(own, rng=rng)
    if prior is not None:
        relative = replace(own, throughput=own.throughput / np.exp(prior.logarithms(own.rows)))
        with_prior = make().fit(relative, rng=rng)
        process, prior = (with_prior, prior) if with_prior.evidence_ > process.evidence_ else (process, None)
    optimistic = None
    if prior is None and process.places_.layered and PRIOR_MEAN_PARAMETERS & data.tuned.keys():
        # Only a search needs this fit, so an ordinary launch does not wait for it.
        optimistic = partial(_fit, make(optimistic=True), own, seed=int(rng.integers(2**31)))
    return PerWorkloadSurrogate(
        history=own, process=process, memory=feasibility, prior=prior, fit_optimistic=optimistic
    )


def _fit(process: GaussianProcess, history: TrainingTable, *, seed: int) -> GaussianProcess:
    return process.fit(history, rng=np.random.default_rng(seed))
