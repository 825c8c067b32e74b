"""Spread between programs: the doubt of one without launches beside formulas calibrated on others (random effects)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.features.rows import encode_rows
from torchx_cubicml.predictors.intervals import PRIOR_TRIALS
from torchx_cubicml.predictors.roofline.estimate import PRIOR_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.history import TrainingTable
    from torchx_cubicml.predictors.roofline.predictor import Roofline
    from torchx_cubicml.predictors.roofline.recommender_predictor import RecommenderRoofline
    from torchx_cubicml.records.trial import Trial

_Z = 1.2816  # end of a two-sided 80 % interval of a normal distribution, in standard deviations
_MOST_GROUPS = 5  # that are left out in turn: each takes one calibration


def new_program_doubt(misses: Sequence[float], *, n_groups: int) -> float:
    """Return the log deviation of the level of a program without launches.

    The levels of groups of programs are normal. Their variance has a prior that counts as ``PRIOR_TRIALS`` groups with
    a deviation of ``PRIOR_ERROR``. The level of the formulas is the mean of the groups, so few groups leave it in
    doubt. The prediction is Student's t; the deviation is that of the normal distribution with its 80 % interval.

    Args:
        misses: logarithm of measured over predicted throughput of groups, each by formulas calibrated on the others.
        n_groups: that calibrated the formulas, at least 1.

    >>> [round(new_program_doubt([], n_groups=1), 2), round(new_program_doubt([0.3, -0.3] * 10, n_groups=20), 2)]
    [0.9, 0.35]
    """
    alike = (n_groups - 1) / n_groups  # a group that is left out misses the mean of the others, which is in doubt, too
    freedom = PRIOR_TRIALS + max(len(misses) - 1, 0)
    total = PRIOR_TRIALS * PRIOR_ERROR**2 + alike * sum(miss**2 for miss in misses)
    return math.sqrt(total / freedom * (1.0 + 1.0 / n_groups)) * _student_end(freedom) / _Z


def left_out_misses(
    trials: Sequence[Trial],
    groups: Sequence[Hashable],
    *,
    table: Callable[[Sequence[Trial]], TrainingTable],
    fit: Callable[[TrainingTable], Roofline | RecommenderRoofline],
) -> list[float]:
    """Return the median log error of each group of launches by formulas calibrated on the others; empty below two.

    Args:
        trials: measured launches.
        groups: of each of them.
        table: returns the table of some of them.
        fit: returns formulas calibrated on a table.
    """
    names = sorted({*groups}, key=lambda name: (-groups.count(name), repr(name)))
    if len(names) < 2:
        return []
    found = []
    for name in names[:_MOST_GROUPS]:
        others, own = (
            table([trial for trial, group in zip(trials, groups, strict=True) if (group == name) is is_own])
            for is_own in (False, True)
        )
        errors = _errors(fit(others), others, own)
        found += [float(np.median(errors))] if len(errors) else []
    return found


def _errors(
    formulas: Roofline | RecommenderRoofline, known: TrainingTable, asked: TrainingTable
) -> NDArray[np.float64]:
    """Return the logarithms of measured over predicted throughputs, where the formulas cover the launches."""
    predicted = formulas.predict(encode_rows(known.columns, asked.rows)).logarithm
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.log(asked.throughput) - predicted
    return np.asarray(errors[np.isfinite(errors)])


def _student_end(freedom: float) -> float:
    """Return the 0.9 quantile of Student's t with at least three degrees of freedom (Cornish-Fisher; 1 % too low)."""
    z = _Z
    return z + (z**3 + z) / (4.0 * freedom) + (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / (96.0 * freedom**2)
