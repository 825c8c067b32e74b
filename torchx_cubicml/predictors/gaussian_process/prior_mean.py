"""Optimistic prior mean for spaces with per-layer parameters: larger micro batches, and more memory, are faster.

A layer that is sharded less communicates less, and one that keeps its activations computes less. A search space offers
a choice that takes more memory because it is faster. The prior mean guides the search; no claimed gain may rely on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.memory.memory_rank import BATCH
from torchx_cubicml.predictors.memory.usage_model import memory_rank_of_indicators, memory_rank_of_layers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.columns import Columns
    from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder, EncodedConfigs

_PER_BATCH = 0.3  # log throughput per log micro batch
_PER_MEMORY_RANK = 0.1  # log throughput per memory rank, of all layers together
_MEMORY_FOR_SPEED = frozenset({"sharding_strategy", "activation_checkpointing"})
PRIOR_MEAN_PARAMETERS = _MEMORY_FOR_SPEED | {BATCH}
"""Parameters that the prior mean depends on."""


@dataclass(frozen=True, slots=True)
class PriorMean:
    """Prior mean of the logarithm of throughput, up to a constant.

    Args:
        places: encoder of rows as points.
        indicators: term of each category, ``[n_indicators]``.
        shares: term of each choice of a layered parameter where all layers have it, ``[n_codes]`` per parameter.
    """

    places: ConfigEncoder
    indicators: NDArray[np.float64]
    shares: tuple[NDArray[np.float64], ...]

    @classmethod
    def of(cls, places: ConfigEncoder, columns: Columns) -> Self:
        """Return the prior mean for the points of ``places``; ``columns`` are those of the rows."""
        is_faster = [places.category_names[fact] in _MEMORY_FOR_SPEED for fact in places.category_of]
        layered = [
            (each.name in _MEMORY_FOR_SPEED, memory_rank_of_layers(places, columns, at))
            for at, each in enumerate(places.layered)
        ]
        return cls(
            places,
            _PER_MEMORY_RANK * np.where(is_faster, memory_rank_of_indicators(places, columns), 0.0),
            tuple(_PER_MEMORY_RANK * memory_rank * known for known, memory_rank in layered),
        )

    def at(self, points: EncodedConfigs) -> NDArray[np.float64]:
        """Return the prior mean at ``points``, ``[n]``."""
        total = np.asarray(points.categories @ self.indicators, dtype=np.float64)
        for added, shares in zip(self.shares, points.shares, strict=True):
            total = total + shares @ added
        for number, values in zip(self.places.numbers, points.numbers.T, strict=True):
            if number.name == BATCH:
                total = total + _PER_BATCH * np.log(np.maximum(number.unscaled(values), 1e-300))
        return total
