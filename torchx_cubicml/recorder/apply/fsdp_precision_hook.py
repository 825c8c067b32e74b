"""FSDP precision hook: sets the number format in which each repeated layer computes (mixed precision of FSDP).

It wraps the same functions as the hook for the sharding strategy. Each changes an argument of its own, so a script can
have both, and one of them may refuse.
"""

from __future__ import annotations

from torchx_cubicml.recorder.apply.fsdp_hook import FsdpHook
from torchx_cubicml.recorder.apply.fsdp_precision_calls import Fsdp1Precision, Fsdp2Precision


class FsdpPrecisionHook(FsdpHook):
    """Hook around the wrapping functions of FSDP that sets ``mixed_precision`` or ``mp_policy``."""

    name = "fsdp_precision"
    kinds = (Fsdp1Precision(), Fsdp2Precision())


hook = FsdpPrecisionHook
