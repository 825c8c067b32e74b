"""Parts of space files that several tests share."""

from __future__ import annotations

N_LAYERS = """
[workload]
n_layers = { flag = "--n_layer" }
"""
BATCH_SIZES = """
[parameters.micro_batch_size]
choices = [1, 2, 4, 8]
flag = "--batch_size"

[parameters.gradient_accumulation_steps]
derive = "global_batch_size / (micro_batch_size * dp_degree)"
flag = "--accumulate"
"""
