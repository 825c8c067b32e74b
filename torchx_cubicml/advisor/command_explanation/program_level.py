"""Level of one program beside formulas that are calibrated on several: partial pooling, with a conformal spread."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.advisor.command_explanation.program_spread import left_out_misses, new_program_doubt
from torchx_cubicml.predictors.features.rows import encode_rows
from torchx_cubicml.predictors.intervals import group_error
from torchx_cubicml.predictors.roofline.estimate import PRIOR_ERROR
from torchx_cubicml.predictors.weighted import weighted_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.command_explanation.history_rows import HistoryRows
    from torchx_cubicml.predictors.features.history import TrainingTable
    from torchx_cubicml.predictors.roofline.predictor import Roofline
    from torchx_cubicml.predictors.roofline.recommender_predictor import RecommenderRoofline
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLevel:
    """Level of a program: the factor by which its throughput misses the formulas, and the scatter of its launches.

    The logarithm of the factor has a normal prior around 0 with a deviation of ``PRIOR_ERROR``. A program without
    launches has the doubt of ``new_program_doubt`` instead.

    Args:
        offset: posterior mean of that logarithm.
        doubt: its posterior deviation.
        error: log error of one launch around the formulas and the offset of the others (leave-one-out).
    """

    offset: float = 0.0
    doubt: float = PRIOR_ERROR
    error: float

    @classmethod
    def of(cls, errors: NDArray[np.float64], uncertainty: NDArray[np.float64], error: float) -> Self:
        """Return the level of a program.

        Args:
            errors: logarithms of measured over predicted throughputs of its launches, float64 ``[n]``.
            uncertainty: of the measured ones, as each launch reported it, float64 ``[n]``.
            error: log error of one launch, of all programs together, above 0.

        >>> ProgramLevel.of(np.array([]), np.array([]), 0.2)
        ProgramLevel(offset=0.0, doubt=0.5, error=0.2)
        >>> ProgramLevel.of(np.full(4, 1.0), np.zeros(4), 0.5).offset
        0.8
        """
        if not len(errors):
            return cls(error=error)
        weights = error**2 / (error**2 + uncertainty**2)
        offset, known = _posterior(errors, weights, error)
        others = ~np.eye(len(errors), dtype=np.bool_)
        left_out = [_posterior(errors[rest], weights[rest], error)[0] for rest in others]
        return cls(
            offset=offset,
            doubt=PRIOR_ERROR * math.sqrt(1.0 - known),
            error=group_error(np.abs(errors - left_out), uncertainty, error),
        )

    @classmethod
    def of_launches(cls, formulas: Roofline | RecommenderRoofline, history: TrainingTable, program: str) -> Self:
        """Return the level of a program by its launches among those of ``history``, which calibrate ``formulas``."""
        own = _launches_of(program, history)
        predicted = formulas.predict(encode_rows(history.columns, [history.rows[index] for index in own]))
        measured = history.throughput[own]
        known = np.isfinite(predicted.logarithm) & (measured > 0.0)
        uncertainty = np.zeros(len(own)) if history.uncertainty is None else history.uncertainty[own]
        errors = np.log(measured[known]) - predicted.logarithm[known]
        return cls.of(errors, uncertainty[known], formulas.error_ * formulas.scale_)

    def among(
        self,
        launches: HistoryRows,
        *,
        table: Callable[[Sequence[Trial]], TrainingTable],
        fit: Callable[[TrainingTable], Roofline | RecommenderRoofline],
    ) -> Self:
        """Return the level, for a program without launches with the doubt that the spread between others leaves.

        Args:
            launches: that calibrate the formulas.
            table: see ``left_out_misses``, and so below.
            fit: likewise.
        """
        if launches.n_own:
            return self
        misses = left_out_misses(launches.trials, launches.groups, table=table, fit=fit)
        return replace(self, doubt=new_program_doubt(misses, n_groups=len({*launches.groups})))

    @property
    def spread(self) -> float:
        """Deviation of the logarithm of one launch's throughput around formulas and offset."""
        return math.hypot(self.error, self.doubt)


def usual_values(history: TrainingTable, row: Mapping[str, Value]) -> NDArray[np.float64] | None:
    """Return encoded facts of a launch of the row's program, NaN where the row tells them itself, ``[n_columns]``.

    A command does not tell the version of a library, for example: it is no new one to a program with launches.
    ``None`` without any; a fact of another program may be new.
    """
    own = _launches_of(str(row.get("program", "")), history)
    if not own:
        return None
    usual: NDArray[np.float64] = history.features[own[-1]].copy()
    usual[history.columns.of(row)] = np.nan
    return usual


def _launches_of(program: str, history: TrainingTable) -> list[int]:
    return [index for index, row in enumerate(history.rows) if program and row.get("program") == program]


def _posterior(errors: NDArray[np.float64], weights: NDArray[np.float64], error: float) -> tuple[float, float]:
    """Return the posterior mean of a program's offset, and the share of the prior variance that is known."""
    if not len(errors):
        return 0.0, 0.0
    known = PRIOR_ERROR**2 / (PRIOR_ERROR**2 + error**2 / float(weights.sum()))
    return known * weighted_quantile(errors, weights, 0.5), known
