"""Gaussian process surrogate of one workload's throughput over its configs."""

from __future__ import annotations
