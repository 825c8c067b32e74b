"""Train a small GPT on tokens made on the fly, data-parallel, with one FSDP sharding strategy per layer.

Start it with torchrun, on CPUs (gloo) or on GPUs (NCCL):

    torchrun --nproc_per_node 2 examples/train_gpt.py --steps 20 --sharding FULL_SHARD,NO_SHARD,NO_SHARD,SHARD_GRAD_OP
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class BigramText(Dataset[tuple[Tensor, Tensor]]):
    """Random text in which each token has four possible successors; sample ``i`` is always the same."""

    n_successors = 4

    def __init__(self, n_samples: int, block_size: int, vocab_size: int, seed: int) -> None:
        self.n_samples, self.block_size, self.vocab_size, self.seed = n_samples, block_size, vocab_size, seed
        uniform = torch.rand(vocab_size, self.n_successors, generator=torch.Generator().manual_seed(seed))
        # The cube makes small token ids frequent, as some words are in text: the first steps already learn something.
        self.successors: list[list[int]] = (vocab_size * uniform**3).long().clamp(max=vocab_size - 1).tolist()

    def __len__(self) -> int:
        """Count the samples of the whole job."""
        return self.n_samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of one sample, int64 ``[block_size]`` each."""
        rng = torch.Generator().manual_seed(self.seed + 1 + index)
        tokens = torch.randint(self.vocab_size, (1,), generator=rng).tolist()
        for choice in torch.randint(self.n_successors, (self.block_size,), generator=rng).tolist():
            tokens.append(self.successors[tokens[-1]][choice])
        text = torch.tensor(tokens)
        return text[:-1], text[1:]


class Block(nn.Module):
    """One transformer layer: causal self-attention, then an MLP, each around a residual."""

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.attention_norm = nn.LayerNorm(n_embd)
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.projection = nn.Linear(n_embd, n_embd)
        self.mlp_norm = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states to hidden states, ``[batch, block_size, n_embd]``."""
        x = x + self.attend(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))

    def attend(self, x: Tensor) -> Tensor:
        """Let every position look at itself and those before it."""
        heads = self.qkv(x).unflatten(-1, (3, self.n_head, -1)).transpose(1, 3)  # [batch, n_head, 3, block_size, d]
        query, key, value = heads.unbind(2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(2))


class GPT(nn.Module):
    """A decoder-only transformer with learned positions."""

    def __init__(self, sizes: argparse.Namespace) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(sizes.vocab_size, sizes.n_embd)
        self.position_embedding = nn.Embedding(sizes.block_size, sizes.n_embd)
        self.blocks = nn.ModuleList(Block(sizes.n_embd, sizes.n_head) for _ in range(sizes.n_layer))
        self.norm = nn.LayerNorm(sizes.n_embd)
        self.head = nn.Linear(sizes.n_embd, sizes.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens, int64 ``[batch, block_size]``, to the logits of the next, ``[batch, block_size, vocab_size]``."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def whole_number(text: str, least: int = 1) -> int:
    """Read a whole number, ``least`` or more."""
    most = 2**31 - 1
    number = int(text) if text.isdecimal() else -1
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, got {text!r}")
    return number


def positive_number(text: str) -> float:
    """Read a finite number above zero."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return number


def strategy_list(text: str) -> list[str]:
    """Read comma-separated names of FSDP sharding strategies."""
    legal = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")
    names = text.split(",")
    for name in names:
        if name not in legal:
            raise argparse.ArgumentTypeError(f"unknown strategy {name!r}, choose from {', '.join(legal)}")
    return names


def parse_arguments() -> argparse.Namespace:
    """Read the command line; whatever is wrong there ends the program with exit code 2."""
    parser = argparse.ArgumentParser(
        description="Train a small GPT on synthetic tokens, with one FSDP sharding strategy per layer.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--n_layer", type=whole_number, default=4, help="transformer layers")
    add("--n_head", type=whole_number, default=4, help="attention heads per layer")
    add("--n_embd", type=whole_number, default=128, help="width of the model, a multiple of --n_head")
    add("--vocab_size", type=whole_number, default=512, help="number of different tokens")
    add("--block_size", type=whole_number, default=64, help="tokens per sample")
    add("--batch_size", type=whole_number, default=4, help="samples per forward pass on each rank (micro batch)")
    add("--accumulate", type=whole_number, default=4, help="forward passes per optimizer step on each rank")
    sharding_help = "FSDP strategies NO_SHARD, SHARD_GRAD_OP, FULL_SHARD: one per layer (the rest as the first) or one"
    add("--sharding", type=strategy_list, default="FULL_SHARD", metavar="STRATEGY[,STRATEGY...]", help=sharding_help)
    add("--activation_checkpointing", choices=("none", "full"), default="none", help="full recomputes every layer")
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="number format of forward and backward passes")
    add("--compile", action="store_true", help="compile every layer with torch.compile")
    add("--steps", type=whole_number, default=100, help="optimizer steps")
    add("--learning_rate", type=positive_number, default=3e-3, help="at the first step, then falling along a cosine")
    add("--seed", type=partial(whole_number, least=0), default=0, help="of the initial weights and of the data")
    add("--out_dir", type=Path, default=Path("out"), help="folder for the checkpoint, ckpt.pt")
    arguments = parser.parse_args()
    if arguments.n_embd % arguments.n_head:
        parser.error(f"--n_embd {arguments.n_embd} must be a multiple of --n_head {arguments.n_head}")
    if len(arguments.sharding) == 1:
        arguments.sharding *= arguments.n_layer
    if len(arguments.sharding) != arguments.n_layer:
        parser.error(f"--sharding wants 1 or {arguments.n_layer} strategies (--n_layer), got {len(arguments.sharding)}")
    if not dist.is_torchelastic_launched():
        parser.error("start me with torchrun, for example: torchrun --nproc_per_node 2 examples/train_gpt.py")
    return arguments


