"""Estimate of the peak memory of one process, part by part, with its doubt: formulas calibrated on recorded peaks.

Each group of parts has a factor with a log-normal prior. Recorded peaks narrow the factors (MAP estimates with the
covariance of Laplace's approximation). Their residuals set the error that remains, most of all those of the program at
hand. Without any, the priors are the doubt. On a host the peak is that of the resident set, which holds the interpreter
and the libraries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.base import Prediction
from torchx_cubicml.predictors.features.columns import DEVICE
from torchx_cubicml.predictors.features.device_specs import CPU, find_hardware
from torchx_cubicml.predictors.intervals import PRIOR_TRIALS, group_error
from torchx_cubicml.predictors.roofline.least_squares import least_squares
from torchx_cubicml.predictors.roofline.predictor import Roofline
from torchx_cubicml.predictors.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchx_cubicml.predictors.roofline.training_layout import Array
    from torchx_cubicml.records.values import Value

_GIB = float(1 << 30)
RESERVED, PROCESS = "reserved", "process"
"""Parts that no model takes: a device's context and buffers; on a host, the interpreter and its libraries instead."""
# parts with a common factor -> prior standard deviation of its logarithm
_GROUPS: dict[tuple[str, ...], float] = {
    ("weights", "gradients", "gathered"): 0.3,
    ("optimizer",): 0.3,
    ("activations",): 0.5,
    ("logits",): 0.5,
    ("embeddings",): 0.2,
    ("embedding_states",): 0.7,
    ("embedding_buffers",): 1.0,
    (RESERVED,): 0.5,
    (PROCESS,): 0.2,
}
_OF_PROCESS = 0.4e9  # bytes that a process holds once it has imported torch
# What the program at hand adds to the factor of its process, and to all parts together. Processes that had imported
# torch alone, its FSDP, TorchRec, transformers' Trainer, Lightning, DeepSpeed, Megatron-Core or torchtitan held 0.23 to
# 0.56 GB on one machine, with a log deviation of 0.29.
_OWN_WIDTHS = (0.3, 0.15)
_RESERVED = 1e9  # bytes of a device's context, also where the formulas of recommenders leave it out
_ERROR = 0.15  # log error of a peak with the right factors, before any is measured
_NOISE = 0.1  # log error of a peak up to which the loss is quadratic, beyond it linear
_Z = 1.2816  # end of a two-sided 80 % interval of a normal distribution, in standard deviations
_STEPS = 50
_STEP = 1e-3  # of a logarithm, in the differences of the covariance


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakEstimate:
    """Peak memory of the fullest process, by formulas with calibrated factors.

    Args:
        n_measured: recorded peaks that the factors are fitted to; 0 for the priors alone.
        theta: logarithms of the factors of groups, then of what the program at hand adds, float64 ``[n_factors]``.
        covariance: of these, float64 ``[n_factors, n_factors]``.
        error: log error of a peak of the program at hand that remains with the right factors.
        program: the one at hand, for which the last factors stand.
    """

    n_measured: int = 0
    theta: Array = field(default_factory=lambda: np.zeros(len(_WIDTH)))
    covariance: Array = field(default_factory=lambda: np.diag(np.square(_WIDTH)))
    error: float = _ERROR
    program: str = ""

    @classmethod
    def fit(cls, rows: Sequence[Mapping[str, Value]], peaks_gib: Sequence[float], *, program: str = "") -> Self:
        """Return the estimate that is calibrated on recorded peaks; on none, if the formulas cover none of the rows.

        Args:
            rows: facts of the launches.
            peaks_gib: their peaks, > 0, likewise.
            program: the one to estimate, as ``program`` of the rows.
        """
        groups, covered = _group_sizes(rows)
        groups, is_own = groups[covered], _is_own(rows, program)[covered]
        measured = np.log(np.asarray(peaks_gib, dtype=np.float64)[covered])
        if not len(measured):
            return cls(program=program)

        def misfit(theta: Array) -> Array:
            errors = (_log_peaks(theta, groups, is_own) - measured) / _NOISE
            robust = np.sign(errors) * np.sqrt(2.0 * (np.sqrt(1.0 + errors**2) - 1.0))
            return np.concatenate([robust, theta / _WIDTH])

        with one_thread():
            theta = least_squares(misfit, np.zeros(len(_WIDTH)), steps=_STEPS)
            slopes = _slopes(misfit, theta)
            covariance: Array = np.linalg.inv(slopes.T @ slopes).astype(np.float64)
        # As many degrees of freedom as the data determine are lost.
        lost = float(np.trace(np.eye(len(theta)) - covariance / np.square(_WIDTH)))
        residuals = np.abs(_log_peaks(theta, groups, is_own) - measured)
        residuals *= np.sqrt(len(measured) / max(len(measured) - lost, 1.0))
        own = residuals[is_own > 0.0]
        return cls(
            n_measured=len(measured),
            theta=theta,
            covariance=covariance,
            error=group_error(own, np.zeros(len(own)), _remaining_error(residuals)),
            program=program,
        )

    def predict(self, rows: Sequence[Mapping[str, Value]]) -> Prediction:
        """Return the peak in GiB and the deviation of its logarithm, ``[n]``; NaN where no formula covers a row."""
        logarithm, spread = np.full((2, len(rows)), np.nan)
        groups, covered = _group_sizes(rows)
        if covered.any():
            groups, is_own = groups[covered], _is_own(rows, self.program)[covered]
            logarithm[covered] = _log_peaks(self.theta, groups, is_own)
            slopes = _slopes(lambda theta: _log_peaks(theta, groups, is_own), self.theta)
            variance = np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes)
            spread[covered] = np.sqrt(variance + self.error**2)
        return Prediction(logarithm=logarithm, spread=spread)

    def parts(self, row: Mapping[str, Value]) -> dict[str, float]:
        """Return part -> GiB; they add up to the estimate. Empty where no formula covers the row."""
        sizes = _sizes([row])
        if not _group_sizes([row])[1][0]:
            return {}
        own = self.theta[len(_GROUPS) :] * _is_own([row], self.program)[0]
        factors = np.exp(self.theta[: len(_GROUPS)] + own[1])
        of_part = {part: factor for names, factor in zip(_GROUPS, factors.tolist(), strict=True) for part in names}
        for part in (RESERVED, PROCESS):
            of_part[part] *= float(np.exp(own[0]))
        return {name: float(size[0]) / _GIB * of_part[name] for name, size in sizes.items() if size[0] > 0.0}


