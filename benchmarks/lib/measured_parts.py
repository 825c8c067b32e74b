"""Script under torchrun: measures the parts of a step and of memory of small FSDP transformers, config by config.

It reads configs as JSON from the file in its first argument and prints one line of JSON for each on rank 0. Memory is
counted in bytes of tensors: what a process holds, without the libraries. Each timed part is the median over the steps.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WARMUP, STEPS = 2, 7


class Block(nn.Module):
    """One transformer block: causal attention and an MLP of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states to hidden states."""
        query, key, value = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    """Embedding, blocks, projection onto the vocabulary."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__()
        width = facts["d_model"]
        self.embedding = nn.Embedding(facts["vocab_size"], width)
        self.blocks = nn.ModuleList(Block(width, facts["n_heads"]) for _ in range(facts["n_layers"]))
        self.head = nn.Linear(width, facts["vocab_size"], bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each position."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def per_layer(value: Any, n_layers: int) -> list[Any]:
    """Return one value per layer."""
    return list(value) if isinstance(value, list) else [value] * n_layers


def checkpointed(facts: Mapping[str, Any]) -> Transformer:
    """Return the model with the layers checkpointed that recompute."""
    torch.manual_seed(0)
    model = Transformer(facts)
    for index, word in enumerate(per_layer(facts["activation_checkpointing"], facts["n_layers"])):
        if word == "full":
            model.blocks[index] = checkpoint_wrapper(model.blocks[index])
    return model


def sharded(facts: Mapping[str, Any]) -> nn.Module:
    """Return the model under FSDP with a strategy per layer; the rest has that of the first."""
    model = checkpointed(facts)
    strategies = [ShardingStrategy[name] for name in per_layer(facts["sharding_strategy"], facts["n_layers"])]
    for index, strategy in enumerate(strategies):
        model.blocks[index] = wrapped(model.blocks[index], strategy)
    return wrapped(model, strategies[0])


def wrapped(module: nn.Module, strategy: ShardingStrategy) -> nn.Module:
    """Return the module under FSDP on the CPU."""
    return FullyShardedDataParallel(
        module, sharding_strategy=strategy, device_id=torch.device("cpu"), use_orig_params=True
    )


def run_step(model: nn.Module, facts: Mapping[str, Any]) -> None:
    """Run all micro batches of a step forward and backward."""
    for _ in range(facts["gradient_accumulation_steps"]):
        tokens = torch.randint(facts["vocab_size"], (facts["micro_batch_size"], facts["seq_len"]))
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()


def timed(call: Callable[[], None]) -> float:
    """Return the seconds of a call that all ranks begin together."""
    dist.barrier()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def seconds_of(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of a step, of its computation and of its optimizer, and of what is left: communication."""
    alone, model = checkpointed(facts), sharded(facts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    found: dict[str, list[float]] = {"compute": [], "optimizer": [], "step": []}
    for step in range(WARMUP + STEPS):
        compute = timed(lambda: run_step(alone, facts))
        both = timed(lambda: run_step(model, facts))
        optimized = timed(optimizer.step)
        optimizer.zero_grad()
        alone.zero_grad()
        if step >= WARMUP:
            found["compute"].append(compute)
            found["optimizer"].append(optimized)
            found["step"].append(both + optimized)
    parts = {name: statistics.median(values) for name, values in found.items()}
    return {**parts, "communication": parts["step"] - parts["compute"] - parts["optimizer"]}


def bytes_of(facts: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of tensors on this rank: by part, and at the peak of a step."""
    model = sharded(facts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    one = {**facts, "gradient_accumulation_steps": 1}
    run_step(model, one)
    gradients = sum(size(each.grad) for each in model.parameters() if each.grad is not None)
    optimizer.step()
    optimizer.zero_grad()
    parts = {
        "weights": sum(map(size, model.parameters())),
        "gradients": gradients,
        "optimizer": sum(
            size(each) for state in optimizer.state.values() for each in state.values() if isinstance(each, Tensor)
        ),
    }
    _, peak = traced(lambda: run_step(model, one))
    blocks = checkpointed(facts).blocks
    x = torch.randn(facts["micro_batch_size"], facts["seq_len"], facts["d_model"], requires_grad=True)
    kept, _ = traced(lambda: nn.Sequential(*blocks)(x))
    return {**parts, "activations": kept, "peak": parts["weights"] + parts["optimizer"] + peak}


def size(tensor: Tensor) -> int:
    """Return the bytes of a tensor."""
    return tensor.numel() * tensor.element_size()


def traced(call: Callable[[], object]) -> tuple[int, int]:
    """Return by how many bytes a call's tensors grow: those that its result keeps alive, and at their peak."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        result = call()
    events = [each for each in trace.profiler.kineto_results.events() if each.name() == "[memory]"]
    events.sort(key=lambda each: each.start_ns())
    sizes = list(accumulate(each.nbytes() for each in events))
    del result
    return sizes[-1], max(sizes)


def main() -> None:
    """Measure each config."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    for facts in json.loads(Path(sys.argv[1]).read_text()):
        found = {"seconds": seconds_of(facts), "bytes": bytes_of(facts)}
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
