"""The surrogate of one workload, its process and its memory model chosen by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from torchx_cubicml.advisor.surrogates.base import TrainingData
from torchx_cubicml.advisor.surrogates.per_workload import PerWorkloadSurrogate
from torchx_cubicml.advisor.surrogates.select import fit_surrogate
from torchx_cubicml.predictors.memory.order import MemoryOrder
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from numpy.typing import NDArray

WORKLOAD = {"program": "a.py", "world_size": 1}


def row(batch: int) -> dict[str, object]:
    return {**WORKLOAD, "batch": batch}


ROWS = [row(1), row(2), row(4)]


@pytest.fixture(scope="module")
def surrogate() -> PerWorkloadSurrogate:
    trials = [
        Trial.completed(workload=WORKLOAD, config={"batch": batch}, tokens_per_second=100.0 * batch**0.5)
        for batch in (1, 2, 4)
    ]
    data = TrainingData(
        all_trials=trials,
        own=trials,
        objective="tokens_per_second",
        observe={},
        order=MemoryOrder.of_names(["batch"]),
        tuned={"batch": (1, 2, 4, 8)},
        noise=None,
    )
    fitted = fit_surrogate(data, rng=np.random.default_rng(0))
    assert isinstance(fitted, PerWorkloadSurrogate)
    return fitted


MEANS = (np.array([1.0, 2.0, 0.5]), np.array([0.0, 1.5, 1.0]))
COVARIANCES = (
    np.array([[0.4, 0.1, 0.2], [0.1, 0.9, 0.3], [0.2, 0.3, 0.5]]),
    np.array([[0.2, 0.0, -0.1], [0.0, 0.3, 0.1], [-0.1, 0.1, 0.6]]),
)


@dataclass
class TwoModes:
    """A process with two posteriors, one three times as probable as the other; the weights do not add up to one."""

    taught: int = 0

    def posterior_mixture(
        self, features: NDArray[np.float64]
    ) -> list[tuple[float, NDArray[np.float64], NDArray[np.float64]]]:
        assert len(features) == 3
        return [(0.6, MEANS[0], COVARIANCES[0]), (0.2, MEANS[1], COVARIANCES[1])]

    def fantasize(self, features: NDArray[np.float64]) -> Self:
        return replace(self, taught=len(features))


@dataclass
class Prior:
    """A prior mean of 10, 20 and 40 for batches of 1, 2 and 4."""

    def logarithms(self, rows: Sequence[Mapping[str, object]]) -> NDArray[np.float64]:
        return np.array([10.0 * each["batch"] for each in rows])


@pytest.mark.parametrize("prior", [None, Prior()], ids=["no prior", "prior"])
class TestMixture:
    def test_ratios_have_the_moments_of_both_modes(self, surrogate: PerWorkloadSurrogate, prior: Prior | None) -> None:
        shift = np.zeros(2) if prior is None else np.array([-30.0, -20.0])
        means, squares = np.zeros(2), np.zeros(2)
        for share, mean, covariance in zip((0.75, 0.25), MEANS, COVARIANCES, strict=True):
            for place in range(2):
                contrast = np.zeros(3)
                contrast[place], contrast[2] = 1.0, -1.0
                gain = contrast @ mean + shift[place]
                means[place] += share * gain
                squares[place] += share * (gain**2 + contrast @ covariance @ contrast)
        found = replace(surrogate, process=TwoModes(), prior=prior).ratios(ROWS[:2], ROWS[2])
        assert found.logarithm == pytest.approx(means)
        assert found.spread == pytest.approx(np.sqrt(squares - means**2))

    def test_samples_come_from_both_modes(self, surrogate: PerWorkloadSurrogate, prior: Prior | None) -> None:
        """Over 20,000 samples a mean is off by more than four standard errors once in 16,000 runs."""
        shift = np.zeros(3) if prior is None else np.array([10.0, 20.0, 40.0])
        chosen = replace(surrogate, process=TwoModes(), prior=prior)
        found = chosen.sample(ROWS, count=20_000, rng=np.random.default_rng(0))
        assert found.shape == (20_000, 3)
        mean = 0.75 * MEANS[0] + 0.25 * MEANS[1] + shift
        assert found.mean(axis=0) == pytest.approx(mean, abs=4 * 20_000**-0.5)


@dataclass
@dataclass(frozen=True)
class Chances:
    """A memory model with a chance for each batch."""

    feared: tuple[Mapping[str, object], ...] = ()

    def fantasize_failures(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, object]]) -> Chances:
        assert len(features) == len(rows)
        return Chances((*self.feared, *rows))

    def probability(self, features: NDArray[np.float64], rows: Sequence[Mapping[str, object]]) -> NDArray[np.float64]:
        del features
        return np.array([1.0 / each["batch"] for each in rows])


def test_what_may_well_not_fit_becomes_a_fantasy_failure(surrogate: PerWorkloadSurrogate) -> None:
    after = replace(surrogate, memory=Chances(), process=TwoModes()).fantasize(ROWS)
    assert after.memory.feared == tuple(ROWS[1:])
    assert after.process.taught == 3


def test_optimism_is_not_heaped_up(surrogate: PerWorkloadSurrogate) -> None:
    optimistic = replace(surrogate, fit_optimistic=TwoModes).optimistic()
    assert isinstance(optimistic.process, TwoModes)
    assert optimistic.optimistic() is optimistic


def test_forecasts_include_prior_and_memory(surrogate: PerWorkloadSurrogate) -> None:
    alone = surrogate.forecast(ROWS)
    both = replace(surrogate, prior=Prior(), memory=Chances()).forecast(ROWS)
    assert both.logarithm - alone.logarithm == pytest.approx([10.0, 20.0, 40.0])
    assert both.fits.tolist() == [1.0, 0.5, 0.25]


def test_a_sampled_function_scatters_where_little_is_known(surrogate: PerWorkloadSurrogate) -> None:
    """Over 60 draws a standard deviation is off by more than a third once in 2,000 runs."""
    rows = [row(2), row(8)]
    known, unknown = surrogate.forecast(rows).spread
    draws = [
        surrogate.sample_function(rows, rng=np.random.default_rng(seed)).forecast(rows).logarithm for seed in range(60)
    ]
    deviations = np.std(draws, axis=0)
    assert known < 0.5 * unknown
    assert deviations[1] == pytest.approx(unknown, rel=1 / 3)
    assert deviations[0] < 0.6 * deviations[1]
    again = surrogate.sample_function(rows, rng=np.random.default_rng(7)).forecast(rows).logarithm
    assert (again == draws[7]).all()
