"""A recommender (DLRM) with TorchRec's sharded embedding tables, as its users write it; it says what it truly did.

Start it with torchrun; it runs on CPU with gloo. The last line that rank 0 prints is a JSON report with the plan.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import (
    DataParallelWrapper,
    DefaultDataParallelWrapper,
    DistributedModelParallel,
)
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.train_pipeline import TrainPipelineBase, TrainPipelineSparseDist
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

PIPELINES = {kind.__name__: kind for kind in (TrainPipelineBase, TrainPipelineSparseDist)}
N_DENSE = 13
WIDTH = 32  # of the dense features in their interaction with the tables
# name: rows, width, mean rows that one sample looks up, pooling ("none": a sequence, from an EmbeddingCollection)
TABLES = {
    "uneven": {
        "ads": (100_000, 64, 2.0, "sum"),
        "users": (400_000, 16, 1.0, "sum"),
        "words": (20_000, 32, 30.0, "mean"),
        "country": (200, 8, 1.0, "sum"),
        "pages": (50_000, 128, 4.0, "sum"),
        "hours": (24, 4, 1.0, "sum"),
    },
    "small": {"first": (1_000, 16, 2.0, "sum"), "second": (50, 8, 1.0, "mean"), "third": (300, 32, 5.0, "sum")},
    "large": {"goods": (2_000_000, 64, 2.0, "sum"), "few": (50, 8, 1.0, "sum")},
    "sequence": {"bag": (2_000, 16, 3.0, "sum"), "clicks": (500, 16, 6.0, "none")},
}
Tables = dict[str, tuple[int, int, float, str]]


@dataclass
class Batch(Pipelineable):
    dense: torch.Tensor
    sparse: KeyedJaggedTensor
    labels: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        parts = (self.dense, self.sparse, self.labels)
        return Batch(*(part.to(device=device, non_blocking=non_blocking) for part in parts))

    def record_stream(self, stream: torch.Stream) -> None:
        for part in (self.dense, self.sparse, self.labels):
            part.record_stream(stream)


class Recommender(nn.Module):
    def __init__(self, tables: Tables) -> None:
        super().__init__()
        pooled = {name: table for name, table in tables.items() if table[3] != "none"}
        listed = {name: table for name, table in tables.items() if table[3] == "none"}
        meta = torch.device("meta")
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=name,
                    num_embeddings=rows,
                    embedding_dim=width,
                    feature_names=[f"{name}_id"],
                    pooling=PoolingType.MEAN if pooling == "mean" else PoolingType.SUM,
                )
                for name, (rows, width, _, pooling) in pooled.items()
            ],
            device=meta,
        )
        self.sequences, self.listed = None, list(listed)
        if listed:
            configs = [
                EmbeddingConfig(name=name, num_embeddings=rows, embedding_dim=width, feature_names=[f"{name}_id"])
                for name, (rows, width, _, _) in listed.items()
            ]
            self.sequences = EmbeddingCollection(tables=configs, device=meta)
        self.bottom = nn.Sequential(nn.Linear(N_DENSE, 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU())
        width = WIDTH + sum(table[1] for table in tables.values())
        self.top = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch: Batch) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        dense, sparse = batch.dense, batch.sparse
        parts = [self.bottom(dense), self.bags(sparse).values()]
        jagged = self.sequences(sparse) if self.sequences is not None else {}
        for name in self.listed:
            values, lengths = jagged[f"{name}_id"].values(), jagged[f"{name}_id"].lengths()
            rows = torch.repeat_interleave(torch.arange(dense.size(0)), lengths)
            parts.append(torch.zeros((dense.size(0), values.size(1))).index_add(0, rows, values))
        scores = self.top(torch.cat(parts, dim=1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, batch.labels)
        return loss, (loss.detach(), scores)


class AllTypes:
    """TorchRec offers its planner the sharding by rows on CUDA alone, though it runs on a CPU."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        known = super().sharding_types(compute_device_type)
        more = ("row_wise", "table_row_wise", "grid_shard") if isinstance(self, EmbeddingBagCollectionSharder) else ()
        return [*known, *(each for each in more if each not in known)]


class BagSharder(AllTypes, EmbeddingBagCollectionSharder):
    pass


class SequenceSharder(AllTypes, EmbeddingCollectionSharder):
    pass


class FullyShardDense(DataParallelWrapper):
    """FSDP2 of each dense part."""

    def wrap(self, dmp, env, device) -> None:
        for part in (dmp.module.bottom, dmp.module.top):
            fully_shard(part)


class FullyShardedDense(DataParallelWrapper):
    """FSDP1 of all dense parts together."""

    def wrap(self, dmp, env, device) -> None:
        tables = [part for part in (dmp.module.bags, dmp.module.sequences) if part is not None]
        dmp._dmp_wrapped_module = FullyShardedDataParallel(
            dmp._dmp_wrapped_module, ignored_modules=tables, device_id=device, use_orig_params=True
        )


