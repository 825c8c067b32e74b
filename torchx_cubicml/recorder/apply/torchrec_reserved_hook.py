"""TorchRec reservation hook: sets the share of memory that TorchRec's planner keeps free of embedding tables."""

from __future__ import annotations

from torchx_cubicml.recorder.apply.torchrec_hook import TorchRecHook


class TorchRecReservedHook(TorchRecHook):
    """Hook of the reserved share."""

    name = "torchrec_reserved"
    sets = "share of memory that TorchRec's planner keeps free"
    values = ()
    offered = ()
    takes = "numbers from 0 to below 1"
    default_share = 0.15  # TorchRec's
    per = ""
    fact = "reserved_share"


hook = TorchRecReservedHook
