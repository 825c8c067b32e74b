"""Schedulers: job states from TorchX, Slurm and this machine."""

from __future__ import annotations
