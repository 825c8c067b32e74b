"""The surrogate across workloads: which predictors it asks, and how a sample of it is drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from torchx_cubicml.advisor.surrogates.base import TrainingData
from torchx_cubicml.advisor.surrogates.cross_workload import CrossWorkloadSurrogate
from torchx_cubicml.advisor.surrogates.select import fit_surrogate
from torchx_cubicml.predictors.boosting import Boosting
from torchx_cubicml.predictors.greybox import Greybox
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.records.trial import Trial

WORKLOAD = {"program": "new.py", "world_size": 2}


def surrogate_of(own: list[Trial], **given: object) -> CrossWorkloadSurrogate:
    others = [
        Trial.completed(
            workload={"program": "b.py", "world_size": 1}, config={"batch": batch}, tokens_per_second=9.0 * batch
        )
        for batch in (1, 2, 4) * 3
    ]
    data = TrainingData(
        all_trials=[*own, *others],
        own=own,
        objective="tokens_per_second",
        observe={},
        order=MemoryOrder.of_names(["program", "batch"]),
        tuned={"batch": (1, 2, 4)},
        noise=None,
        workload=WORKLOAD,
        **given,
    )
    fitted = fit_surrogate(data, rng=np.random.default_rng(0))
    assert isinstance(fitted, CrossWorkloadSurrogate)
    return fitted


@pytest.mark.parametrize(("n_own", "asked"), [(2, ("boosting", "roofline")), (3, ()), (4, ())])
def test_others_are_asked_below_three_measurements(n_own: int, asked: tuple[str, ...]) -> None:
    own = [
        Trial.completed(workload=WORKLOAD, config={"batch": batch}, samples_per_second=3.0) for batch in range(n_own)
    ]
    assert surrogate_of(own).others == asked  # measured in another unit, so that there is no process


def test_members_of_the_ensemble_are_three_methods() -> None:
    first, trees, formulas = surrogate_of([]).ensemble(one=False)
    assert isinstance(first.predictor, Greybox)
    assert isinstance(trees.predictor, Boosting)
    assert isinstance(formulas.predictor, Greybox)
    assert formulas.predictor.roofline_ is first.predictor.roofline_  # calibrated once


def test_a_chosen_predictor_is_joined_by_the_other_methods() -> None:
    chosen = surrogate_of([], predictor="boosting")
    assert chosen.others == ("greybox", "roofline")
    first, greybox, formulas = chosen.ensemble(one=False)
    assert isinstance(first.predictor, Boosting)
    assert isinstance(greybox.predictor, Greybox)
    assert isinstance(formulas.predictor, Greybox)
    assert (greybox.predictor.n_trees > 0, formulas.predictor.n_trees) == (True, 0)


def test_samples_seldom_share_a_seed() -> None:
    """Of a hundred, two are alike once in 400,000 runs."""
    surrogate = surrogate_of([])
    seeds = {surrogate.sample_function([], rng=np.random.default_rng(place)).seed for place in range(100)}
    assert len(seeds) == 100


def test_the_ensemble_is_not_averaged_for_one_config() -> None:
    surrogate = surrogate_of([])
    assert not surrogate.agreeing  # no other workload had two processes
    assert surrogate.ensemble(one=True) == [surrogate]
    (mean,) = replace(surrogate, agreeing=True).ensemble(one=True)
    assert mean.predictor.first is surrogate.predictor
    assert [type(each) for each in mean.predictor.others] == [Boosting, Greybox]
