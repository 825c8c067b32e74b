"""A GPT-2-like training with flags as nanoGPT names them."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from training_loop import parallel, start, train


class Block(nn.Module):
    """Pre-norm block: causal attention, and an MLP of four times the width."""

    def __init__(self, n_embd: int, n_head: int, *, bias: bool) -> None:
        super().__init__()
        self.n_head = n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd, bias=bias), nn.LayerNorm(n_embd, bias=bias)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd, bias=bias), nn.Linear(n_embd, n_embd, bias=bias)
        self.c_fc, self.c_out = nn.Linear(n_embd, 4 * n_embd, bias=bias), nn.Linear(4 * n_embd, n_embd, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states ``[n, length, n_embd]`` to such states."""
        heads = (
            each.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for each in self.c_attn(self.ln_1(x)).chunk(3, -1)
        )
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.c_proj(attended.transpose(1, 2).flatten(2))
        return x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    """GPT-2 with learned positions and a tied output."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.checkpointing = options.gradient_checkpointing
        self.wte = nn.Embedding(options.vocab_size, options.n_embd)
        self.wpe = nn.Embedding(options.block_size, options.n_embd)
        blocks = (Block(options.n_embd, options.n_head, bias=options.bias) for _ in range(options.n_layer))
        self.h = nn.ModuleList(blocks)
        self.ln_f = nn.LayerNorm(options.n_embd, bias=options.bias)
        self.lm_head = nn.Linear(options.n_embd, options.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens ``[n, length]`` to logits."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.lm_head(self.ln_f(x))


def main() -> None:
    """Train on random tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--n_layer", type=int, default=4)
    parser.add_argument("--n_head", type=int, default=4)
    parser.add_argument("--n_embd", type=int, default=128)
    parser.add_argument("--vocab_size", type=int, default=2048)
    parser.add_argument("--block_size", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--bias", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--sharding", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--max_iters", type=int, default=20)
    options = parser.parse_args()
    start()
    model = GPT(options)
    model = parallel(model, model.h, options.sharding)

    def batch() -> tuple[Tensor, Tensor]:
        tokens = torch.randint(options.vocab_size, (options.batch_size, options.block_size + 1))
        return tokens[:, :-1], tokens[:, 1:]

    train(
        model,
        batch,
        lambda logits, targets: functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()),
        steps=options.max_iters,
        accumulate=options.gradient_accumulation_steps,
        bf16=options.dtype == "bfloat16",
    )


if __name__ == "__main__":
    main()
