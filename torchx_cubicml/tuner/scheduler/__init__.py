"""Schedulers: what TorchX, Slurm and this machine say of a job."""

from __future__ import annotations
