"""Facts of the live model: parameters, sharding, parallelism, precision, kernels and batch."""

from __future__ import annotations
