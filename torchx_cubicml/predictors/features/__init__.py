"""Features: facts of trials as the columns that a predictor learns from."""

from __future__ import annotations
