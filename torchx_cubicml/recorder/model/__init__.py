"""The model: parameters, sharding, parallelism, precision and kernels, as the process shows them."""

from __future__ import annotations
