"""Forecast of the peak memory of the fullest device: by formulas, corrected by public sources or by launches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.advisor.command_explanation.estimates import FORMULAS, LogNormal
from torchx_cubicml.predictors.features.device_specs import CPU, find_hardware
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.part_factors import part_factors
from torchx_cubicml.predictors.roofline.public_prior import public_prior

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.command_explanation.history_rows import HistoryRows
    from torchx_cubicml.records.trial import Value

_GIB = float(1 << 30)
_PRIOR_SPREAD = 0.3  # log spread of measured over predicted peaks, before anything is measured
_PRIOR_TRIALS = 3.0
_OF_PROCESSES = 0.6  # on a CPU, where the peak is that of the process with all its libraries and its allocator
_PER_DOUBLING = 0.1  # further log spread for each doubling outside the measured peaks
_MOST_LEFT_OUT = 40  # launches of which each is predicted from the others


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecast:
    """Forecast of peaks.

    Args:
        factors: part -> factor on its formula.
        shift: of the logarithm of the sum.
        spread: log spread of a peak around the sum.
        measured: logarithms of the least and the largest peak that it is calibrated on; ``None`` without launches.
        basis: what the numbers are based on, for people.
    """

    factors: Mapping[str, float]
    shift: float
    spread: float
    basis: str
    measured: tuple[float, float] | None = None

    @classmethod
    def of(cls, row: Mapping[str, Value], launches: HistoryRows) -> Self:
        """Return the forecast for commands like ``row``."""
        peaks = [(each.measurement.peak_gib if each.measurement else None) or np.nan for each in launches.trials]
        table = Roofline().memory(launches.rows)
        parts: NDArray[np.float64] = np.column_stack(list(table.values())) / _GIB
        known = np.isfinite(parts).all(axis=1) & np.isfinite(peaks)
        if not known.any():
            return cls._without_launches(row)
        parts, measured = parts[known], np.array(peaks)[known]
        factors = part_factors(parts, measured)
        errors = _left_out_errors(parts, measured)
        n = len(errors)
        typical = 1.4826 * float(np.median(np.abs(errors)))
        spread = math.sqrt((n * typical**2 + _PRIOR_TRIALS * _PRIOR_SPREAD**2) / (n + _PRIOR_TRIALS))
        return cls(
            factors=dict(zip(table, factors.tolist(), strict=True)),
            shift=0.0,
            spread=spread,
            basis=f"{FORMULAS} calibrated on {launches.text}",
            measured=(float(np.log(measured.min())), float(np.log(measured.max()))),
        )

    @classmethod
    def _without_launches(cls, row: Mapping[str, Value]) -> Self:
        public = public_prior()
        if public is not None and math.isfinite(float(public.peak_gib([row]).logarithm[0])):
            basis = f"{FORMULAS} and {len(public.memory_sources)} public sources"
            return cls(factors={}, shift=public.memory[0], spread=public.memory[1], basis=basis)
        on_cpu = find_hardware(str(row.get("device", ""))) is CPU
        spread = _OF_PROCESSES if on_cpu else 1.5 * _PRIOR_SPREAD
        return cls(factors={}, shift=0.0, spread=spread, basis=FORMULAS)

    def log_peak(self, row: Mapping[str, Value]) -> LogNormal | None:
        """Return the distribution of the peak in GiB; ``None`` where the formulas do not cover the row."""
        total = sum(self._sizes(row).values())
        if not (math.isfinite(total) and total > 0.0):
            return None
        logarithm, outside = math.log(total) + self.shift, 0.0
        if self.measured is not None:
            low, high = self.measured
            outside = max(low - logarithm, logarithm - high, 0.0) / math.log(2.0)
        return LogNormal(logarithm, math.hypot(self.spread, _PER_DOUBLING * outside))

    def parts(self, row: Mapping[str, Value], peak_gib: float) -> dict[str, float]:
        """Return part of the formulas -> GiB; they add up to ``peak_gib``. Empty where they do not cover the row."""
        sizes = self._sizes(row)
        total = sum(sizes.values())
        return {name: part * peak_gib / total for name, part in sizes.items()} if math.isfinite(total) else {}

    def _sizes(self, row: Mapping[str, Value]) -> dict[str, float]:
        sizes = {name: float(size[0]) / _GIB for name, size in Roofline().memory([row]).items()}
        return {name: size * self.factors.get(name, 1.0) for name, size in sizes.items()}


def _left_out_errors(parts: NDArray[np.float64], measured: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log errors of peaks, each predicted from the other launches, ``[n]`` for at most some launches."""
    errors = []
    for index in range(min(len(measured), _MOST_LEFT_OUT)):
        others = np.arange(len(measured)) != index
        factors = part_factors(parts[others], measured[others])
        errors.append(float(np.log(parts[index] @ factors / measured[index])))
    return np.array(errors)
