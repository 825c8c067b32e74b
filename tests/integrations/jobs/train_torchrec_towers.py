"""A recommender of tables alone, two towers of TorchRec, whose only input is sparse; it says what it truly did."""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

WIDTH = 16


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=WIDTH, feature_names=[f"{name}_id"])
            for name, rows in (("query", 4000), ("item", 900))
        ]
        self.bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))

    def forward(self, sparse: KeyedJaggedTensor) -> torch.Tensor:
        query, item = self.bags(sparse).values().split(WIDTH, dim=1)
        return (query * item).sum(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--outcome", default="")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = Towers()
    n_params = sum(parameter.numel() for parameter in model.parameters())
    apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.02})
    sharded = DistributedModelParallel(model, device=torch.device("cpu"))
    optimizer = sharded.fused_optimizer
    for _ in range(arguments.steps):
        lengths = torch.randint(1, 4, (2 * arguments.batch_size,))
        values = torch.randint(0, 900, (int(lengths.sum()),))
        sparse = KeyedJaggedTensor(keys=["query_id", "item_id"], values=values, lengths=lengths)
        optimizer.zero_grad()
        sharded(sparse).square().mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        report = {"steps": arguments.steps, "n_params": n_params}
        Path(arguments.outcome).write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
