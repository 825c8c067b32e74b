"""Random-effects summary of the formulas' constants over public sources (empirical Bayes, by EM).

Each source has constants of its own, drawn around a common mean. The E step calibrates the formulas on each source, as
the product does, under the current mean and deviation. The M step updates these from the calibrated constants and their
Laplace variances. The hand-set priors count as a few sources, so a constant that no source informs about keeps them.
How wide an interval must be is learned in ``left_out``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import t as student

from torchx_cubicml.predictors.features.device_specs import find_hardware
from torchx_cubicml.predictors.roofline.calibration import Calibration, calibrate
from torchx_cubicml.predictors.roofline.constants import HAND_SET, NAMES, ConstantsPrior, constants_of
from torchx_cubicml.predictors.roofline.memory import memory_parts
from torchx_cubicml.predictors.roofline.public_prior import RANGE_COLUMNS
from torchx_cubicml.predictors.roofline.step_time import step_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lib.public_sources import Source

HAND_SET_SOURCES = 3.0  # that the hand-set priors count as
MOST_ROWS = 100  # of a source: more say nothing about other sources
ROUNDS = 5
NOISE = 0.2  # log error up to which a row counts in full, as in a calibration
Z = 1.2816  # two-sided 80 % of a normal distribution
STEP = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceFit:
    """Calibration on one source.

    Args:
        logarithms: of the constants, ``[n_constants]``.
        variance: of these, after the measurements (Laplace).
        error: log error of its trainings around the calibrated formulas: 1.48 times the median.
    """

    logarithms: NDArray[np.float64]
    variance: NDArray[np.float64]
    error: float


def learned_prior(sources: Sequence[Source], *, rounds: int = ROUNDS) -> dict[str, object]:
    """Return the summary of sources as the JSON of ``PublicPrior``, neither widened nor waiting.

    Args:
        sources: one or more.
        rounds: of EM.
    """
    chosen = [sampled(source) for source in sources]
    prior, error = HAND_SET, 0.0
    for _ in range(rounds):
        fits = [fitted(source, prior) for source in chosen]
        prior, error = updated(fits, prior), float(np.median([fit.error for fit in fits]))
    memory_sources, mean, spread = memory_effects(sources)
    layouts = [source.layout for source in sources]
    ends = {name: [getattr(layout, name) for layout in layouts] for name in RANGE_COLUMNS}
    constants = zip(NAMES, prior.medians.values(), prediction_width(prior, len(sources)).tolist(), strict=True)
    return {
        "format": 2,
        "sources": [source.name for source in sources],
        "devices": sorted({device_of(row) for source in sources for row in source.rows}),
        "ranges": {name: [float(min(map(np.min, each))), float(max(map(np.max, each)))] for name, each in ends.items()},
        "constants": {name: [rounded(median), rounded(width)] for name, median, width in constants},
        "memory_sources": memory_sources,
        "numbers": {
            "error": rounded(error),
            "widening": 1.0,
            "wait_s": 0.0,
            "memory_mean": rounded(mean),
            "memory_spread": rounded(spread),
        },
        "held": {},
    }


def sampled(source: Source) -> Source:
    """Return at most ``MOST_ROWS`` trainings of a source, always the same."""
    n = len(source.rows)
    if n <= MOST_ROWS:
        return source
    return source.at(np.sort(np.random.default_rng(0).choice(n, MOST_ROWS, replace=False)).tolist())


def fitted(source: Source, prior: ConstantsPrior) -> SourceFit:
    """Return the calibration on one source under ``prior``."""
    layout, nothing = source.layout, np.zeros(len(source.rows))
    found = calibrate(layout, np.exp(source.log_seconds), nothing, rng=np.random.default_rng(0), prior=prior)
    logarithms = np.log([found.constants[name] for name in NAMES])
    expected = found.expect(layout, inside=np.ones(len(nothing)))
    errors = source.log_seconds - expected.logarithm
    weights = 1.0 / np.sqrt(1.0 + (errors / NOISE) ** 2) / NOISE**2
    slopes = slopes_at(source, logarithms, found)
    precision = slopes @ (weights[:, None] * slopes.T) + np.diag(1.0 / prior.width**2)
    return SourceFit(
        logarithms=logarithms,
        variance=np.diag(np.linalg.inv(precision)),
        error=float(1.4826 * np.median(np.abs(errors))),
    )


def slopes_at(source: Source, logarithms: NDArray[np.float64], found: Calibration) -> NDArray[np.float64]:
    """Return the derivatives of the log step time of the likelier mode, ``[n_constants, n]``."""
    layout, slow = source.layout, found.slow
    is_slow = slow.probability(layout) > 0.5 if slow is not None else np.zeros(len(source.rows), dtype=np.bool_)

    def seconds(at: NDArray[np.float64]) -> NDArray[np.float64]:
        times = step_time(layout, constants_of(at))
        return np.log(np.where(is_slow, times.total(slow.stall_s if slow is not None else 0.0), times.total()))

    base = seconds(logarithms)
    return np.array([(seconds(logarithms + step) - base) / STEP for step in STEP * np.eye(len(NAMES))])


def updated(fits: Sequence[SourceFit], prior: ConstantsPrior) -> ConstantsPrior:
    """Return mean and deviation of the constants over sources (M step)."""
    logarithms, variances = (np.array([getattr(fit, name) for fit in fits]) for name in ("logarithms", "variance"))
    n, between = len(fits), prior.width**2
    precision = n / between + HAND_SET_SOURCES / HAND_SET.width**2
    mean = (logarithms.sum(axis=0) / between + HAND_SET_SOURCES * HAND_SET.centre / HAND_SET.width**2) / precision
    squares = ((logarithms - mean) ** 2 + variances).sum(axis=0)
    variance = (HAND_SET_SOURCES * HAND_SET.width**2 + squares) / (HAND_SET_SOURCES + n)
    return ConstantsPrior(medians=constants_of(mean), width=np.sqrt(variance))


def prediction_width(prior: ConstantsPrior, n_sources: int) -> NDArray[np.float64]:
    """Return the deviation of a new source's constants, that of the mean included."""
    error_of_mean = 1.0 / (n_sources / prior.width**2 + HAND_SET_SOURCES / HAND_SET.width**2)
    return np.sqrt(prior.width**2 + error_of_mean)


