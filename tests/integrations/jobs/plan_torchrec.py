"""A TorchRec model on CPU with gloo, whose plan is made in one of several ways; rank 0 prints the plan as JSON.

Start it with torchrun, and name the way.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.storage_reservations import (
    FixedAbsoluteStorageReservation,
    FixedPercentageStorageReservation,
)
from torchrec.distributed.sharding_plan import column_wise, construct_module_sharding_plan
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.keyed import KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

TABLES = {"a": (400, 16), "b": (40, 8), "c": (4000, 32)}
CPU = torch.device("cpu")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=width, feature_names=[name])
            for name, (rows, width) in TABLES.items()
        ]
        self.bags = EmbeddingBagCollection(tables=tables, device=CPU)
        self.top = nn.Linear(sum(width for _, width in TABLES.values()), 1)

    def forward(self, sparse: KeyedJaggedTensor) -> torch.Tensor:
        return self.top(self.bags(sparse).values()).squeeze(1)


class RowsToo(EmbeddingBagCollectionSharder):
    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [*super().sharding_types(compute_device_type), "row_wise"]


class OwnPlanner(EmbeddingShardingPlanner):
    def collective_plan(self, module, sharders=None, pg=None):
        print("own planner", flush=True)
        return super().collective_plan(module, sharders, pg)


def planner_of(how: str) -> EmbeddingShardingPlanner:
    # "tight" holds each table in shards, and not the largest one on each rank
    capacity = {"ddr_cap": 500_000} if how == "tight" else {}
    constraints = {
        "a": ParameterConstraints(sharding_types=["table_wise"], pooling_factors=[3.0]),
        "c": ParameterConstraints(min_partition=8),
    }
    reservation = {
        "absolute": FixedAbsoluteStorageReservation(0),
        "shares": FixedPercentageStorageReservation(0.3),
    }.get(how)
    kind = OwnPlanner if how == "subclass" else EmbeddingShardingPlanner
    topology = Topology(world_size=dist.get_world_size(), compute_device="cpu", **capacity)
    return kind(topology=topology, constraints=constraints, storage_reservation=reservation, batch_size=4, debug=False)


def main() -> None:
    how = sys.argv[1]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, sharders = Model(), [RowsToo()]
    planner, plan = planner_of(how), None
    if how == "by-hand":
        module_plan = construct_module_sharding_plan(
            model.bags, {name: column_wise(ranks=[0, 1]) for name in TABLES}, device_type="cpu", sharder=sharders[0]
        )
        plan = ShardingPlan({"bags": module_plan})
    elif how == "each-rank":
        plan = planner.plan(model, sharders)
    elif how != "dmp":
        plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    sharded = DistributedModelParallel(model, device=CPU, plan=plan, sharders=sharders)
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(sharded.named_parameters())), lambda each: torch.optim.SGD(each, lr=0.1)
    )
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(12):
        lengths = torch.full((4 * len(TABLES),), 2, dtype=torch.int32)
        values = torch.cat([torch.randint(0, rows, (8,), generator=generator) for rows, _ in TABLES.values()])
        loss = sharded(KeyedJaggedTensor(keys=list(TABLES), values=values, lengths=lengths)).square().mean()
        dense.zero_grad()
        loss.backward()
        dense.step()
    if dist.get_rank() == 0:
        tables = {name: each for module in sharded.plan.plan.values() for name, each in module.items()}
        constraints = planner._constraints or {}
        report = {
            "sharding": [tables[name].sharding_type for name in TABLES],
            "kernels": [tables[name].compute_kernel for name in TABLES],
            "n_shards": [
                len(tables[name].sharding_spec.shards) if tables[name].sharding_spec else 0 for name in TABLES
            ],
            "pooling": constraints["a"].pooling_factors,
            "min_partition": constraints["c"].min_partition,
            "types": {name: each.sharding_types for name, each in sorted(constraints.items())},
            "reserved": getattr(planner._storage_reservation, "_percentage", None),
            "loss": loss.item(),
        }
        print("REPORT " + json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
