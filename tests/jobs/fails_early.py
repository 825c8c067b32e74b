"""Fails in the way that ``--fail`` names if the batch is larger than typed. It makes a folder that must not exist.

``KIND@WHEN``: ``always``, after rank 0 has ``saved`` a checkpoint, or on ``node0`` alone, while the others wait.
``KIND+KIND@once``: one at the first start, the next at the first restart, and none at later ones.
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
parser.add_argument("--local_rank")
args = parser.parse_args()
rank, restarts = int(os.environ["RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
shown = {"batch": args.batch_size, "restarts": restarts, "agent": os.getppid(), "text": os.environ.get("TEXT")}
shown_in = Path(os.environ["SHOWN"])
with shown_in.open("a") as file:
    file.write(f"{json.dumps(shown | {'rank': rank})}\n")
if rank == 0 and not restarts:
    Path("runs/out").mkdir(parents=True)
    Path("runs/out/lock").touch(exist_ok=False)
kind, _, when = args.fail.partition("@")
if when.startswith("node"):
    here = set()
    while len(here) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.05)
        seen = map(json.loads, shown_in.read_text().rpartition("\n")[0].splitlines())
        here = {each["rank"] for each in seen if each["batch"] == args.batch_size}
    if args.batch_size > 2 and when != f"node{rank}":
        time.sleep(60)
if when == "once":
    kind = "".join(kind.split("+")[restarts : restarts + 1])
if args.batch_size > 2 or when == "always":
    while when == "saved" and rank and not Path("checkpoint.pt").exists():
        time.sleep(0.05)
    if when == "saved" and not rank:
        import torch

        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(12):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        torch.save(model.state_dict(), "checkpoint.pt")
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
