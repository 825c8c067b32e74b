"""Memory estimate of the roofline formulas, calibrated on the peaks of recorded launches."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from torchx_cubicml.predictors.roofline import unknown_facts
from torchx_cubicml.predictors.roofline.completed_layout import completed, relevant
from torchx_cubicml.predictors.roofline.data_parallel import expert_ranks, held_params, held_states
from torchx_cubicml.predictors.roofline.offload import KEPT_LAYERS
from torchx_cubicml.predictors.roofline.recomputation import activation_bytes, working_bytes
from torchx_cubicml.predictors.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.training_layout import Array, TrainingLayout


MEMORY_PARTS = ("weights", "gradients", "optimizer", "gathered", "activations", "logits", "reserved")

_WEIGHT, _GRADIENT = 2.0, 4.0  # bytes per parameter: bf16 copy, fp32 gradient
_ADAM, _MASTER = 8.0, 4.0  # two moments; the fp32 weights beside a bf16 copy, which an fp32 training has as its weights
_LOGIT = 12.0  # bytes per token and word: bf16 logits, their fp32 copy and gradient
_RESERVED = 1e9  # the device's context, communication buffers


def memory_parts(layout: TrainingLayout, unknown: Constants = unknown_facts.MEDIANS) -> dict[str, Array]:
    """Return name of ``MEMORY_PARTS`` -> bytes at the peak of the fullest device, float64 ``[n]``; they add up.

    Args:
        layout: ``n`` trainings.
        unknown: values that stand for their unknown facts, as in ``unknown_facts.PRIORS``.
    """
    layout = completed(layout, unknown)
    gathered_each_time = layout.gathered_each_time
    relative_bytes = layout.width_bytes / 2.0
    with np.errstate(all="ignore"):
        on_device = 1.0 - layout.offloaded_params
        activations, logits = _activations(layout)
        # Two layers are unsharded at a time: the one in computation and the prefetched one. If it is unknown what is
        # sharded, the share is a probability of that.
        gathered = np.where(
            layout.unknown_sharding > 0.0,
            2.0 * gathered_each_time,
            np.minimum(2.0, gathered_each_time * layout.layers_per_stage),
        )
        of_adam = _ADAM + _MASTER * (2.0 - relative_bytes)
        return {
            "weights": _WEIGHT * relative_bytes * on_device * held_params(layout, gathered_each_time),
            "gradients": _GRADIENT * on_device * held_params(layout, layout.gradients_sharded),
            "optimizer": of_adam * (1.0 - layout.offloaded_optimizer) * held_states(layout),
            "gathered": _WEIGHT * relative_bytes * gathered * _gathered_params(layout),
            "activations": activations,
            "logits": logits,
            "reserved": np.full_like(layout.memory, _RESERVED),
        }


def _gathered_params(layout: TrainingLayout) -> Array:
    """Return the parameters of one layer that a rank has from others while it is whole."""
    dense = layout.layer_params * (1.0 - layout.expert_share) / layout.tp
    experts = layout.layer_params * layout.expert_share / (layout.ep * layout.etp)
    of_experts = expert_ranks(layout, layout.shard)
    return np.asarray(dense * (1.0 - 1.0 / layout.shard) + experts * (1.0 - 1.0 / of_experts))


def _activations(layout: TrainingLayout) -> tuple[Array, Array]:
    """Return activations and logits of the fullest stage: the first holds most micro batches, the last the logits."""
    of_block = activation_bytes(layout)
    block = of_block * layout.layers_per_stage
    working = working_bytes(layout)
    logits = _LOGIT * layout.tokens * layout.vocabulary / layout.tp
    first, last = block * layout.in_flight, block
    # What is offloaded leaves a few blocks of one micro batch on the device.
    kept = np.minimum(block, KEPT_LAYERS * of_block)
    first, last = (each + layout.offloaded_activations * (kept - each) + working for each in (first, last))
    last_is_fullest = last + logits > first
    return np.where(last_is_fullest, last, first), np.where(last_is_fullest, logits, 0.0)


# Parts with a common calibration factor -> prior standard deviation of its logarithm.
_GROUPS: dict[tuple[str, ...], float] = {
    ("weights", "gradients", "gathered"): 0.3,
    ("optimizer",): 0.3,
    ("activations",): 0.5,
    ("logits",): 0.5,
    ("reserved",): 0.7,
}
N_GROUPS = len(_GROUPS)
# After the factors: usable share of the memory, steepness of the limit per doubling, log odds of other failures.
_CENTRE = np.array([*[0.0] * N_GROUPS, np.log(0.92), np.log(6.0), -3.0])
_WIDTH = np.array([*_GROUPS.values(), 0.1, 0.7, 1.5])
_NOISE = 0.1  # log error of a peak up to which the loss is quadratic, beyond it linear
_STEPS = 100
_MOST_LOGIT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCalibration:
    """Calibrated constants of the memory formula (MAP estimates).

    Args:
        theta: logarithms of the factors on groups of parts, of the usable share and of the steepness; then the log odds
            of a failure for another reason. Float64 ``[n_groups + 3]``.
        unknown: values that stand for unknown facts, as in ``unknown_facts.PRIORS``.
    """

    theta: Array
    unknown: Constants = field(default_factory=lambda: unknown_facts.MEDIANS)

    @classmethod
    def default(cls) -> MemoryCalibration:
        """Return the prior medians."""
        return cls(theta=_CENTRE.copy())

    def pressure(self, layout: TrainingLayout) -> Array:
        """Return log2 of the peak over the usable memory, then of each group's part, float64 ``[n, 1 + n_groups]``."""
        with np.errstate(all="ignore"):
            shares = _shares(layout, self.unknown) * np.exp(self.theta[:N_GROUPS] - self.theta[N_GROUPS])
            return np.asarray(np.log2(np.maximum(np.column_stack([shares.sum(axis=1), shares]), 2.0**-20)))

    def log_odds(self, layout: TrainingLayout) -> Array:
        """Return log odds that a training runs, including other reasons of failure, float64 ``[n]``."""
        with np.errstate(all="ignore"):
            fits = _logit_to_fit(self.theta, _shares(layout, self.unknown))
            runs = np.exp(-np.logaddexp(0.0, -fits)) / (1.0 + np.exp(self.theta[-1]))
            return np.asarray(np.log(np.maximum(runs, 1e-12)) - np.log1p(-np.minimum(runs, 1.0 - 1e-12)))


