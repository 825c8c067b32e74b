"""Memory estimate of the roofline formulas, calibrated on the peaks of recorded launches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from torchx_cubicml.predictors.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx_cubicml.predictors.roofline.training_layout import Array, TrainingLayout


MEMORY_PARTS = ("weights", "gradients", "optimizer", "gathered", "activations", "logits", "reserved")

_WEIGHT, _GRADIENT, _OPTIMIZER = 2.0, 4.0, 12.0  # bytes per parameter: bf16 copy, fp32 gradient, fp32 master and Adam
_OUTSIDE_MLP = 18.0  # bytes per token and channel: attention, norms, the MLP's input, dropout masks
_UNSPLIT = 10.0  # of them without sequence parallelism
_LOGIT = 12.0  # bytes per token and word: bf16 logits, their fp32 copy and gradient
_RESERVED = 1e9  # the device's context, communication buffers


def memory_parts(layout: TrainingLayout) -> dict[str, Array]:
    """Return name of ``MEMORY_PARTS`` -> bytes at the peak of the fullest device, float64 ``[n]``; they add up."""
    held, states = layout.stage_params, 1.0 / layout.shard
    each, shared = layout.gathered_each_time, layout.states_sharded
    wide = layout.width_bytes / 2.0
    with np.errstate(all="ignore"):
        unit = layout.layer_params * (1.0 - layout.expert_share + layout.expert_share / layout.ep) / layout.tp
        activations, logits = _activations(layout)
        return {
            "weights": held * (_WEIGHT * wide) * (1.0 - each + each * states),
            "gradients": held * _GRADIENT * (1.0 - layout.gradients_sharded + layout.gradients_sharded * states),
            "optimizer": held * _OPTIMIZER * (1.0 - shared + shared * states),
            # Two layers are whole at a time: the one that computes and the one that is fetched ahead.
            "gathered": 2.0 * unit * (_WEIGHT * wide) * each * (1.0 - states),
            "activations": activations,
            "logits": logits,
            "reserved": np.full_like(held, _RESERVED),
        }


def activation_bytes(layout: TrainingLayout) -> Array:
    """Return bytes per block and micro batch that backward needs and recomputation does not give."""
    split = np.where(layout.sequence_parallel > 0, layout.tp, 1.0)
    mlp = 2.0 * layout.inner * layout.tokens * layout.width / layout.tp
    rest = layout.tokens * layout.width * ((_OUTSIDE_MLP - _UNSPLIT) / layout.tp + _UNSPLIT / split)
    scores = 5.0 * layout.heads * layout.sequence * layout.tokens / layout.tp
    kept = layout.plain_attention * (1.0 - layout.selective_recompute)
    everything = mlp + rest + scores * kept
    entry = 2.0 * layout.tokens * layout.width / split
    wide = layout.width_bytes / 2.0
    return np.asarray(wide * ((1.0 - layout.full_recompute) * everything + layout.full_recompute * entry))


def _activations(layout: TrainingLayout) -> tuple[Array, Array]:
    """Return activations and logits of the fullest stage: the first holds most micro batches, the last the logits."""
    block = activation_bytes(layout) * layout.layers_per_stage
    working = np.where(layout.full_recompute > 0, activation_bytes(_without_recompute(layout)), 0.0)
    logits = _LOGIT * layout.tokens * layout.vocabulary / layout.tp
    first, last = block * layout.in_flight + working, block + working
    last_is_fullest = last + logits > first
    return np.where(last_is_fullest, last, first), np.where(last_is_fullest, logits, 0.0)


def _without_recompute(layout: TrainingLayout) -> TrainingLayout:
    return replace(layout, full_recompute=np.zeros_like(layout.full_recompute))


# Parts that one factor scales -> standard deviation of its logarithm.
_GROUPS: dict[tuple[str, ...], float] = {
    ("weights", "gradients", "gathered"): 0.3,
    ("optimizer",): 0.3,
    ("activations",): 0.5,
    ("logits",): 0.5,
    ("reserved",): 0.7,
}
N_GROUPS = len(_GROUPS)
# After the factors: share of the memory that is of use, sharpness of the wall per doubling, log odds of other failures.
_CENTRE = np.array([*[0.0] * N_GROUPS, np.log(0.92), np.log(6.0), -3.0])
_WIDTH = np.array([*_GROUPS.values(), 0.1, 0.7, 1.5])
_NOISE = 0.1  # log error of a peak up to which a misfit counts squared, beyond it linearly
_STEPS = 100
_MOST_LOGIT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCalibration:
    """What outcomes taught of memory.

    Args:
        theta: logarithms of the factors on groups of parts, of the usable share and of the sharpness; then the log odds
            of a failure for another reason. Float64 ``[n_groups + 3]``.
    """

    theta: Array

    @classmethod
    def default(cls) -> MemoryCalibration:
        """Return what is believed before anything was seen."""
        return cls(theta=_CENTRE.copy())

    def pressure(self, layout: TrainingLayout) -> Array:
        """Return log2 of the peak over the usable memory, then of each group's share, float64 ``[n, 1 + n_groups]``."""
        shares = _shares(layout) * np.exp(self.theta[:N_GROUPS] - self.theta[N_GROUPS])
        return np.asarray(np.log2(np.maximum(np.column_stack([shares.sum(axis=1), shares]), 2.0**-20)))

    def log_odds(self, layout: TrainingLayout) -> Array:
        """Return log odds to run through, other reasons of failure among them, float64 ``[n]``."""
        fits = _logit_to_fit(self.theta, _shares(layout))
        runs = np.exp(-np.logaddexp(0.0, -fits)) / (1.0 + np.exp(self.theta[-1]))
        return np.asarray(np.log(np.maximum(runs, 1e-12)) - np.log1p(-np.minimum(runs, 1.0 - 1e-12)))


