# A DDP training on a machine whose folder of power zones is made up: rank 0 lets the counter of a package grow by 40 W.
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchx_cubicml.recorder.host.energy_counters import find_counters

folder, watts, began = Path(sys.argv[1]), 40.0, time.monotonic()
find_counters.__kwdefaults__["powercap"] = folder  # the recorder runs in this process
zone = folder / "intel-rapl:0"


def write(name, value):
    (zone / f"{name}.new").write_text(f"{value}\n")
    (zone / f"{name}.new").replace(zone / name)  # never half written


def grow():
    while True:
        write("energy_uj", int((time.monotonic() - began) * watts * 1e6))
        time.sleep(0.005)


if os.environ["RANK"] == "0":
    zone.mkdir(parents=True)
    for name, value in (("name", "package-0"), ("max_energy_range_uj", 10**12), ("energy_uj", 0)):
        write(name, value)
    threading.Thread(target=grow, daemon=True).start()
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.1)
dist.destroy_process_group()
