"""TorchRec reservation hook: sets the share of memory that TorchRec's planner keeps free of embedding tables."""

from __future__ import annotations

import functools

from torchx_cubicml.recorder.apply.torchrec_planner import PlannerHook
from torchx_cubicml.recorder.apply.torchrec_request import SHARE

hook = functools.partial(PlannerHook, SHARE)
