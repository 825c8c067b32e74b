"""Schedulers: job states from TorchX, Slurm, Kubernetes, Docker, Ray and this machine."""

from __future__ import annotations