def calibrate_memory(layout: TrainingLayout, *, ran: Array, certain: Array, peak_bytes: Array) -> MemoryCalibration:
    """Return the constants fitted on outcomes and peaks.

    Args:
        layout: ``n`` trainings, all covered; none at all is legal.
        ran: 1.0 where the training ran, float64 ``[n]``.
        certain: 1.0 where it is known to have failed for memory, float64 ``[n]``.
        peak_bytes: measured on the fullest device, NaN where unknown, float64 ``[n]``.
    """
    if not len(ran):
        return MemoryCalibration.default()
    with np.errstate(all="ignore"):
        is_known = np.asarray(np.isfinite(_shares(layout, unknown_facts.MEDIANS)).all(axis=1))
    if not is_known.all():  # a size that no training has tells nothing of the others
        kept = (each[is_known] for each in (ran, certain, peak_bytes))
        return calibrate_memory(layout.rows(is_known), **dict(zip(("ran", "certain", "peak_bytes"), kept, strict=True)))
    from scipy.optimize import minimize

    names = relevant(layout)
    priors = [unknown_facts.PRIORS[name] for name in names]
    centre = np.append(_CENTRE, np.log([median for median, _, _ in priors]))
    width = np.append(_WIDTH, [deviation for _, deviation, _ in priors])
    peaks = np.log(peak_bytes / layout.memory)
    has_peak = np.isfinite(peaks)

    @lru_cache(maxsize=2)  # most differences are in the other constants
    def shares_with(logarithms: tuple[float, ...]) -> Array:
        return _shares(layout, _values(names, logarithms))

    def negative_log_posterior(vector: Array) -> float:
        theta, shares = vector[: len(_CENTRE)], shares_with(tuple(vector[len(_CENTRE) :].tolist()))
        deviations = (vector - centre) / width
        errors = np.log(shares[has_peak] @ np.exp(theta[:N_GROUPS])) - peaks[has_peak]
        robust_loss = (np.sqrt(1.0 + (errors / _NOISE) ** 2) - 1.0).sum()
        return float(0.5 * deviations @ deviations + robust_loss - _log_likelihood(theta, shares, ran, certain))

    solver: Callable[..., _Solution] = minimize
    with one_thread(), np.errstate(all="ignore"):  # sizes of any magnitude
        found = solver(negative_log_posterior, centre, method="L-BFGS-B", options={"maxiter": _STEPS}).x
    return MemoryCalibration(theta=found[: len(_CENTRE)], unknown=_values(names, tuple(found[len(_CENTRE) :].tolist())))


def _values(names: Sequence[str], logarithms: Sequence[float]) -> Constants:
    return {**unknown_facts.MEDIANS, **dict(zip(names, np.exp(logarithms).tolist(), strict=True))}


class _Solution(Protocol):
    x: Array


def _shares(layout: TrainingLayout, unknown: Constants) -> Array:
    parts = memory_parts(layout, unknown)
    groups = [sum((parts[name] for name in names), np.zeros(len(layout.memory))) for names in _GROUPS]
    return np.column_stack(groups) / layout.memory[:, None]


def _logit_to_fit(theta: Array, shares: Array) -> Array:
    doublings = np.log2(np.maximum(shares @ np.exp(theta[:N_GROUPS]), 1e-9)) - theta[N_GROUPS] / np.log(2.0)
    return np.asarray(np.clip(-np.exp(theta[N_GROUPS + 1]) * doublings, -_MOST_LOGIT, _MOST_LOGIT))


def _log_likelihood(theta: Array, shares: Array, ran: Array, certain: Array) -> float:
    fits = _logit_to_fit(theta, shares)
    runs = -np.logaddexp(0.0, -fits) - np.log1p(np.exp(theta[-1]))
    unknown_failure = np.log(-np.expm1(np.minimum(runs, -1e-12)))
    failure = np.where(certain > 0.0, -np.logaddexp(0.0, fits), unknown_failure)
    return float(np.where(ran > 0.0, runs, failure).sum())
