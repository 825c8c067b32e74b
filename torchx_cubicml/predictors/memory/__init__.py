"""Memory models: probability that a config fits in memory (feasibility)."""

from __future__ import annotations
