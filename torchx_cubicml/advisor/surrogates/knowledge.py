"""What is expected of the configs of a workload, by whatever learned it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from torchx_cubicml.records.trial import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is expected of ``n`` configs.

    Args:
        logarithm: of the median throughput of the whole job, ``[n]``; NaN where nothing was measured anywhere.
        spread: standard deviation of the logarithm of the true value, ``[n]``.
        fits: probability to fit in memory, ``[n]``.
    """

    logarithm: NDArray[np.float64]
    spread: NDArray[np.float64]
    fits: NDArray[np.float64]


class Forecaster(Protocol):
    """Expects something of rows: workload facts and a config each."""

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Forecast:
        """Return what is expected of ``rows``."""


class Knowledge(Forecaster, Protocol):
    """What trials teach of the configs of one workload."""

    def doubts(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.bool_]:
        """Return whether rows were measured, but each time slowed down by something else than their config, ``[n]``."""

    def opinions(self, *, one: bool) -> list[Knowledge]:
        """Return what several predictors make of the same trials, to search by in turns, the most trusted first.

        Where only ``one`` is asked for, it is that.
        """

    def believing(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return this knowledge as if ``rows`` had been measured at what is expected of them."""

    def hoping(self) -> Self:
        """Return this knowledge with what is usual expected where nothing is known: to search by, never to claim by."""

    def drawn(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Forecaster:
        """Return who tells one function that this knowledge believes in as if it were true, drawn as it is at ``rows``.

        What it forecasts of a row is always the same.
        """


@runtime_checkable
class JointKnowledge(Knowledge, Protocol):
    """Knowledge that was told each measurement of the workload, and of what its configs have in common.

    A forecast already weighs what was measured of the very config.
    """

    def draws(
        self, rows: Sequence[Mapping[str, Value]], *, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return logarithms of true values of few ``rows`` drawn together from what is believed, ``[count, n]``."""

    def ratios(
        self, rows: Sequence[Mapping[str, Value]], over: Mapping[str, Value]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and deviation of the logarithm of the true ratio of each of ``rows`` to ``over``, ``[n]``."""
