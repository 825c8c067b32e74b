"""Every legal config of a space that is small enough to list."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import batched, islice
from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.searchers.base import Ranking

if TYPE_CHECKING:
    import numpy as np

    from torchx_cubicml.searchers.base import Score
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.trial import Config
