"""CubicML's outer loop (arXiv 2409.04585, section 3): suggest, launch, record, refit, round after round.

All state is in the store and on the scheduler, so a tune whose process dies can be resumed.

``request`` checks the user's request. ``lease`` decides which process leads a tune. ``trials`` and ``journal`` read the
store, and ``state`` holds both for one tune. ``resume`` takes over the launches of a dead process. ``plan`` chooses the
next launch, ``certain_failures`` says what would fail again, and ``prefetch`` computes a launch before a slot is free.
``launches`` submits and polls. ``launch_state`` holds the state of one launch. ``polling`` reads new objects and
retries. ``stopping`` holds the early-stopping and abort rules. ``sharing`` divides a host between launches.
``progress`` defines the steps that a display shows. ``loop`` is the loop itself.
"""

from __future__ import annotations

from torchx_cubicml.tuner.budget import Budget
from torchx_cubicml.tuner.loop import tune
from torchx_cubicml.tuner.progress import Begun, Ended, InFlight, Launching, Notice, Step, TuneResult, Waiting
from torchx_cubicml.tuner.request import Prepared, TuneRequest, prepare

__all__ = [
    "Begun",
    "Budget",
    "Ended",
    "InFlight",
    "Launching",
    "Notice",
    "Prepared",
    "Step",
    "TuneRequest",
    "TuneResult",
    "Waiting",
    "prepare",
    "tune",
]
