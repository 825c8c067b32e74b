"""A DDP training of uneven batches that stalls, evaluates in several ways and saves; its own clock tells its speed.

A step ends between ``before`` and ``after``. A pause lasts the time ``inside`` at least and ``within`` at most.
"""

import json
import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

n_steps, evaluation_s, saving_s, stall_s = 60, 0.15, 0.1, 0.08
dist.init_process_group("gloo")
rank, sizes = dist.get_rank(), random.Random(3)
inner = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
model = DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
now = time.perf_counter


class Slow(list):
    def __reduce__(self):
        began = now()
        time.sleep(saving_s)
        pauses[-1]["saving_inside"] = now() - began
        return list, ()


def evaluate(how):
    if how == "no_grad":
        with torch.no_grad():
            inner_or_model(model)
        return
    module = model if how == "wrapped" else inner
    module.eval()
    with torch.no_grad():
        inner_or_model(module)
    module.train()


def inner_or_model(module):
    for _ in range(3):
        module(torch.randn(50, 16))
        pauses[-1].setdefault("began_inside", now())
        time.sleep(evaluation_s / 3)
    pauses[-1]["inside"] = now() - pauses[-1].pop("began_inside")


def pause(how):
    pauses.append({"step": step, "began": now()})
    evaluate(how)
    began = now()
    torch.save({"model": inner.state_dict(), "slow": Slow()}, os.devnull)
    pauses[-1]["saving_within"] = now() - began
    pauses[-1]["inside"] += pauses[-1]["saving_inside"]


steps, pauses = [], []
for step in range(n_steps):
    if step % 5 == 4:
        time.sleep(stall_s)
    consumed = 0
    for _ in range(2):
        batch = sizes.randint(2, 12) + 10 * rank
        consumed += batch
        time.sleep(0.002)
        model(torch.randn(batch, 16)).square().mean().backward()
        if pauses and "within" not in pauses[-1]:
            pauses[-1]["within"] = now() - pauses[-1].pop("began")
    before = now()
    optimizer.step()
    steps.append({"before": before, "after": now(), "samples": consumed})
    optimizer.zero_grad()
    if step % 15 == 14 and step + 1 < n_steps:
        pause(("no_grad", "wrapped", "inner")[step // 15])
dist.barrier()
print("\n" + json.dumps({"rank": rank, "steps": steps, "pauses": pauses}), flush=True)
dist.destroy_process_group()
