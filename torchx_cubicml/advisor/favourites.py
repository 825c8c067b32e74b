"""What formulas of step time favour where they cover a workload of which nothing was measured yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.advisor.acquisition import weighed
from torchx_cubicml.advisor.apart import pick_apart
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.searchers.initial_design import DesignPoint
from torchx_cubicml.space.encoding import config_at, drawn_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torchx_cubicml.advisor.outlook import Outlook
    from torchx_cubicml.space import SearchSpace

_MOST_LISTED = 2000  # configs of which the fastest are looked for; of a larger space, as many drawn ones


def favourites(outlook: Outlook, *, count: int, taken: Sequence[DesignPoint]) -> list[DesignPoint]:
    """Return up to ``count`` configs that the formulas, before any calibration, find fastest among what likely fits.

    They differ from one another and from ``taken``. None where a workload, or a value per layer, is not covered.
    """
    space = outlook.space
    if any(dimension.positions for dimension in space.dimensions):
        return []
    try:
        vectors = _candidates(space)
    except SpaceError:  # nothing legal was found
        return []
    speeds = Roofline().tokens_per_second(outlook.rows.at(vectors))
    covered = np.isfinite(speeds)
    if not covered.any():
        return []
    scores = weighed(np.log(speeds[covered]), outlook.forecast_at(vectors[covered]).fits)
    configs = [config_at(space, vector) for vector in vectors[covered]]
    picked = pick_apart(space, configs, scores, count=count, taken=[point.config for point in taken])
    return [DesignPoint(config=config, why="among the fastest by formulas of step time") for config in picked]


def _candidates(space: SearchSpace) -> NDArray[np.intp]:
    """Return legal rows of choice indices, all of a small space, ``[n, n_dimensions]``."""
    if space.size(limit=_MOST_LISTED + 1) > _MOST_LISTED:
        return drawn_rows(space, _MOST_LISTED, rng=np.random.default_rng(0))
    listed = list(space.legal.choices.vectors())
    return np.array(listed, dtype=np.intp).reshape(len(listed), len(space.dimensions))
