"""A Llama-like training with flags as Hugging Face's configs name their keys."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from training_loop import parallel, start, train


def rotated(x: Tensor) -> Tensor:
    """Return queries or keys ``[n, heads, length, width]`` with rotary positions."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[2])[:, None] * 10_000.0 ** (-torch.arange(half) / half)
    first, second = x.split(half, -1)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class Block(nn.Module):
    """Pre-norm block: grouped-query attention, and a gated MLP."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        width, inner, self.heads = options.hidden_size, options.intermediate_size, options.num_attention_heads
        kv_width = width // self.heads * options.num_key_value_heads
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k_proj, self.v_proj = nn.Linear(width, kv_width, bias=False), nn.Linear(width, kv_width, bias=False)
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map hidden states ``[n, length, hidden_size]`` to such states."""
        normed, width = self.input_layernorm(x), x.shape[-1] // self.heads
        query, key, value = (
            each(normed).unflatten(-1, (-1, width)).transpose(1, 2) for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = functional.scaled_dot_product_attention(
            rotated(query), rotated(key), value, is_causal=True, enable_gqa=True
        )
        x = x + self.o_proj(attended.transpose(1, 2).flatten(2))
        normed = self.post_attention_layernorm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(normed)) * self.up_proj(normed))


class Llama(nn.Module):
    """Llama with an output of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.checkpointing = options.gradient_checkpointing
        self.embed_tokens = nn.Embedding(options.vocab_size, options.hidden_size)
        self.layers = nn.ModuleList(Block(options) for _ in range(options.num_hidden_layers))
        self.norm = nn.RMSNorm(options.hidden_size)
        self.lm_head = nn.Linear(options.hidden_size, options.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens ``[n, length]`` to logits."""
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointing else layer(x)
        return self.lm_head(self.norm(x))


def main() -> None:
    """Train on random tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_hidden_layers", type=int, default=4)
    parser.add_argument("--hidden_size", type=int, default=128)
    parser.add_argument("--intermediate_size", type=int, default=344)
    parser.add_argument("--num_attention_heads", type=int, default=4)
    parser.add_argument("--num_key_value_heads", type=int, default=2)
    parser.add_argument("--vocab_size", type=int, default=2048)
    parser.add_argument("--max_seq_len", type=int, default=128)
    parser.add_argument("--per_device_train_batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--sharding", choices=("ddp", "fsdp2"), default="fsdp2")
    parser.add_argument("--max_steps", type=int, default=20)
    options = parser.parse_args()
    start()
    model = Llama(options)
    model = parallel(model, model.layers, options.sharding)

    def batch() -> tuple[Tensor, Tensor]:
        size = (options.per_device_train_batch_size, options.max_seq_len + 1)
        tokens = torch.randint(options.vocab_size, size)
        return tokens[:, :-1], tokens[:, 1:]

    train(
        model,
        batch,
        lambda logits, targets: functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()),
        steps=options.max_steps,
        accumulate=options.gradient_accumulation_steps,
        bf16=options.bf16,
    )


if __name__ == "__main__":
    main()
