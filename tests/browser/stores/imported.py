"""Store of past jobs on 8 to 1,024 GPUs, of many models, by the real ``history import`` of a CSV file."""

from __future__ import annotations

import csv
import math
import random
from typing import TYPE_CHECKING

from torchx.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

MODELS = {"gpt-1b": (24, 2048), "gpt-7b": (32, 4096), "gpt-13b": (40, 5120), "gpt-34b": (48, 8192)}
MODELS |= {"gpt-70b": (80, 8192), "moe-8x7b": (32, 4096), "vit-22b": (48, 6144), "t5-11b": (24, 4096)}
SCALES = (8, 16, 32, 64, 128, 256, 512, 1024)
SEQUENCES = (2048, 4096, 8192, 16384)
FIRST = 12  # jobs of each workload
_HEAD = "model,world_size,nnodes,n_layers,d_model,seq_len,tp_degree,pp_degree,micro_batch_size,tokens_per_second"
_HEAD += ",peak_memory_gib,status,started_at"


def rows() -> list[list[object]]:
    """Return the jobs of 256 workloads."""
    rng, found = random.Random(4), []
    for model, (n_layers, d_model) in MODELS.items():
        for world_size in SCALES:
            for seq_len in SEQUENCES:
                for job in range(FIRST):
                    tp, pp = rng.choice([(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2)])
                    batch = rng.choice([1, 2, 4])
                    params = 12 * n_layers * d_model**2
                    peak = 18 * params / 2**30 / min(world_size, 64) + batch * seq_len * d_model * n_layers / 2**34 / tp
                    fits = peak < 79.0
                    rate = 4e14 * 0.45 * world_size / (6 * params) * world_size**-0.08
                    rate *= batch / (batch + 0.3) * (1 - 0.04 * math.log2(tp)) * (1 - 0.07 * math.log2(pp))
                    rate *= math.exp(rng.gauss(0, 0.02))
                    cells: list[object] = [model, world_size, world_size // 8, n_layers, d_model, seq_len]
                    cells += [tp, pp, batch, f"{rate:.0f}" if fits else "", f"{peak:.1f}" if fits else ""]
                    cells += ["completed" if fits else "out_of_memory", f"2025-{1 + job % 12:02d}-11T08:00:00Z"]
                    found.append(cells)
    return found


def fill(url: Path) -> tuple[str, ...]:
    """Write the table, and import it."""
    table = url.parent / "jobs.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(_HEAD.split(","))
        writer.writerows(rows())
    main(["cubicml", "history", "import", str(table), "--store", str(url), "--yes"])
    return ()