def calibrate_memory(layout: TrainingLayout, *, ran: Array, certain: Array, peak_bytes: Array) -> MemoryCalibration:
    """Return the constants that explain outcomes and peaks.

    Args:
        layout: ``n`` trainings, all covered; none at all is legal.
        ran: 1.0 where it fitted, float64 ``[n]``.
        certain: 1.0 where memory is known to be why it did not, float64 ``[n]``.
        peak_bytes: measured on the fullest device, NaN where unknown, float64 ``[n]``.
    """
    if not len(ran):
        return MemoryCalibration.default()
    from scipy.optimize import minimize

    shares, peaks = _shares(layout), np.log(peak_bytes / layout.memory)
    told = np.isfinite(peaks)

    def surprise(theta: Array) -> float:
        belief = (theta - _CENTRE) / _WIDTH
        errors = np.log(shares[told] @ np.exp(theta[:N_GROUPS])) - peaks[told]
        misfit = (np.sqrt(1.0 + (errors / _NOISE) ** 2) - 1.0).sum()
        return float(0.5 * belief @ belief + misfit - _log_likelihood(theta, shares, ran, certain))

    solver: Callable[..., _Solution] = minimize
    with one_thread():
        return MemoryCalibration(theta=solver(surprise, _CENTRE, method="L-BFGS-B", options={"maxiter": _STEPS}).x)


class _Solution(Protocol):
    x: Array


def _shares(layout: TrainingLayout) -> Array:
    found = memory_parts(layout)
    groups = [sum((found[name] for name in names), np.zeros(len(layout.memory))) for names in _GROUPS]
    return np.column_stack(groups) / layout.memory[:, None]


def _logit_to_fit(theta: Array, shares: Array) -> Array:
    doublings = np.log2(np.maximum(shares @ np.exp(theta[:N_GROUPS]), 1e-9)) - theta[N_GROUPS] / np.log(2.0)
    return np.asarray(np.clip(-np.exp(theta[N_GROUPS + 1]) * doublings, -_MOST_LOGIT, _MOST_LOGIT))


def _log_likelihood(theta: Array, shares: Array, ran: Array, certain: Array) -> float:
    fits = _logit_to_fit(theta, shares)
    runs = -np.logaddexp(0.0, -fits) - np.log1p(np.exp(theta[-1]))
    lost = np.log(-np.expm1(np.minimum(runs, -1e-12)))
    failed = np.where(certain > 0.0, -np.logaddexp(0.0, fits), lost)
    return float(np.where(ran > 0.0, runs, failed).sum())
