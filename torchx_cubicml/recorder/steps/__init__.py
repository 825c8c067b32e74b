"""Optimizer steps: when they end, what they process, and the throughput of the steady state."""

from __future__ import annotations
