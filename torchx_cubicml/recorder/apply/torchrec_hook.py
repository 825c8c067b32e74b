"""TorchRec hook: sets the sharding of each embedding table in front of TorchRec's planner."""

from __future__ import annotations

import functools

from torchx_cubicml.recorder.apply.torchrec_planner import PlannerHook
from torchx_cubicml.recorder.apply.torchrec_request import SHARDING

hook = functools.partial(PlannerHook, SHARDING)
