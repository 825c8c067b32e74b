"""Schedulers: job states from TorchX, Slurm, Kubernetes and this machine."""

from __future__ import annotations
