"""Free constants of the roofline formulas, with log-normal priors: a default and a log standard deviation each.

All are positive. Bandwidths are shares of the value in the hardware's data sheet, so that a calibration on one cluster
carries over to another device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torchx_cubicml.predictors.roofline import unknown_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

Constants: TypeAlias = "Mapping[str, float]"

# name -> (default, standard deviation of its logarithm, in words)
PRIORS: dict[str, tuple[float, float, str]] = {
    "gemm_efficiency": (0.6, 0.3, "share of the peak that large matrix products reach on an H100"),
    "attention_efficiency": (0.8, 0.4, "share of that that fused attention reaches"),
    "attention_lag": (0.3, 0.7, "power of the peak, above that of an A100, by which that share falls"),
    "elementwise": (3.0, 0.5, "transfers of each activation kept for backward through memory, outside products"),
    "half_tokens": (300.0, 1.0, "tokens per micro batch at which they reach half of it"),
    "half_width": (150.0, 1.0, "width per tensor-parallel rank at which they reach half of it"),
    "launch_s": (1.5e-3, 1.0, "least time of a layer, forward and backward: the host issues its kernels"),
    "micro_batch_s": (1e-3, 1.0, "least time of a micro batch besides"),
    "link_tp": (0.8, 0.5, "share of the node's link that tensor-parallel collectives reach"),
    "link_tp_latency_s": (30e-6, 1.0, "of one such collective, times log2 of the ranks"),
    "network_tp": (0.8, 0.5, "share of the network's bandwidth that they reach across nodes"),
    "network_tp_latency_s": (150e-6, 1.0, "of one such collective"),
    "network_tp_hops": (0.5, 0.5, "power of the nodes by which that latency grows"),
    "tp_contention_s": (
        2e-5,
        2.0,
        "more per layer and rank where pipeline and tensor parallelism meet over several nodes",
    ),
    "link_ep": (0.8, 0.5, "share of the node's link that the exchange of experts reaches"),
    "network_ep": (0.8, 0.5, "share of the network's bandwidth that it reaches across nodes"),
    "grouped_gemm": (1.0, 0.3, "speed of grouped matrix products relative to plain ones of as many tokens"),
    "expert_imbalance": (0.1, 1.0, "how much fuller than the mean the fullest of very many expert-parallel ranks is"),
    "pp_bandwidth": (0.4, 0.7, "share of the network (or link) that point-to-point transfers reach"),
    "pp_latency_s": (0.3e-3, 1.0, "of one micro batch between two stages"),
    "unbalance": (0.3, 1.0, "how far stages are cut by layers alone (1) and not by time (0)"),
    "link_dp": (0.5, 0.5, "share of the node's link that data-parallel collectives reach"),
    "network_dp": (0.5, 0.5, "share of the network's bandwidth that they reach"),
    "network_dp_rails": (0.5, 0.5, "power of the ranks per node by which that bandwidth grows"),
    "dp_latency_s": (0.2e-3, 1.0, "per layer and step"),
    "network_dp_hops": (0.3, 0.5, "power of the nodes by which that latency grows"),
    "overlap": (1.0, 0.7, "share of the backward pass under which they hide"),
    "memory_bandwidth": (0.45, 0.7, "share of the memory's bandwidth that the optimizer reaches"),
    "step_s": (5e-3, 1.0, "per step, whatever the config"),
    "low_bit": (0.6, 0.3, "share of fp8's advantage that is left"),
    "compiled": (1.1, 0.2, "speed of compiled kernels relative to others"),
    "plain_attention": (1.0, 0.5, "passes of the scores of attention through memory, in sixteens"),
    "host_link": (0.6, 0.5, "share of the link to the host that offloading reaches"),
    "host_adam_s": (1e-9, 1.0, "per parameter that the host's optimizer updates: 28 bytes of its memory per rank"),
    **unknown_facts.PRIORS,
}
# Shares of a data sheet's value. One above 1 is implausible, though not impossible: data sheets differ in what they
# count. Tensor parallelism across nodes uses the network cards of all its ranks, so ``network_tp`` is no such share.
SHARES = (
    *("gemm_efficiency", "link_tp", "link_dp", "link_ep", "network_dp", "network_ep", "pp_bandwidth"),
    *("memory_bandwidth", "host_link"),
)
ABOVE_SHEET = 0.1  # standard deviation of the logarithm of a share, above 1
NAMES = tuple(PRIORS)
CENTRE: NDArray[np.float64] = np.log([default for default, _, _ in PRIORS.values()])
WIDTH: NDArray[np.float64] = np.array([width for _, width, _ in PRIORS.values()])
DEFAULTS: Constants = {name: default for name, (default, _, _) in PRIORS.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConstantsPrior:
    """Log-normal priors of the constants.

    Args:
        medians: name of ``NAMES`` -> constant before anything is measured.
        width: standard deviations of the logarithms, in the order of ``NAMES``, float64 ``[n_constants]``.
    """

    medians: Constants
    width: NDArray[np.float64]

    @property
    def centre(self) -> NDArray[np.float64]:
        """Logarithms of the medians, in the order of ``NAMES``, float64 ``[n_constants]``."""
        return np.log([self.medians[name] for name in NAMES])


HAND_SET = ConstantsPrior(medians=DEFAULTS, width=WIDTH)
"""Priors of ``PRIORS``, for devices that no public source covers."""


def constants_of(logarithms: NDArray[np.float64]) -> Constants:
    """Return the constants from their logarithms in the order of ``NAMES``."""
    return dict(zip(NAMES, np.exp(logarithms).tolist(), strict=True))
