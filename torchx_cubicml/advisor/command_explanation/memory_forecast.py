"""Forecast of the peak memory of the fullest device: by formulas, corrected by public sources or by launches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.advisor.command_explanation.estimates import FORMULAS, LogNormal
from torchx_cubicml.predictors.roofline.peak_estimate import PeakEstimate
from torchx_cubicml.predictors.roofline.public_prior import public_prior

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.advisor.command_explanation.history_rows import HistoryRows
    from torchx_cubicml.predictors.base import Prediction
    from torchx_cubicml.records.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecast:
    """Forecast of peaks.

    Args:
        estimate: the formulas, with factors fitted to recorded peaks where there are any.
        is_public: whether the public prior is used for the rows that it covers.
        basis: what the numbers are based on, for people.
    """

    estimate: PeakEstimate
    is_public: bool
    basis: str

    @classmethod
    def of(cls, row: Mapping[str, Value], launches: HistoryRows) -> Self:
        """Return the forecast for commands like ``row``."""
        peaks = [each.measurement.peak_gib if each.measurement is not None else None for each in launches.trials]
        measured = [(each, peak) for each, peak in zip(launches.rows, peaks, strict=True) if peak]
        rows, known = [each for each, _ in measured], [peak for _, peak in measured]
        estimate = PeakEstimate.fit(rows, known, program=str(row.get("program", "")))
        if estimate.n_measured:
            return cls(estimate=estimate, is_public=False, basis=f"{FORMULAS} calibrated on {launches.text}")
        public = _public(row)
        if public is None:
            return cls(estimate=estimate, is_public=False, basis=FORMULAS)
        prior = public_prior()
        count = len(prior.memory_sources) if prior is not None else 0
        return cls(estimate=estimate, is_public=True, basis=f"{FORMULAS} and {count} public sources")

    def log_peak(self, row: Mapping[str, Value]) -> LogNormal | None:
        """Return the distribution of the peak in GiB; ``None`` where the formulas do not cover the row."""
        found = _public(row) if self.is_public else None
        found = found or self.estimate.predict([row])
        logarithm, spread = float(found.logarithm[0]), float(found.spread[0])
        return LogNormal(logarithm, spread) if math.isfinite(logarithm) else None

    def parts(self, row: Mapping[str, Value], peak_gib: float) -> dict[str, float]:
        """Return part of the formulas -> GiB; they add up to ``peak_gib``. Empty where they do not cover the row."""
        sizes = self.estimate.parts(row)
        total = sum(sizes.values())
        return {name: part * peak_gib / total for name, part in sizes.items()}


def _public(row: Mapping[str, Value]) -> Prediction | None:
    """Return the prediction by public sources; ``None`` where they do not cover the row."""
    prior = public_prior()
    found = prior.peak_gib([row]) if prior is not None else None
    return found if found is not None and bool(np.isfinite(found.logarithm[0])) else None
