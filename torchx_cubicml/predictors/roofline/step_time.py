"""Analytic step time of a transformer training, part by part.

The costs of layers, collectives and pipeline bubble follow Megatron-LM (Narayanan et al., arXiv 2104.04473;
Korthikanti et al., arXiv 2205.05198). The overlap of computation and communication streams follows MAD-Max
(arXiv 2310.02784). The efficiencies of matrix products and the latency terms follow Kundu et al. (arXiv 2407.14645).
Each quantity that is in no data sheet is a free constant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.completed_layout import completed
from torchx_cubicml.predictors.roofline.computation import COMPUTE_PARTS, compute, compute_parts
from torchx_cubicml.predictors.roofline.data_parallel import gathering, held_params, held_states, optimizer, reduction
from torchx_cubicml.predictors.roofline.mixture_of_experts import expert_parallel
from torchx_cubicml.predictors.roofline.model_parallel import (
    context_parallel,
    pipeline_transfer,
    tensor_parallel,
    tp_contention,
)
from torchx_cubicml.predictors.roofline.offload import exposed_transfers, host_optimizer
from torchx_cubicml.predictors.roofline.recomputation import activation_bytes
from torchx_cubicml.predictors.roofline.smooth import smooth_maximum

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.training_layout import Array, TrainingLayout

PARTS = (
    "compute",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline_parallel",
    "data_parallel",
    "bubble",
    "optimizer",
    "offload",
    "overhead",
)

EXPLAINED_PARTS = (*COMPUTE_PARTS, *PARTS[1:])
"""Parts with computation taken apart, for people; the predictors learn from ``PARTS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Parts of a step in seconds, float64 ``[n]`` each.

    Args:
        steady: name of a part -> seconds per step, for the parts that do not depend on stalls of the pipeline.
        micro_batch: seconds of one micro batch on the slowest pipeline stage, without a stall.
        through: seconds of one micro batch through all stages.
        rounds: micro batches per step.
        stages: of the pipeline.
        bubble: share of the plain bubble that remains with the schedule.
        hidden: name of a part -> seconds per step of communication under computation, which no part counts.
    """

    steady: dict[str, Array]
    micro_batch: Array
    through: Array
    rounds: Array
    stages: Array
    bubble: Array
    hidden: dict[str, Array] = field(default_factory=dict)

    def parts(self, stall_s: float = 0.0) -> dict[str, Array]:
        """Return name of ``PARTS`` -> seconds per step; they add up to the step.

        Args:
            stall_s: seconds that a pipeline of very many stages loses per micro batch; see ``SlowMode``.
        """
        stalled, bubble = self._pipeline(stall_s)
        stalls = self.rounds * (stalled - self.micro_batch)
        parts = {**self.steady, "bubble": bubble}
        return {name: parts[name] + stalls if name == "pipeline_parallel" else parts[name] for name in PARTS}

    def total(self, stall_s: float = 0.0) -> Array:
        """Return seconds per step."""
        stalled, bubble = self._pipeline(stall_s)
        return np.asarray(sum(self.steady.values()) + bubble + self.rounds * (stalled - self.micro_batch))

    def _pipeline(self, stall_s: float) -> tuple[Array, Array]:
        lost = stall_s * (1.0 - 1.0 / self.stages)
        # A stall partly overlaps with the micro batch's own time.
        stalled = np.sqrt(self.micro_batch**2 + lost**2 + self.micro_batch * lost)
        bubble = self.bubble * np.maximum(np.minimum(self.through, self.stages * stalled) - stalled, 0.0)
        return stalled, bubble


def step_time(layout: TrainingLayout, constants: Constants) -> StepTime:
    """Return the time of one step.

    Args:
        layout: ``n`` trainings; the results of rows that are not covered are meaningless or NaN.
        constants: as in ``PRIORS``.
    """
    layout = completed(layout, constants)
    with np.errstate(all="ignore"):
        stage, whole = compute(layout, constants)
        per_block = stage / layout.layers_per_stage
        of_layer = {
            "tensor_parallel": tensor_parallel(layout, constants, per_block),
            "context_parallel": context_parallel(layout, constants),
            "expert_parallel": expert_parallel(layout, constants, per_block),
        }
        per_layer = {name: exposed for name, (_, exposed) in of_layer.items()}
        layers, rounds = layout.layers_per_stage, layout.rounds
        unfloored = stage + layers * sum(per_layer.values())
        # The host issues kernels while the device works: the longer of the two counts.
        floored = smooth_maximum(unfloored, layers * constants["launch_s"] + constants["micro_batch_s"])
        transfer = pipeline_transfer(layout, constants)
        contention = layers * tp_contention(layout, constants)
        all_gathering, exposed = gathering(layout, constants, stage)
        steady = {name: rounds * layers * value for name, value in per_layer.items()}
        steady["tensor_parallel"] += rounds * contention
        steady["compute"] = rounds * stage
        steady["overhead"] = rounds * (floored - unfloored) + constants["step_s"]
        steady["pipeline_parallel"] = rounds * transfer
        steady["data_parallel"] = rounds * exposed
        reducing, exposed_reducing = reduction(layout, constants, stage, all_gathering - exposed)
        steady["data_parallel"] += exposed_reducing
        steady["optimizer"] = optimizer(layout, constants)
        kept = layers * activation_bytes(layout)
        returning = exposed_transfers(layout, constants, activations=kept, params=held_params(layout, 1.0), stage=stage)
        steady["offload"] = rounds * returning + host_optimizer(layout, constants, held_states(layout))
        hidden = {name: rounds * layers * (whole_s - exposed_s) for name, (whole_s, exposed_s) in of_layer.items()}
        hidden["data_parallel"] = rounds * (all_gathering - exposed) + np.maximum(reducing - exposed_reducing, 0.0)
        return StepTime(
            steady=steady,
            micro_batch=floored + transfer + contention + exposed + returning,
            through=whole + layout.layers * sum(per_layer.values()),
            rounds=rounds,
            stages=layout.pp,
            bubble=layout.bubble,
            hidden=hidden,
        )


def explained_parts(layout: TrainingLayout, constants: Constants) -> dict[str, Array]:
    """Return name of ``EXPLAINED_PARTS`` -> seconds per step, float64 ``[n]``; see ``step_time``."""
    parts = step_time(layout, constants).parts()
    layout = completed(layout, constants)
    with np.errstate(all="ignore"):
        fine = {name: layout.rounds * seconds for name, seconds in compute_parts(layout, constants).items()}
    return {name: {**parts, **fine}[name] for name in EXPLAINED_PARTS}
