"""A Lightning training of a small transformer, validated between its steps; it says what it truly did."""

import argparse
import json
import warnings
from pathlib import Path

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

SEQ_LEN, VOCAB = 16, 64


class Net(nn.Module):
    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(n_layers)
        )
        self.head = nn.Linear(32, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


class Task(lightning.LightningModule):
    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.net = Net(n_layers)
        self.micro_batches = self.validations = 0

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            mesh = self.device_mesh["data_parallel"]
            for layer in self.net.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.net, mesh=mesh)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.net(tokens)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        self.micro_batches += 1
        (tokens,) = batch
        return nn.functional.cross_entropy(self(tokens).flatten(0, 1), tokens.flatten())

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.validations += 1
        self(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--max_steps", type=int, default=20)
    parser.add_argument("--outcome", required=True)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    task = Task(2)
    n_params = sum(parameter.numel() for parameter in task.parameters())
    data = TensorDataset(torch.randint(0, VOCAB, (1024, SEQ_LEN)))
    sharded = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    strategy = DDPStrategy() if args.strategy == "ddp" else sharded
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_steps=args.max_steps,
        accumulate_grad_batches=args.accumulate,
        val_check_interval=16,
        limit_val_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, DataLoader(data, batch_size=args.batch_size), DataLoader(data, batch_size=8))
    if trainer.global_rank == 0:
        report = {
            "steps": trainer.global_step,
            "micro_batches": task.micro_batches,
            "validations": task.validations,
            "n_params": n_params,
            "strategy": type(trainer.strategy).__name__,
        }
        Path(args.outcome).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
