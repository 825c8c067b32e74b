"""Doubt of a predicted step time that the priors of the formulas' constants leave, by the delta method."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.constants import constants_of
from torchx_cubicml.predictors.roofline.step_time import step_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.roofline.constants import ConstantsPrior
    from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout

_STEP = 0.1  # of a logarithm, in the differences that carry the width of the constants over to a step


def log_step_seconds(layout: TrainingLayout, prior: ConstantsPrior) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the logarithm of the seconds of a step, and its deviation by that of the constants, ``[n]`` each."""
    logarithm, slopes = step_slopes(layout, prior)
    return logarithm, np.asarray(np.sqrt(np.square(slopes * prior.width[:, None]).sum(axis=0)))


def step_slopes(layout: TrainingLayout, prior: ConstantsPrior) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the logarithm of the seconds of a step, ``[n]``, and its derivatives by those of the constants.

    The derivatives are float64 ``[n_constants, n]``. Two configs share the constants, so the doubt of their ratio is by
    the difference of their derivatives.
    """
    centre = prior.centre
    logarithm = np.log(step_time(layout, constants_of(centre)).total())
    slopes = [
        (np.log(step_time(layout, constants_of(centre + step)).total()) - logarithm) / _STEP
        for step in _STEP * np.eye(len(centre))
    ]
    return logarithm, np.array(slopes)