def start_process_group() -> torch.device:
    """Join the other ranks and return the device of this one."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", dist.get_node_local_rank())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def build_model(arguments: argparse.Namespace, device: torch.device) -> FullyShardedDataParallel:
    """Build the model with the same weights on every rank, then wrap each layer and the rest of it in FSDP."""
    # FSDP advises DDP instead of NO_SHARD; but DDP cannot be chosen layer by layer.
    warnings.filterwarnings("ignore", message=r"(The|When using) `+NO_SHARD`+ ")
    low_precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    wrap = partial(
        FullyShardedDataParallel,
        mixed_precision=low_precision if arguments.precision == "bf16" else None,
        device_id=device,  # wanted on CPU too: without it FSDP asks for an accelerator
        use_orig_params=True,
    )
    strategies = [ShardingStrategy[name] for name in arguments.sharding]
    model = GPT(arguments)
    for index, strategy in enumerate(strategies):
        block = model.blocks[index]
        if arguments.compile:
            block.compile()
        if arguments.activation_checkpointing == "full":
            block = checkpoint_wrapper(block)
        model.blocks[index] = wrap(block, sharding_strategy=strategy)
    return wrap(model, sharding_strategy=strategies[0])


def load_batches(arguments: argparse.Namespace) -> Iterator[list[Tensor]]:
    """Yield the micro batches of this rank, inputs and targets int64 ``[batch_size, block_size]``.

    Without shuffling, ranks take samples in turn: those of one optimizer step are the same however its global batch
    is split into micro batches.
    """
    n_samples = arguments.steps * arguments.accumulate * arguments.batch_size * dist.get_world_size()
    text = BigramText(n_samples, arguments.block_size, arguments.vocab_size, arguments.seed)
    sampler = DistributedSampler(text, shuffle=False)
    return iter(DataLoader(text, batch_size=arguments.batch_size, sampler=sampler))


def accumulate_gradients(model: FullyShardedDataParallel, batches: Iterator[list[Tensor]], count: int) -> Tensor:
    """Run ``count`` micro batches forward and backward, and return their mean loss over all ranks."""
    device = model.compute_device
    total_loss = torch.zeros((), device=device)
    for remaining in reversed(range(count)):
        inputs, targets = (tensor.to(device) for tensor in next(batches))
        # Ranks exchange gradients once per step; until then FSDP holds them unsharded, whatever the strategy.
        with model.no_sync() if remaining else nullcontext():
            logits = model(inputs)
            loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten()) / count
            loss.backward()
        total_loss += loss.detach()
    dist.all_reduce(total_loss)
    return total_loss / dist.get_world_size()


def train(model: FullyShardedDataParallel, arguments: argparse.Namespace) -> None:
    """Take the optimizer steps, and print each on rank 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = CosineAnnealingLR(optimizer, T_max=arguments.steps)
    batches = load_batches(arguments)
    tokens_per_step = arguments.batch_size * arguments.accumulate * dist.get_world_size() * arguments.block_size
    for step in range(1, arguments.steps + 1):
        start_s = time.perf_counter()
        loss = accumulate_gradients(model, batches, arguments.accumulate)
        model.clip_grad_norm_(1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss_value = loss.item()  # waits for the device, so that the clock below is right
        step_s = time.perf_counter() - start_s
        if dist.get_rank() == 0:
            pace = f"{1000 * step_s:.1f} ms/step  {tokens_per_step / step_s:,.0f} tokens/s"
            print(f"step {step}/{arguments.steps}  loss {loss_value:.4f}  {pace}", flush=True)


def save_checkpoint(model: FullyShardedDataParallel, arguments: argparse.Namespace) -> None:
    """Gather the full weights on rank 0 and write them, with the arguments, to ``ckpt.pt``."""
    # FSDP crashes when told to offload weights that are in CPU memory already.
    options = StateDictOptions(full_state_dict=True, cpu_offload=torch.cuda.is_available())
    weights = get_model_state_dict(model, options=options)
    if dist.get_rank() == 0:
        path = arguments.out_dir / "ckpt.pt"
        torch.save({"model": weights, "arguments": vars(arguments) | {"out_dir": str(arguments.out_dir)}}, path)
        print(f"saved {path}", flush=True)


def main() -> None:
    """Train as the command line says, and save the result."""
    arguments = parse_arguments()
    arguments.out_dir.mkdir(parents=True, exist_ok=True)  # first, since a bad folder should not cost a training
    device = start_process_group()
    torch.manual_seed(arguments.seed)
    model = build_model(arguments, device)
    train(model, arguments)
    save_checkpoint(model, arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
