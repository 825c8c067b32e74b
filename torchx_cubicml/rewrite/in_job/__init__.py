"""One decision for all ranks, made inside the job: ``python -m torchx_cubicml.rewrite.in_job -- script.py args``."""
