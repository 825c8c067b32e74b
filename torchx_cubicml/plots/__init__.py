"""Plots: rows made of trials, of predictions and of a space, drawn as figures of the package ``report``."""

from __future__ import annotations
