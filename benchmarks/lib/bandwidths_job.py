"""Measures what a planner of embedding tables is told of a machine: memory and link bandwidth of each process.

Started by torchrun; all processes measure at one time, as they train. Rank 0 prints one line of JSON, in GB per second.
"""

from __future__ import annotations

import json
import time

import torch
from torch.distributed import all_to_all_single, barrier, destroy_process_group, get_rank, init_process_group
from torch.nn.functional import embedding_bag

REPEATS = 20
ROWS, WIDTH, LOOKED_UP = 500_000, 64, 20_000
NUMBERS = 500_000  # that a process sends in an all-to-all
BYTES = 4


def memory() -> float:
    """Return the bytes of random rows that a lookup reads per second."""
    table, begin = torch.randn(ROWS, WIDTH), 0.0
    for repeat in range(REPEATS + 2):
        if repeat == 2:
            begin = time.perf_counter()
        embedding_bag(torch.randint(ROWS, (LOOKED_UP,)), table, torch.arange(0, LOOKED_UP, 10), mode="sum")
    return REPEATS * LOOKED_UP * WIDTH * BYTES / (time.perf_counter() - begin)


def link() -> float:
    """Return the bytes that a process sends per second in an all-to-all."""
    sent, received, begin = torch.randn(NUMBERS), torch.empty(NUMBERS), 0.0
    for repeat in range(REPEATS + 2):
        if repeat == 2:
            barrier()
            begin = time.perf_counter()
        all_to_all_single(received, sent)
    return REPEATS * NUMBERS * BYTES / (time.perf_counter() - begin)


def main() -> None:
    """Measure, and print."""
    torch.set_num_threads(1)
    init_process_group("gloo")
    measured = {"memory": memory() / 1e9, "link": link() / 1e9}
    if get_rank() == 0:
        print(json.dumps(measured), flush=True)
    barrier()
    destroy_process_group()


if __name__ == "__main__":
    main()
