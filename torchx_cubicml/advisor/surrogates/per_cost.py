"""Surrogate of an objective per cost: another surrogate's throughput over the known cost of each config.

The cost follows from the config alone, so only the throughput is learned: log(throughput / cost) is the prediction of
log(throughput) less a known number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, cast

import numpy as np

from torchx_cubicml.advisor.surrogates.base import JointSurrogate
from torchx_cubicml.predictors.features.rows import choices_of
from torchx_cubicml.records.objective_units import cost_per_second, rate_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.surrogates.base import Forecaster, Surrogate
    from torchx_cubicml.predictors import Prediction
    from torchx_cubicml.records.device_prices import Prices
    from torchx_cubicml.records.values import Value


def per_cost(surrogate: Surrogate, *, objective: str, prices: Prices | None) -> Surrogate:
    """Return the surrogate of ``objective``, from one of throughput; that one itself if nothing is divided."""
    if rate_of(objective) == objective:
        return surrogate
    cost = LogCost(objective=objective, prices=prices)
    if isinstance(surrogate, JointSurrogate):
        return JointSurrogatePerCost(source=surrogate, cost=cost)
    return SurrogatePerCost(source=surrogate, cost=cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCost:
    """Logarithm of what a config costs in a second.

    Args:
        objective: one of ``PER_COST``.
        prices: of a device hour; ``None`` where the objective needs none.
    """

    objective: str
    prices: Prices | None

    def of(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.float64]:
        """Return the logarithms of the costs of ``rows``, ``[n]``; NaN where the devices or their price are unknown."""
        devices, sizes = choices_of(rows, "world_size")
        values, kinds = choices_of(rows, self.prices.name) if self.prices is not None else ([None], None)
        prices = [self.prices.price(value) if self.prices is not None else None for value in values]
        table = np.array([[self._logarithm(count, price) for price in prices] for count in devices])
        found: NDArray[np.float64] = table[sizes[:, 0], 0 if kinds is None else kinds[:, 0]]
        return found

    def _logarithm(self, devices: Value | None, price: float | None) -> float:
        cost = cost_per_second(self.objective, devices=devices, price=price)
        return math.nan if cost is None else math.log(cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecasterPerCost:
    """Forecaster of an objective per cost.

    Args:
        source: forecaster of throughput.
        cost: of each config.
    """

    source: Forecaster
    cost: LogCost

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Prediction:
        """Return the forecast of ``rows``; see ``Forecaster``."""
        return _less(self.source.forecast(rows), self.cost.of(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class SurrogatePerCost:
    """Surrogate of an objective per cost.

    Args:
        source: surrogate of throughput.
        cost: of each config.
    """

    source: Surrogate
    cost: LogCost

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Prediction:
        """Return the forecast of ``rows``; see ``Forecaster``."""
        return _less(self.source.forecast(rows), self.cost.of(rows))

    def outliers(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.bool_]:
        """Return whether rows are outliers, ``[n]``; see ``Surrogate``."""
        return self.source.outliers(rows)

    def ensemble(self, *, one: bool) -> list[Surrogate]:
        """Return the surrogates of the source's ensemble, each per cost; see ``Surrogate``."""
        prices, objective = self.cost.prices, self.cost.objective
        return [per_cost(each, objective=objective, prices=prices) for each in self.source.ensemble(one=one)]

    def fantasize(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return this surrogate with fantasy observations at ``rows``; see ``Surrogate``."""
        return replace(self, source=self.source.fantasize(rows))

    def optimistic(self) -> Self:
        """Return this surrogate with an optimistic prior mean; see ``Surrogate``."""
        return replace(self, source=self.source.optimistic())

    def sample_function(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Forecaster:
        """Return a Thompson sample drawn at ``rows``; see ``Surrogate``."""
        return ForecasterPerCost(source=self.source.sample_function(rows, rng=rng), cost=self.cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointSurrogatePerCost(SurrogatePerCost):
    """Surrogate of an objective per cost, with a joint posterior."""

    def sample(
        self, rows: Sequence[Mapping[str, Value]], *, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return joint samples, ``[count, n]``; see ``JointSurrogate``."""
        return self._joint.sample(rows, count=count, rng=rng) - self.cost.of(rows)

    def without(self, row: Mapping[str, Value]) -> Prediction:
        """Return the leave-one-out prediction of ``row``; see ``JointSurrogate``."""
        return _less(self._joint.without(row), self.cost.of([row]))

    def ratios(self, rows: Sequence[Mapping[str, Value]], over: Mapping[str, Value]) -> Prediction:
        """Return the posterior of ratios to ``over``; see ``JointSurrogate``."""
        return _less(self._joint.ratios(rows, over), self.cost.of(rows) - self.cost.of([over]))

    @property
    def _joint(self) -> JointSurrogate:
        return cast("JointSurrogate", self.source)


def _less(prediction: Prediction, logarithm: NDArray[np.float64]) -> Prediction:
    return replace(prediction, logarithm=prediction.logarithm - logarithm)
