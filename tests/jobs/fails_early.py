"""Fails in the way that ``--fail`` names if the batch is larger than typed. It makes a folder that must not exist.

``KIND@WHEN``: at ``once`` of several restarts, ``always``, after a checkpoint was ``saved``, or on ``node0`` alone.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int)
parser.add_argument("--accumulate", type=int)
parser.add_argument("--fail", default="")
args = parser.parse_args()
rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
shown = {"batch": args.batch_size, "restarts": restarts, "agent": os.getppid(), "text": os.environ.get("TEXT")}
with Path(os.environ["SHOWN"]).open("a") as file:
    file.write(f"{json.dumps(shown)}\n")
if rank == 0 and not restarts:
    Path("runs/out").mkdir(parents=True)
    Path("runs/out/lock").touch(exist_ok=False)
kind, _, when = args.fail.partition("@")
if when.startswith("node"):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    if args.batch_size > 2 and when != f"node{rank}":
        time.sleep(60)
if (args.batch_size > 2 or when == "always") and not (when == "once" and restarts):
    if when == "saved":
        import torch

        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(12):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        torch.save(model.state_dict(), f"checkpoint{rank}.pt")
    if kind == "error":
        raise ValueError("this batch is too large")
    if kind == "exit":
        sys.exit(2)
    if kind == "memory":
        raise MemoryError
    if kind == "grow":
        held = []
        while True:
            held.append(bytearray(16 << 20))
    if kind.startswith("SIG") and rank == 0:
        os.kill(os.getpid(), getattr(signal, kind))
    if kind:
        time.sleep(60)
