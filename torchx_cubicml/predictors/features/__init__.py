"""Features: facts of trials encoded as the columns that a predictor is fitted on."""

from __future__ import annotations
