"""Steps no optimizer of torch's; only what it prints tells how fast it is, in words of its own."""

import logging
import sys
import time

import torch.distributed as dist

log = logging.getLogger(__name__)
logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s")
dist.init_process_group("gloo")
for step in range(1, 13):
    time.sleep(0.002)
    if dist.get_rank() == 0:
        speed = 100.0 if step < 4 else 12_300.0 + step
        line = f"[it {step:>3}/12] loss: {3.0 / step:.3f} | speed: {speed:,.1f} tok/s/gpu | eta 0:00"
        log.warning(line)
        print(line, flush=True)  # as programs do that log and print
dist.destroy_process_group()
