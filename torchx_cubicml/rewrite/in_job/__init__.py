"""Rewriting inside a job, one decision for all ranks: ``python -m torchx_cubicml.rewrite.in_job -- script.py args``."""
