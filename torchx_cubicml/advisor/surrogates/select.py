"""Who is asked what to expect of the configs of a workload.

Trees over everything ever launched serve a workload that was hardly measured; from a few measurements on a Gaussian
process of its own does, whose mean is what others teach if that makes those measurements likelier. Beyond some hundreds
trees know it as well, in less time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.surrogates.base import FEWEST_ELSEWHERE, FEWEST_OWN, MOST_LEARNED
from torchx_cubicml.advisor.surrogates.cross_workload import CrossWorkloadSurrogate
from torchx_cubicml.advisor.surrogates.per_workload import PerWorkloadSurrogate
from torchx_cubicml.advisor.surrogates.transfer_prior import TransferPrior, calibrated, cover, taught_by
from torchx_cubicml.advisor.trial_data import nearest
from torchx_cubicml.predictors import CrossWorkloadFeasibility
from torchx_cubicml.predictors.gaussian_process.prior_mean import USUAL
from torchx_cubicml.predictors.gaussian_process.process import GaussianProcess
from torchx_cubicml.predictors.memory.per_workload import WorkloadFeasibility

if TYPE_CHECKING:
    from torchx_cubicml.advisor.surrogates.base import Surrogate, TrainingData

_MOST_OWN = 300  # measurements of a workload, beyond which trees know it as well as its own process, in less time


def learn(lesson: TrainingData, *, rng: np.random.Generator) -> Surrogate:
    """Return what the trials teach of one workload's configs."""
    if not FEWEST_OWN <= sum(trial.measurement is not None for trial in lesson.own) <= _MOST_OWN:
        return CrossWorkloadSurrogate.of(lesson, rng=rng)
    own = lesson.own_history()
    if int(np.isfinite(own.throughput).sum()) < FEWEST_OWN:  # measured, in another unit
        return CrossWorkloadSurrogate.of(lesson, rng=rng)
    known = {id(trial) for trial in lesson.own}
    strange = (trial for trial in lesson.everything if id(trial) not in known and trial.measurement is not None)
    others = lesson.history(nearest(strange, lesson.workload, count=MOST_LEARNED))
    wall = WorkloadFeasibility(compare=lesson.compare, tuned=lesson.tuned).fit(own)
    feasibility: WorkloadFeasibility | CrossWorkloadFeasibility = wall
    memory_pressure = wall.memory_pressure if wall.knows_peaks_ else None
    make = partial(GaussianProcess, tuned=lesson.tuned, noise=lesson.noise, memory_pressure=memory_pressure)
    process = make().fit(own, rng=rng)
    elsewhere = None
    if int(np.isfinite(others.throughput).sum()) >= FEWEST_ELSEWHERE:
        elsewhere = TransferPrior(others, taught_by(others, lesson.predictor))
    elif cover(lesson.own):
        elsewhere = TransferPrior(own, calibrated(own, rng=rng))
        feasibility = CrossWorkloadFeasibility(compare=lesson.compare).fit(own, rng=rng)
    if elsewhere is not None:
        scaled = replace(own, throughput=own.throughput / np.exp(elsewhere.logarithms(own.rows)))
        guided = make().fit(scaled, rng=rng)
        process, elsewhere = (guided, elsewhere) if guided.evidence_ > process.evidence_ else (process, None)
    hopeful = None
    if elsewhere is None and USUAL & lesson.tuned.keys():
        hopeful = make(hopeful=True).fit(own, rng=rng)
    return PerWorkloadSurrogate(history=own, process=process, memory=feasibility, elsewhere=elsewhere, hopeful=hopeful)
