"""Trials in, suggestions out: what to launch next to learn most, and what is known to be best.

Pure and without state: everything is rebuilt from the trials each time, so a killed process loses nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.acquisition import Acquisition, pick_apart
from torchx_cubicml.noise import Belief, repeat_noise
from torchx_cubicml.outlook import Outlook
from torchx_cubicml.searchers.base import identity
from torchx_cubicml.searchers.design import first_batch
from torchx_cubicml.searchers.evolution import Evolution
from torchx_cubicml.searchers.exhaustive import Exhaustive

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.searchers import Searcher
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.trial import Config, Trial, Value, Workload

__all__ = ["Suggestion", "best_known", "repeat_noise", "suggest"]
