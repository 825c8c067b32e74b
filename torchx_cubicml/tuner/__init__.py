"""CubicML's outer loop (arXiv 2409.04585, section 3): suggest, launch, record, refit, round after round.

``request`` checks what the user asks, ``plan`` says what to launch next, ``launching`` makes one launch, and ``tuner``
is the loop.
"""

from __future__ import annotations

from torchx_cubicml.tuner.request import Prepared, TuneRequest, prepare
from torchx_cubicml.tuner.tuner import Ended, Launching, TuneResult, tune

__all__ = ["Ended", "Launching", "Prepared", "TuneRequest", "TuneResult", "prepare", "tune"]
