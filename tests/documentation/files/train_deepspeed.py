"""Train a small classifier with DeepSpeed's engine and its JSON config, as its users write it; here on the CPU."""

import argparse
import os
import sys
from pathlib import Path

# The operator that DeepSpeed compiles for the CPU is kept in the environment, as `make test-releases` keeps it.
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))

import deepspeed
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--local_rank", type=int, default=0)
parser = deepspeed.add_config_arguments(parser)
options = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)), nn.Linear(64, 8))
engine, *_ = deepspeed.initialize(args=options, model=model, model_parameters=model.parameters())
for _ in range(options.steps * engine.gradient_accumulation_steps()):
    n_samples = engine.train_micro_batch_size_per_gpu()
    inputs, targets = torch.randn(n_samples, 64), torch.randint(8, (n_samples,))
    engine.backward(nn.functional.cross_entropy(engine(inputs), targets))
    engine.step()
torch.distributed.destroy_process_group()
