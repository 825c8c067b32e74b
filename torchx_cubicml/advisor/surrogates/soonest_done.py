"""Surrogate of the objective "soonest done": another surrogate's throughput, and the overheads of each config.

The value is one over the seconds until the job is done, T = overheads + work / throughput. Doubt in the throughput
counts by the share of T that the steps take, doubt in the overheads by theirs (delta method).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, cast

import numpy as np

from torchx_cubicml.advisor.surrogates.base import JointSurrogate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.launch_overhead import LaunchOverhead
    from torchx_cubicml.advisor.surrogates.base import Forecaster, Surrogate
    from torchx_cubicml.predictors import Prediction
    from torchx_cubicml.records.job_time import Job
    from torchx_cubicml.records.values import Value


def soonest_done(surrogate: Surrogate, timing: JobTiming | None) -> Surrogate:
    """Return the surrogate of the time until a job is done, from one of throughput; that one itself without a job."""
    if timing is None:
        return surrogate
    if isinstance(surrogate, JointSurrogate):
        return JointSurrogateDone(source=surrogate, timing=timing)
    return SurrogateDone(source=surrogate, timing=timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTiming:
    """Seconds until a job is done.

    Args:
        job: its work.
        overhead: of its launches.
    """

    job: Job
    overhead: LaunchOverhead

    def done(self, prediction: Prediction, rows: Sequence[Mapping[str, Value]]) -> Prediction:
        """Return the prediction of jobs per second of ``rows``, from one of their throughput."""
        overhead = self.overhead.at(rows)
        steps_s = self._steps_s(prediction.logarithm)
        total_s = overhead.seconds + steps_s
        spread = np.hypot(prediction.spread * steps_s, overhead.doubt_s) / total_s
        return replace(prediction, logarithm=-np.log(total_s), spread=spread)

    def samples(
        self, logarithms: NDArray[np.float64], rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return samples of log jobs per second from samples of log throughput, ``[count, n]``."""
        overhead = self.overhead.at(rows)
        shape = len(logarithms), int(overhead.kind.max(initial=0)) + 1
        errors = rng.standard_normal(shape)[:, overhead.kind] * overhead.doubt_s
        return -np.log(np.maximum(overhead.seconds + errors, 0.0) + self._steps_s(logarithms))

    def ratios(
        self,
        ratios: Prediction,
        rows: Sequence[Mapping[str, Value]],
        *,
        over: Mapping[str, Value],
        throughput: Prediction,
    ) -> Prediction:
        """Return the prediction of ratios of jobs per second of ``rows`` to ``over``.

        Args:
            ratios: of throughput.
            rows: as above.
            over: the other row.
            throughput: prediction of its throughput.
        """
        overhead = self.overhead.at([*rows, over])
        own_s = self._steps_s(throughput.logarithm)
        steps_s = own_s * np.exp(-ratios.logarithm)
        total_s, own_total_s = overhead.seconds[:-1] + steps_s, overhead.seconds[-1] + own_s
        share, own_share = steps_s / total_s, own_s / own_total_s
        doubt, own_doubt = overhead.doubt_s[:-1] / total_s, overhead.doubt_s[-1] / own_total_s
        is_same = overhead.kind[:-1] == overhead.kind[-1]
        of_overheads = np.where(is_same, np.abs(own_doubt - doubt), np.hypot(own_doubt, doubt))
        spread = np.sqrt(
            (share * ratios.spread) ** 2 + ((own_share - share) * throughput.spread) ** 2 + of_overheads**2
        )
        return replace(ratios, logarithm=np.log(own_total_s) - np.log(total_s), spread=spread)

    def _steps_s(self, logarithm: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.exp(math.log(self.job.amount) - logarithm), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecasterDone:
    """Forecaster of jobs per second.

    Args:
        source: forecaster of throughput.
        timing: of each config.
    """

    source: Forecaster
    timing: JobTiming

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Prediction:
        """Return the forecast of ``rows``; see ``Forecaster``."""
        return self.timing.done(self.source.forecast(rows), rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateDone:
    """Surrogate of jobs per second.

    Args:
        source: surrogate of throughput.
        timing: of each config.
    """

    source: Surrogate
    timing: JobTiming

    def forecast(self, rows: Sequence[Mapping[str, Value]]) -> Prediction:
        """Return the forecast of ``rows``; see ``Forecaster``."""
        return self.timing.done(self.source.forecast(rows), rows)

    def outliers(self, rows: Sequence[Mapping[str, Value]]) -> NDArray[np.bool_]:
        """Return whether rows are outliers, ``[n]``; see ``Surrogate``."""
        return self.source.outliers(rows)

    def ensemble(self, *, one: bool) -> list[Surrogate]:
        """Return the surrogates of the source's ensemble, each of jobs per second; see ``Surrogate``."""
        return [soonest_done(each, self.timing) for each in self.source.ensemble(one=one)]

    def fantasize(self, rows: Sequence[Mapping[str, Value]]) -> Self:
        """Return this surrogate with fantasy observations at ``rows``; see ``Surrogate``."""
        return replace(self, source=self.source.fantasize(rows))

    def optimistic(self) -> Self:
        """Return this surrogate with an optimistic prior mean; see ``Surrogate``."""
        return replace(self, source=self.source.optimistic())

    def sample_function(self, rows: Sequence[Mapping[str, Value]], *, rng: np.random.Generator) -> Forecaster:
        """Return a Thompson sample drawn at ``rows``; see ``Surrogate``."""
        return ForecasterDone(source=self.source.sample_function(rows, rng=rng), timing=self.timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointSurrogateDone(SurrogateDone):
    """Surrogate of jobs per second, with a joint posterior."""

    def sample(
        self, rows: Sequence[Mapping[str, Value]], *, count: int, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return joint samples, ``[count, n]``; see ``JointSurrogate``."""
        return self.timing.samples(self._joint.sample(rows, count=count, rng=rng), rows, rng=rng)

    def without(self, row: Mapping[str, Value]) -> Prediction:
        """Return the leave-one-out prediction of ``row``; see ``JointSurrogate``."""
        return self.timing.done(self._joint.without(row), [row])

    def ratios(self, rows: Sequence[Mapping[str, Value]], over: Mapping[str, Value]) -> Prediction:
        """Return the posterior of ratios to ``over``; see ``JointSurrogate``."""
        throughput = self.source.forecast([over])
        return self.timing.ratios(self._joint.ratios(rows, over), rows, over=over, throughput=throughput)

    @property
    def _joint(self) -> JointSurrogate:
        return cast("JointSurrogate", self.source)
