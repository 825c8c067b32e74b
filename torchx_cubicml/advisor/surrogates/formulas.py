"""Where the formulas of step time cover a workload, they say how its configs compare before hardly any was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.predictors import PREDICTORS
from torchx_cubicml.predictors.features.history import training_row
from torchx_cubicml.predictors.roofline import Roofline

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from torchx_cubicml.predictors import Predictor
    from torchx_cubicml.predictors.features.history import History
    from torchx_cubicml.records.trial import Trial


def cover(trials: Iterable[Trial]) -> bool:
    """Return whether the formulas tell the configs of ``trials`` apart: of one workload, measured ones count.

    There must be some, each naming all that a transformer's step time depends on, and none with a value per layer.
    """
    measured = [trial for trial in trials if trial.measurement is not None]
    if not measured or any(isinstance(value, tuple) for trial in measured for value in trial.config.values()):
        return False
    taken = next(iter(Roofline().memory([training_row(trial) for trial in measured]).values()))
    return bool((taken > 0).all())


def calibrated(own: History, *, rng: np.random.Generator) -> Predictor:
    """Return the formulas, calibrated on a workload's own trials."""
    return PREDICTORS["roofline"]().fit(own, rng=rng)
