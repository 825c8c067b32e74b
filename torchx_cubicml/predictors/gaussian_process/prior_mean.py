"""What is usual of throughput before anything is measured: larger micro batches waste less, and memory buys speed.

A layer that is sharded less communicates less, one that keeps its activations computes less: who offers a choice that
takes more memory offers it because it is faster. Good to search by; nothing that is claimed may lean on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from torchx_cubicml.predictors.memory.dominance import BATCH
from torchx_cubicml.predictors.memory.usage_model import memory_rank_of_indicators, memory_rank_of_layers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.features.columns import Columns
    from torchx_cubicml.predictors.gaussian_process.points import ConfigEncoder, EncodedConfigs

_PER_BATCH = 0.3  # log throughput per log micro batch
_PER_HUNGER = 0.1  # log throughput per step of hunger, of all layers together
_BUY_SPEED = frozenset({"sharding_strategy", "activation_checkpointing"})
USUAL = _BUY_SPEED | {BATCH}
"""Parameters that something usual is known of."""


@dataclass(frozen=True, slots=True)
class PriorMean:
    """Logarithms of throughput that are usual, up to a constant.

    Args:
        places: how rows become points.
        indicators: what each category adds, ``[n_indicators]``.
        shares: what each choice of a layered parameter adds where all layers have it, ``[n_codes]`` for each of them.
    """

    places: ConfigEncoder
    indicators: NDArray[np.float64]
    shares: tuple[NDArray[np.float64], ...]

    @classmethod
    def of(cls, places: ConfigEncoder, columns: Columns) -> Self:
        """Return what is usual of the points of ``places``, ``columns`` being those of the rows."""
        buys = [places.category_names[fact] in _BUY_SPEED for fact in places.category_of]
        layered = [
            (each.name in _BUY_SPEED, memory_rank_of_layers(places, columns, at))
            for at, each in enumerate(places.layered)
        ]
        return cls(
            places,
            _PER_HUNGER * np.where(buys, memory_rank_of_indicators(places, columns), 0.0),
            tuple(_PER_HUNGER * hunger * known for known, hunger in layered),
        )

    def at(self, points: EncodedConfigs) -> NDArray[np.float64]:
        """Return it for ``points``, ``[n]``."""
        total = np.asarray(points.categories @ self.indicators, dtype=np.float64)
        for added, shares in zip(self.shares, points.shares, strict=True):
            total = total + shares @ added
        for number, values in zip(self.places.numbers, points.numbers.T, strict=True):
            if number.name == BATCH:
                total = total + _PER_BATCH * np.log(np.maximum(number.unscaled(values), 1e-300))
        return total
