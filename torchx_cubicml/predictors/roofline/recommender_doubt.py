"""Doubt of a recommender's predicted step time that the priors of the constants leave, by the delta method."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.recommender_constants import RECOMMENDER_NAMES
from torchx_cubicml.predictors.roofline.recommender_time import recommender_step_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.roofline.constants import Constants
    from torchx_cubicml.predictors.roofline.recommender_layout import RecommenderLayout

_STEP = 0.1  # of a logarithm, in the differences that carry the width of the constants over to a step


def recommender_slopes(
    layout: RecommenderLayout, constants: Constants
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the logarithm of the seconds of a step, ``[n]``, and its derivatives by those of the constants.

    The derivatives are float64 ``[n_constants, n]``, in the order of ``RECOMMENDER_NAMES``.

    Args:
        layout: ``n`` trainings; those that are not covered are meaningless.
        constants: as in ``RECOMMENDER_PRIORS``.
    """
    middle = _log_seconds(layout, constants)
    raised = [{**constants, name: constants[name] * float(np.exp(_STEP))} for name in RECOMMENDER_NAMES]
    return middle, np.array([(_log_seconds(layout, each) - middle) / _STEP for each in raised])


def _log_seconds(layout: RecommenderLayout, constants: Constants) -> NDArray[np.float64]:
    return np.asarray(np.log(np.sum(list(recommender_step_time(layout, constants).values()), axis=0)))
