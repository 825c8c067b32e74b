"""CubicML's outer loop (arXiv 2409.04585, section 3): suggest, launch, record, refit, round after round.

The store and the scheduler hold the truth; a tune that dies goes on from them.

``request`` checks what the user asks. ``lease`` decides which process leads a tune. ``trials`` and ``journal`` read the
store, and ``state`` holds both for one tune. ``resume`` takes over the launches of a process that died. ``plan`` chooses
the next launch, ``foresight`` before a slot is free. ``launches`` submits and polls; ``launch_state`` says how a launch
ended. ``polling`` reads new objects and retries. ``stopping`` decides when to stop early or to abort. ``progress`` is
what a display shows. ``loop`` is the loop itself.
"""

from __future__ import annotations

from torchx_cubicml.tuner.budget import Budget
from torchx_cubicml.tuner.loop import tune
from torchx_cubicml.tuner.progress import Begun, Ended, InFlight, Launching, Step, TuneResult, Waiting
from torchx_cubicml.tuner.request import Prepared, TuneRequest, prepare

__all__ = [
    "Begun",
    "Budget",
    "Ended",
    "InFlight",
    "Launching",
    "Prepared",
    "Step",
    "TuneRequest",
    "TuneResult",
    "Waiting",
    "prepare",
    "tune",
]