def memory_effects(sources: Sequence[Source]) -> tuple[list[str], float, float]:
    """Return the sources that state peaks, and mean and 80 % deviation of log measured over predicted peak.

    The deviation is that of one training of a new source, widened by Student's factor. With fewer than two sources
    there is none, and both are 0.
    """
    medians, errors, names = [], [], []
    for source in sources:
        known = np.flatnonzero(np.isfinite(source.log_peak_gib)).tolist()
        if known:
            stated = source.at(known)
            predicted = sum(memory_parts(stated.layout).values(), np.zeros(len(known))) / 2.0**30
            ratios = stated.log_peak_gib - np.log(predicted)
            names.append(source.name)
            medians.append(float(np.median(ratios)))
            errors.append(float(1.4826 * np.median(np.abs(ratios - np.median(ratios)))))
    n = len(names)
    if n < 2:
        return names, 0.0, 0.0
    total = np.var(medians, ddof=1) * (1.0 + 1.0 / n) + np.mean(np.square(errors))
    return names, float(np.mean(medians)), float(np.sqrt(total) * student(n - 1).ppf(0.9) / Z)


def device_of(row: dict[str, object]) -> str:
    """Return the short name of a training's device; empty where it is unknown."""
    hardware = find_hardware(str(row.get("device", "")))
    return hardware.name if hardware is not None else ""


def rounded(value: float) -> float:
    """Return four significant digits."""
    return float(f"{value:.4g}")
