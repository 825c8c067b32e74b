"""A stand-in for torchtitan's own: takes the flags that it documents, prints lines as it does, trains nothing."""

import argparse
import json
import os
from pathlib import Path

parser = argparse.ArgumentParser(allow_abbrev=False)
for flag in ("module", "config", "training.steps", "training.local_batch_size", "training.global_batch_size"):
    parser.add_argument(f"--{flag}")
parser.add_argument("--training.seq_len", type=int)
for axis in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
    parser.add_argument(f"--parallelism.{axis}_degree", type=int, default=1)
for axis in ("replicate", "shard"):
    parser.add_argument(f"--parallelism.data_parallel_{axis}_degree", type=int)
parser.add_argument("--activation_checkpoint.mode", choices=["none", "selective", "full"], default="selective")
parser.add_argument("--compile.enable", action="store_true")
args = vars(parser.parse_args())

if os.environ["RANK"] == "0":
    Path(os.environ["SHOWN"]).write_text(json.dumps(args))
    for step in range(1, 11):
        tps = 100 if step < 3 else 1000 + step
        print(f"[titan] 2026-01-01 00:00:00,000 - root - INFO - step: {step:2}  loss:  8.1  tps: {tps:,}  mfu: 1.00%")
