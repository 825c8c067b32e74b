"""CubicML's outer loop (arXiv 2409.04585, section 3): suggest, launch, record, refit, round after round.

The truth is in the store and on the scheduler. ``request`` checks what the user asks; ``lease`` says which tune a
process leads; ``trials`` and ``journal`` are what the store holds, ``state`` both for one tune; ``resume`` takes over
what a process that died has left, ``outage`` asks a store again; ``plan`` says what to launch next, ``foresight``
before a slot is free; ``flights`` launches and watches, with ``patience``; ``endings`` says how a launch ended,
``glance`` what is shown; ``failures`` and ``hopeless`` say when to stop; ``tuner`` is the loop.
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