_WIDTH: Array = np.array([*_GROUPS.values(), *_OWN_WIDTHS])


def _slopes(function: Callable[[Array], Array], theta: Array) -> Array:
    """Return the derivatives of a function by each of ``theta``, float64 ``[n, n_factors]``."""
    middle = function(theta)
    return np.column_stack([(function(theta + step) - middle) / _STEP for step in _STEP * np.eye(len(theta))])


def _log_peaks(theta: Array, groups: Array, is_own: Array) -> Array:
    """Return the logarithms of peaks in GiB, float64 ``[n]``, by the sizes of groups, ``[n, n_groups]``."""
    logarithms = np.broadcast_to(theta[: len(_GROUPS)], groups.shape).copy()
    logarithms[:, -2:] += (theta[-2] * is_own)[:, None]
    return np.asarray(np.log((groups * np.exp(logarithms)).sum(axis=1)) + theta[-1] * is_own)


def _remaining_error(residuals: Array) -> float:
    """Return the log error that remains: that whose 80 % interval holds four fifths of absolute residuals."""
    typical = float(np.quantile(residuals, 0.8)) / _Z
    weight = len(residuals) / (len(residuals) + PRIOR_TRIALS)
    return float(np.sqrt(weight * typical**2 + (1.0 - weight) * _ERROR**2))


def _group_sizes(rows: Sequence[Mapping[str, Value]]) -> tuple[Array, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """Return the GiB of each group, float64 ``[n, n_groups]``, and the mask of the rows that the formulas cover."""
    if not rows:
        return np.zeros((0, len(_GROUPS))), np.zeros(0, dtype=np.bool_)
    sizes, none = _sizes(rows), np.zeros(len(rows))
    groups = np.column_stack([np.sum([sizes.get(part, none) for part in parts], axis=0) for parts in _GROUPS]) / _GIB
    return groups, np.asarray(np.isfinite(groups).all(axis=1))


def _sizes(rows: Sequence[Mapping[str, Value]]) -> dict[str, Array]:
    """Return part -> bytes by the formulas, on a host with the process's own for a device's context, ``[n]``."""
    sizes = Roofline().memory(rows)
    is_host = np.array([find_hardware(str(row.get(DEVICE, ""))) is CPU for row in rows])
    return {**sizes, RESERVED: np.where(is_host, 0.0, _RESERVED), PROCESS: np.where(is_host, _OF_PROCESS, 0.0)}


def _is_own(rows: Sequence[Mapping[str, Value]], program: str) -> Array:
    return np.array([float(bool(program) and row.get("program") == program) for row in rows])
