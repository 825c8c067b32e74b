"""TorchRec kernel hook: sets the kernel of each embedding table in front of TorchRec's planner."""

from __future__ import annotations

from torchx_cubicml.recorder.apply.torchrec_hook import TorchRecHook
from torchx_cubicml.records.standard_names import EMBEDDING_KERNELS, LEFT_TO_PLANNER


class TorchRecKernelHook(TorchRecHook):
    """Hook of the kernels."""

    name = "torchrec_kernel"
    sets = "kernel of each embedding table"
    values = ((LEFT_TO_PLANNER, *EMBEDDING_KERNELS),)
    offered = ()
    fact = "embedding_kernel"


hook = TorchRecKernelHook
