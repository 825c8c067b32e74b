"""Smooth versions of a maximum and of an excess, so that a calibration sees no kinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torchx_cubicml.predictors.roofline.training_layout import Array


def smooth_maximum(left: Array, right: Array) -> Array:
    """Return a smooth maximum of two values: a fifth more than either where they are equal."""
    left, right = left * left, right * right
    return np.asarray(np.sqrt(np.sqrt(left * left + right * right)))


def smooth_excess(seconds: Array, hidden: Array) -> Array:
    """Return a smooth ``max(seconds - hidden, 0)``, which is always positive."""
    excess = seconds - hidden
    return np.asarray(0.5 * (excess + np.sqrt(excess**2 + (0.2 * seconds) ** 2)))