def make_batch(tables: Tables, size: int, generator: torch.Generator) -> Batch:
    values, lengths = [], []
    for rows, _, pooling, _ in tables.values():
        most = int(2 * pooling)  # even around the mean
        counts = torch.full((size,), 1) if pooling == 1.0 else torch.randint(0, most + 1, (size,), generator=generator)
        lengths.append(counts)
        values.append(torch.randint(0, rows, (int(counts.sum()),), generator=generator))
    names = [f"{name}_id" for name in tables]
    sparse = KeyedJaggedTensor(keys=names, values=torch.cat(values), lengths=torch.cat(lengths).int())
    labels = torch.randint(0, 2, (size,), generator=generator).float()
    return Batch(torch.randn(size, N_DENSE, generator=generator), sparse, labels)


def plan_for(model: nn.Module, arguments: argparse.Namespace, tables: Tables, sharders: list):
    words = arguments.sharding.split(",")
    words = words * len(tables) if len(words) == 1 else words
    constraints = {
        name: ParameterConstraints(
            sharding_types=None if word == "planner" else [word],
            pooling_factors=[tables[name][2]],
            min_partition=arguments.min_partition,
        )
        for name, word in zip(tables, words, strict=True)
    }
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=dist.get_world_size(), compute_device="cpu", local_world_size=local),
        batch_size=arguments.batch_size,
        storage_reservation=FixedPercentageStorageReservation(arguments.reserved),
        constraints=constraints,
        debug=False,
    )
    return planner.collective_plan(model, sharders, dist.group.WORLD)


def described(plan, tables: Tables) -> dict[str, dict[str, object]]:
    found = {}
    for module in plan.plan.values():
        for name, parameter in module.items():
            rows, width, pooling, kind = tables[name]
            shards = parameter.sharding_spec.shards if parameter.sharding_spec is not None else []
            found[name] = {
                "rows": rows,
                "dim": width,
                "pooling": pooling,
                "pooling_type": kind,
                "sharding_type": parameter.sharding_type,
                "compute_kernel": parameter.compute_kernel,
                "ranks": parameter.ranks,
                "shard_sizes": [shard.shard_sizes for shard in shards],
            }
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sharding", default="planner", help="TorchRec's word or planner; one, or one per table")
    parser.add_argument(
        "--tables", default="uneven", help="name of a preset, or JSON: name -> rows, width, rows, pooling"
    )
    parser.add_argument("--pipeline", choices=PIPELINES, help="train by this pipeline of TorchRec")
    fsdp = "shard the dense part with this generation of FSDP instead of DDP"
    parser.add_argument("--fsdp", nargs="?", const="2", choices=("1", "2"), help=fsdp)
    parser.add_argument("--reserved", type=float, default=0.15, help="share of memory that the planner leaves free")
    parser.add_argument("--min-partition", type=int, default=None, help="least width of a column shard")
    parser.add_argument("--outcome", default="", help="file that receives the report too")
    return parser.parse_args()


def train(model: nn.Module, optimizer: CombinedOptimizer, tables: Tables, arguments: argparse.Namespace) -> dict:
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [make_batch(tables, arguments.batch_size, generator) for _ in range(min(arguments.steps, 64))]
    batches = [batches[step % len(batches)] for step in range(arguments.steps)]
    times = []
    if arguments.pipeline:
        pipeline, waiting = PIPELINES[arguments.pipeline](model, optimizer, torch.device("cpu")), iter(batches)
        for _ in range(arguments.steps):
            started = time.perf_counter()
            loss, _ = pipeline.progress(waiting)  # what the model returns beside its loss
            times.append(time.perf_counter() - started)
    else:
        for batch in batches:
            started = time.perf_counter()
            optimizer.zero_grad()
            loss, _ = model(batch)
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter() - started)
    return {
        "loss": loss.item(),
        "median_step_s": sorted(times)[len(times) // 2],
        "looked_up": {name: [batch.sparse[f"{name}_id"].values().numel() for batch in batches] for name in tables},
    }


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    tables = TABLES[arguments.tables] if arguments.tables in TABLES else json.loads(arguments.tables)
    model = Recommender(tables)
    n_params = sum(parameter.numel() for parameter in model.parameters())
    n_dense = sum(parameter.numel() for part in (model.bottom, model.top) for parameter in part.parameters())
    for part in (model.bags, model.sequences):
        if part is not None:
            apply_optimizer_in_backward(torch.optim.Adagrad, part.parameters(), {"lr": 0.02})
    sharders = [BagSharder(), SequenceSharder()]
    plan = plan_for(model, arguments, tables, sharders)
    wrapper = {"1": FullyShardedDense, "2": FullyShardDense}.get(arguments.fsdp, DefaultDataParallelWrapper)()
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan, sharders=sharders, data_parallel_wrapper=wrapper
    )
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(sharded.named_parameters())), lambda each: torch.optim.Adagrad(each, lr=0.02)
    )
    trained = train(sharded, CombinedOptimizer([sharded.fused_optimizer, dense]), tables, arguments)
    if dist.get_rank() == 0:
        report = {
            "steps": arguments.steps,
            "batch_size": arguments.batch_size,
            "world_size": dist.get_world_size(),
            "n_params": n_params,
            "n_dense_params": n_dense,
            **trained,
            "tables": described(plan, tables),
        }
        if arguments.outcome:
            Path(arguments.outcome).write_text(json.dumps(report))
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
