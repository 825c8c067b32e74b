"""Script under torchrun: measures the step of small recommenders under several plans of TorchRec, in turn.

It reads models and plans as JSON from the file in its first argument, and prints one line of JSON for each plan on rank
0: the seconds of each step, and the plan as TorchRec carried it out. All plans stay in memory, and each round runs each
plan for a few steps, so that a change of the machine's load meets all of them. Batches are made beforehand.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROUNDS, WARMUP, STEPS = 5, 2, 4
N_BATCHES, N_DENSE, WIDTH = 4, 13, 64


class Recommender(nn.Module):
    """Embedding tables, dense layers below and above their embeddings."""

    def __init__(self, tables: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=f"t{at}", num_embeddings=each["rows"], embedding_dim=each["dim"], feature_names=[f"f{at}"]
                )
                for at, each in enumerate(tables)
            ],
            device=torch.device("meta"),
        )
        self.bottom = nn.Sequential(nn.Linear(N_DENSE, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        width = WIDTH + sum(each["dim"] for each in tables)
        self.top = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Map features of samples to logits."""
        return self.top(torch.cat([self.bottom(dense), self.bags(sparse).values()], dim=1)).squeeze(1)


class Sharder(EmbeddingBagCollectionSharder):
    """Sharder that offers the planner the shardings by rows on a CPU, too; they run there."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Return the names of the shardings that a plan may use."""
        known = super().sharding_types(compute_device_type)
        return [*known, *(each for each in ("row_wise", "table_row_wise") if each not in known)]


class Training:
    """One model under one plan.

    Args:
        model: tables and batch of a model.
        words: a sharding per table, or ``planner``.
    """

    def __init__(self, model: Mapping[str, Any], words: Sequence[str]) -> None:
        self.model, self.seconds = model, list[float]()
        module = Recommender(model["tables"])
        apply_optimizer_in_backward(torch.optim.Adagrad, module.bags.parameters(), {"lr": 0.02})
        constraints = {
            f"t{at}": ParameterConstraints(
                sharding_types=None if word == "planner" else [word], pooling_factors=[each["pooling"]]
            )
            for at, (each, word) in enumerate(zip(model["tables"], words, strict=True))
        }
        ranks = dist.get_world_size()
        planner = EmbeddingShardingPlanner(
            topology=Topology(world_size=ranks, compute_device="cpu", local_world_size=ranks),
            batch_size=model["batch"],
            constraints=constraints,
            debug=False,
        )
        plan = planner.collective_plan(module, [Sharder()], dist.group.WORLD)
        self.plan = {name: each for part in plan.plan.values() for name, each in part.items()}
        self.sharded = DistributedModelParallel(module, device=torch.device("cpu"), plan=plan, sharders=[Sharder()])
        dense = dict(in_backward_optimizer_filter(self.sharded.named_parameters()))
        wrapped = KeyedOptimizerWrapper(dense, lambda each: torch.optim.Adagrad(each, lr=0.02))
        self.optimizer = CombinedOptimizer([self.sharded.fused_optimizer, wrapped])

    def step(self, batch: tuple[Tensor, KeyedJaggedTensor, Tensor]) -> float:
        """Run one step and return its seconds."""
        dense, sparse, labels = batch
        started = time.perf_counter()
        self.optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(self.sharded(dense, sparse), labels).backward()
        self.optimizer.step()
        return time.perf_counter() - started

    def report(self) -> dict[str, Any]:
        """Return the seconds of the steps and the plan, table by table."""
        plans = [self.plan[f"t{at}"] for at in range(len(self.model["tables"]))]
        return {
            "model": self.model["name"],
            "seconds": self.seconds,
            "sharding": [each.sharding_type for each in plans],
            "ranks": [each.ranks for each in plans],
        }


def batches(model: Mapping[str, Any]) -> list[tuple[Tensor, KeyedJaggedTensor, Tensor]]:
    """Return a few batches of random samples."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    found, size = [], model["batch"]
    for _ in range(N_BATCHES):
        lengths = [torch.full((size,), int(each["pooling"])) for each in model["tables"]]
        values = [
            torch.randint(0, each["rows"], (size * int(each["pooling"]),), generator=generator)
            for each in model["tables"]
        ]
        sparse = KeyedJaggedTensor(
            keys=[f"f{at}" for at in range(len(lengths))], values=torch.cat(values), lengths=torch.cat(lengths).int()
        )
        found.append((torch.randn(size, N_DENSE, generator=generator), sparse, torch.rand(size, generator=generator)))
    return found


def main() -> None:
    """Measure all plans of one model after the other, in rounds."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for model in json.loads(Path(sys.argv[1]).read_text()):
        torch.manual_seed(0)
        trainings, prepared = [Training(model, words) for words in model["plans"]], batches(model)
        for _ in range(ROUNDS):
            for training in trainings:
                dist.barrier()
                seconds = [training.step(prepared[at % N_BATCHES]) for at in range(WARMUP + STEPS)]
                training.seconds += seconds[WARMUP:]
        if dist.get_rank() == 0:
            for training in trainings:
                print(json.dumps(training.report()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
