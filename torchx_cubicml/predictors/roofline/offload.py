"""Offload to the host's memory: its share of each state, and the seconds that transfers and the host's optimizer take.

The optimizer's states and its step move to the host: gradients travel there and parameters back, 2 bytes each per held
parameter and step (ZeRO-Offload, Ren et al., arXiv 2101.06840, section 3). FSDP's offload keeps parameters and
gradients there as well, and brings a rank's part of the parameters for each gathering (ZeRO-Infinity, Rajbhandari et
al., arXiv 2104.07857). Offloaded activations leave in the forward pass and return in the backward pass. Computation
hides both kinds of transfer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.smooth import smooth_excess

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.training_layout import Array, TrainingLayout

KEPT_LAYERS = 2.0  # whose activations stay on the device: the one in computation and the one in transfer


def host_optimizer(layout: TrainingLayout, constants: Constants, held: Array) -> Array:
    """Return seconds per step of gradients to the host, the step there, and parameters back; nothing hides them.

    Args:
        layout: of ``n`` trainings.
        constants: as in ``PRIORS``.
        held: parameters whose states a rank holds, float64 ``[n]``.
    """
    transfer = layout.width_bytes * (2.0 - layout.offloaded_params) / host_bandwidth(layout, constants)
    return np.asarray(layout.offloaded_optimizer * held * (transfer + constants["host_adam_s"]))


def exposed_transfers(
    layout: TrainingLayout, constants: Constants, *, activations: Array, params: Array, stage: Array
) -> Array:
    """Return seconds per micro batch of activations and parameters on their way that computation does not hide.

    Args:
        layout: of ``n`` trainings.
        constants: as in ``PRIORS``.
        activations: bytes of all activations of a stage for one micro batch, float64 ``[n]``.
        params: of a stage that a rank holds where they are sharded, float64 ``[n]``.
        stage: seconds of computation per micro batch, float64 ``[n]``.
    """
    gatherings = 2.0 * layout.gathered_each_time + layout.gathered_once
    moved = layout.offloaded_activations * 2.0 * activations
    moved = moved + layout.offloaded_params * gatherings * layout.width_bytes * params
    exposed = smooth_excess(moved / host_bandwidth(layout, constants), stage)
    return np.where(moved > 0.0, exposed, 0.0)


def host_bandwidth(layout: TrainingLayout, constants: Constants) -> Array:
    """Return the bytes per second that transfers between a device and its host reach, one direction."""
    return np.asarray(layout.host_link * constants["host_link"])
