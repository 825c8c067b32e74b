"""Trains a small recommender with TorchRec on CPU processes, under the plan of TorchRec's own planner.

Started by torchrun from ``benchmarks/recommender.py``. The script has no import of ours. Rank 0 prints one line of
JSON: the plan as it is, and the seconds of each counted step.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn
from torch.distributed import barrier, destroy_process_group, get_rank, get_world_size, group, init_process_group
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

N_DENSE = 64  # numbers of each sample
BYTES_PER_MS = 1e6  # of one GB per second, the planner's unit


class AnySharder(EmbeddingBagCollectionSharder):
    """Sharder that offers row-wise sharding on a CPU too, as it does on a GPU."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Return the sharding types of a device."""
        return super().sharding_types("cuda" if compute_device_type == "cpu" else compute_device_type)


class Recommender(nn.Module):
    """Embeddings and dense numbers of a sample, joined by a network of three layers."""

    def __init__(self, tables: list[tuple[int, int, int]], hidden: int) -> None:
        super().__init__()
        self.embeddings = EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                EmbeddingBagConfig(name=f"t{at}", num_embeddings=rows, embedding_dim=width, feature_names=[f"f{at}"])
                for at, (rows, width, _) in enumerate(tables)
            ],
        )
        joined = N_DENSE + sum(width for _, width, _ in tables)
        self.over = nn.Sequential(
            nn.Linear(joined, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        """Return the logit of each sample, ``[n]``."""
        return self.over(torch.cat([dense, self.embeddings(sparse).values()], dim=1)).squeeze(1)


def batches(tables: list[tuple[int, int, int]], size: int, seed: int) -> list[tuple[torch.Tensor, ...]]:
    """Return four batches: dense numbers, looked-up rows of each table, and labels."""
    random, made = torch.Generator().manual_seed(seed), []
    for _ in range(4):
        lengths = torch.cat([torch.full((size,), pooling) for _, _, pooling in tables])
        values = [torch.randint(rows, (size * pooling,), generator=random) for rows, _, pooling in tables]
        sparse = KeyedJaggedTensor([f"f{at}" for at in range(len(tables))], torch.cat(values), lengths=lengths)
        labels = torch.randint(2, (size,), generator=random).float()
        made.append((torch.randn(size, N_DENSE, generator=random), sparse, labels))
    return made


def planner_of(options: argparse.Namespace, tables: list[tuple[int, int, int]]) -> EmbeddingShardingPlanner:
    """Return TorchRec's planner with the given bandwidths, and the given sharding where there is one."""
    words = options.sharding.split(",") if options.sharding else []
    constraints = {
        f"t{at}": ParameterConstraints(
            sharding_types=[words[at]] if words and words[at] != "planner" else None, pooling_factors=[float(pooling)]
        )
        for at, (_, _, pooling) in enumerate(tables)
    }
    topology = Topology(
        world_size=get_world_size(),
        compute_device="cpu",
        ddr_mem_bw=options.memory_gb_per_second * BYTES_PER_MS,
        hbm_mem_bw=options.memory_gb_per_second * BYTES_PER_MS,
        intra_host_bw=options.link_gb_per_second * BYTES_PER_MS,
        inter_host_bw=options.link_gb_per_second * BYTES_PER_MS,
    )
    return EmbeddingShardingPlanner(
        topology=topology, batch_size=options.batch_size, constraints=constraints, debug=False
    )


def parsed() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", required=True, help="rows:width:pooling of each table, with commas between")
    parser.add_argument("--sharding", default="", help="TorchRec's word for each table, with commas between")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--memory-gb-per-second", type=float, default=10.0)
    parser.add_argument("--link-gb-per-second", type=float, default=1.0)
    return parser.parse_args()


def main() -> None:
    """Train, and print the plan and the seconds of the steps."""
    options = parsed()
    torch.set_num_threads(1)
    init_process_group("gloo")
    tables = [tuple(map(int, each.split(":"))) for each in options.tables.split(",")]
    torch.manual_seed(0)
    model = Recommender(tables, options.hidden)
    apply_optimizer_in_backward(torch.optim.SGD, model.embeddings.parameters(), {"lr": 0.01})
    sharders = [AnySharder()]
    plan = planner_of(options, tables).collective_plan(model, sharders, group.WORLD)
    model = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.01)
    loss_of, data = nn.BCEWithLogitsLoss(), batches(tables, options.batch_size, get_rank())
    seconds = []
    for step in range(options.warmup + options.steps):
        begin = time.perf_counter()
        dense, sparse, labels = data[step % len(data)]
        optimizer.zero_grad()
        loss_of(model(dense, sparse), labels).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    barrier()
    if get_rank() == 0:
        found = {name: each.sharding_type for module in plan.plan.values() for name, each in module.items()}
        print(json.dumps({"plan": found, "seconds": seconds[options.warmup :]}), flush=True)
    destroy_process_group()


if __name__ == "__main__":
    main()
