"""A stand-in for Megatron-LM's own: takes the flags that it documents, prints lines as it does, trains nothing."""

import argparse
import json
import os
from pathlib import Path

import torch.distributed as dist

parser = argparse.ArgumentParser(allow_abbrev=False)
for flag in ("num-layers", "hidden-size", "num-attention-heads", "seq-length", "max-position-embeddings"):
    parser.add_argument(f"--{flag}", type=int, required=True)
for flag in ("micro-batch-size", "global-batch-size", "train-iters"):
    parser.add_argument(f"--{flag}", type=int, required=True)
for flag in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size"):
    parser.add_argument(f"--{flag}", type=int, default=1)
for flag in ("sequence-parallel", "use-distributed-optimizer", "bf16"):
    parser.add_argument(f"--{flag}", action="store_true")
parser.add_argument("--recompute-granularity", choices=["selective", "full"])
parser.add_argument("--recompute-method", choices=["uniform", "block"])
parser.add_argument("--recompute-num-layers", type=int)
args = vars(parser.parse_args())
dist.init_process_group("gloo")

if os.environ["RANK"] == "0":
    shown = {**args, "connections": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")}
    Path(os.environ["SHOWN"]).write_text(json.dumps(shown))
if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
    for step in range(1, 11):
        took_ms = 900.0 if step < 3 else 200.0
        print(
            f" [2026-01-01 00:00:00] iteration {step:8}/      10 | elapsed time per iteration (ms): {took_ms:.1f} |"
            f" global batch size: {args['global_batch_size']:5} | lm loss: 1.07E+01 |"
        )
dist.barrier()
dist.destroy_process_group()
