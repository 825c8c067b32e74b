"""TorchRec's DLRM under its planner, with flags as its example names them; random samples with Criteo's features."""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torch.nn import functional
from torchrec.datasets.criteo import DEFAULT_CAT_NAMES, DEFAULT_INT_NAMES
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.models.dlrm import DLRM, DLRM_DCN
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def sizes(text: str) -> list[int]:
    """Return the sizes in a list with commas."""
    return [int(word) for word in text.split(",")]


def main() -> None:
    """Train on random samples."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_embeddings", type=int, default=10_000)
    parser.add_argument("--num_embeddings_per_feature", default=None)
    parser.add_argument("--embedding_dim", type=int, default=16)
    parser.add_argument("--dense_arch_layer_sizes", default="64,16")
    parser.add_argument("--over_arch_layer_sizes", default="64,32,1")
    parser.add_argument("--interaction_type", choices=("original", "dcn"), default="original")
    parser.add_argument("--dcn_num_layers", type=int, default=2)
    parser.add_argument("--dcn_low_rank_dim", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--limit_train_batches", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    device, names = torch.device("cpu"), DEFAULT_CAT_NAMES
    each = options.num_embeddings_per_feature
    rows = sizes(each) if each else [options.num_embeddings] * len(names)
    tables = [
        EmbeddingBagConfig(
            name=f"t_{name}", embedding_dim=options.embedding_dim, num_embeddings=count, feature_names=[name]
        )
        for name, count in zip(names, rows, strict=True)
    ]
    words = {
        "embedding_bag_collection": EmbeddingBagCollection(tables=tables, device=torch.device("meta")),
        "dense_in_features": len(DEFAULT_INT_NAMES),
        "dense_arch_layer_sizes": sizes(options.dense_arch_layer_sizes),
        "over_arch_layer_sizes": sizes(options.over_arch_layer_sizes),
        "dense_device": device,
    }
    if options.interaction_type == "dcn":
        model = DLRM_DCN(**words, dcn_num_layers=options.dcn_num_layers, dcn_low_rank_dim=options.dcn_low_rank_dim)
    else:
        model = DLRM(**words)
    apply_optimizer_in_backward(torch.optim.Adagrad, model.sparse_arch.parameters(), {"lr": 0.02})
    topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")
    planner, sharders = EmbeddingShardingPlanner(topology=topology), [EmbeddingBagCollectionSharder()]
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    model = DistributedModelParallel(model, device=device, plan=plan, sharders=sharders)
    own = dict(in_backward_optimizer_filter(model.named_parameters()))
    dense = KeyedOptimizerWrapper(own, lambda parameters: torch.optim.Adagrad(parameters, lr=0.02))
    optimizer = CombinedOptimizer([model.fused_optimizer, dense])
    lengths = torch.ones(options.batch_size * len(names), dtype=torch.int32)
    for _ in range(options.limit_train_batches):
        values = torch.cat([torch.randint(count, (options.batch_size,)) for count in rows])
        sparse = KeyedJaggedTensor(names, values, lengths=lengths)
        logits = model(torch.randn(options.batch_size, len(DEFAULT_INT_NAMES)), sparse).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(logits, torch.rand(options.batch_size))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
