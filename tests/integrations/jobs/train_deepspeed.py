"""A DeepSpeed training of a small transformer, as its users write it; it says what its engine did."""

import argparse
import json
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

SEQ_LEN, VOCAB = 32, 128


class Net(nn.Module):
    """A transformer of decoder layers without cross attention."""

    def __init__(self, n_layers: int, *, checkpointing: bool) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.embed = nn.Embedding(VOCAB, 64)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True) for _ in range(n_layers)
        )
        self.head = nn.Linear(64, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = deepspeed.checkpointing.checkpoint(layer, hidden) if self.checkpointing else layer(hidden)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1).float(), tokens.flatten())


def main() -> None:
    """Train by the engine of DeepSpeed and write its own account."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--micro_batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--outcome", required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    settings = {
        "train_micro_batch_size_per_gpu": args.micro_batch,
        "gradient_accumulation_steps": args.accumulate,
        "zero_optimization": {"stage": args.stage},
        "bf16": {"enabled": args.bf16},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "gradient_clipping": 1.0,
        "steps_per_print": 8,
    }
    with deepspeed.zero.Init(config_dict_or_path=settings, enabled=args.stage == 3):
        net = Net(2, checkpointing=args.checkpointing)
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=settings)
    times = [time.perf_counter()]
    for _ in range(args.steps * args.accumulate):
        engine.backward(engine(torch.randint(0, VOCAB, (args.micro_batch, SEQ_LEN))))
        boundary = engine.is_gradient_accumulation_boundary()
        engine.step()
        if boundary:
            times.append(time.perf_counter())
    if dist.get_rank() == 0:
        report = {
            "steps": engine.global_steps,
            "stage": engine.zero_optimization_stage(),
            "dp_degree": engine.dp_world_size,
            "micro_batch_size": engine.train_micro_batch_size_per_gpu(),
            "accumulation": engine.gradient_accumulation_steps(),
            "global_batch_size": engine.train_batch_size(),
            "dtype": str(next(iter(engine.module.parameters())).dtype),
            "optimizer": type(engine.optimizer).__name__,
            "n_params": sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters()),
            "times": times,
        }
        Path(args.outcome).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
