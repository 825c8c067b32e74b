"""Roofline (analytic) model of trainings, calibrated on history: step time and memory, part by part."""

from __future__ import annotations

from torchx_cubicml.predictors.features.device_specs import Hardware, find_hardware
from torchx_cubicml.predictors.roofline.estimate import RooflineEstimate
from torchx_cubicml.predictors.roofline.predictor import Roofline

__all__ = ["Hardware", "Roofline", "RooflineEstimate", "find_hardware"]
