"""Predictors (surrogates) of throughput: the Protocol is in ``base``, and ``PREDICTORS`` maps names to methods."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torchx_cubicml.predictors.base import Prediction, Predictor
from torchx_cubicml.predictors.boosting import Boosting
from torchx_cubicml.predictors.gaussian_process.process import GaussianProcess
from torchx_cubicml.predictors.greybox import Greybox
from torchx_cubicml.predictors.memory.cross_workload import CrossWorkloadFeasibility
from torchx_cubicml.predictors.ranking.mlp import RankingMLP

if TYPE_CHECKING:
    from collections.abc import Callable

PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "ranking_mlp": RankingMLP,
    "boosting": Boosting,
    "roofline": partial(Greybox, n_trees=0),
    "greybox": Greybox,
    "gaussian_process": GaussianProcess,
}
"""Name of a method -> factory with its default settings."""

DEFAULT_PREDICTOR = "greybox"
ENSEMBLE = (DEFAULT_PREDICTOR, "boosting", "roofline")
"""Methods whose ensemble proposes launches while a workload has few measurements: their errors are seldom alike."""

__all__ = ["DEFAULT_PREDICTOR", "ENSEMBLE", "PREDICTORS", "CrossWorkloadFeasibility", "Prediction", "Predictor"]
