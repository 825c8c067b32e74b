"""One decision for all ranks, made inside the job: ``python -m torchx_cubicml.decision -- script.py args``."""
