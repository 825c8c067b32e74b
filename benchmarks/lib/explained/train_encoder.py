"""A BERT-like classifier of torch's own encoder layers; a dataclass holds the defaults."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional
from training_loop import parallel, start, train


@dataclass
class Config:
    """Sizes of the model and of the training."""

    num_layers: int = 4
    d_model: int = 128
    num_heads: int = 4
    dim_feedforward: int = 512
    vocab_size: int = 2048
    seq_length: int = 64
    micro_batch_size: int = 8
    num_classes: int = 10
    steps: int = 20


class Encoder(nn.Module):
    """Tokens and learned positions, encoder layers, and a classifier on the mean."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.seq_length, config.d_model)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                config.d_model, config.num_heads, config.dim_feedforward, dropout=0.0, batch_first=True
            )
            for _ in range(config.num_layers)
        )
        self.classifier = nn.Linear(config.d_model, config.num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens ``[n, length]`` to logits ``[n, n_classes]``."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.classifier(x.mean(1))


def main() -> None:
    """Train on random tokens and classes."""
    parser = argparse.ArgumentParser()
    for field in fields(Config):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    config = Config(**vars(parser.parse_args()))
    start()
    model = Encoder(config)
    model = parallel(model, model.layers, "ddp")

    def batch() -> tuple[Tensor, Tensor]:
        tokens = torch.randint(config.vocab_size, (config.micro_batch_size, config.seq_length))
        return tokens, torch.randint(config.num_classes, (config.micro_batch_size,))

    train(model, batch, functional.cross_entropy, steps=config.steps)


if __name__ == "__main__":
    main()
