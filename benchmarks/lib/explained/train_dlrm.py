"""A recommender of plain torch with flags as TorchRec's DLRM example names them; each process holds all tables."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from training_loop import parallel, start, train


def sizes(text: str) -> list[int]:
    """Return the sizes in a list with commas."""
    return [int(word) for word in text.split(",")]


def network(inputs: int, widths: list[int]) -> nn.Sequential:
    """Return linear layers of the given widths, with ReLU between them."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers[:-1])


class Recommender(nn.Module):
    """DLRM: dense layers, embedding tables, products of all pairs, and a network over them."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        rows, self.width = sizes(options.num_embeddings_per_feature), options.embedding_dim
        self.tables = nn.ModuleList(nn.EmbeddingBag(each, self.width, mode="sum") for each in rows)
        self.bottom = network(options.dense_in_features, sizes(options.dense_arch_layer_sizes))
        count = len(rows) + 1
        self.register_buffer("pairs", torch.triu_indices(count, count, 1), persistent=False)
        joined = self.width + count * (count - 1) // 2
        self.top = network(joined, sizes(options.over_arch_layer_sizes))

    def forward(self, batch: tuple[Tensor, list[Tensor]]) -> Tensor:
        """Map numbers ``[n, n_numbers]`` and indices ``[n, pooling]`` of each table to logits ``[n]``."""
        numbers, indices = batch
        dense = self.bottom(numbers)
        features = torch.stack([dense, *(table(index) for table, index in zip(self.tables, indices, strict=True))], 1)
        products = features @ features.transpose(1, 2)
        joined = torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1)
        return self.top(joined).squeeze(1)


def main() -> None:
    """Train on random samples."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_embeddings_per_feature", default="1000,1000,1000,1000")
    parser.add_argument("--embedding_dim", type=int, default=16)
    parser.add_argument("--pooling_factor", type=int, default=1)
    parser.add_argument("--dense_in_features", type=int, default=13)
    parser.add_argument("--dense_arch_layer_sizes", default="64,16")
    parser.add_argument("--over_arch_layer_sizes", default="64,32,1")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    start()
    rows = sizes(options.num_embeddings_per_feature)

    def batch() -> tuple[tuple[Tensor, list[Tensor]], Tensor]:
        indices = [torch.randint(each, (options.batch_size, options.pooling_factor)) for each in rows]
        return (torch.randn(options.batch_size, options.dense_in_features), indices), torch.rand(options.batch_size)

    train(
        parallel(Recommender(options), (), "ddp"),
        batch,
        functional.binary_cross_entropy_with_logits,
        steps=options.steps,
    )


if __name__ == "__main__":
    main()
